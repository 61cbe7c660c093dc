//! The plan: memory forecast of a program, and the batch sizes and settings that fit a card.

pub mod answer;
pub mod charts;
pub mod holders;
pub mod html;
pub mod phases;
pub mod ranks;
pub mod sequence;
pub mod sequence_text;
pub mod text;
