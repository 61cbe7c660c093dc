//! The plan: how much memory a program will take, and what of it fits a card.

pub mod answer;
pub mod charts;
pub mod html;
pub mod phases;
pub mod ranks;
pub mod sequence;
pub mod sequence_text;
pub mod text;
