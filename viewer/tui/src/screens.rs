//! The screens, one folder each: state, keys and drawing.

pub mod events;
pub mod layers;
pub mod lines;
pub mod output;
pub mod overview;
pub mod ranks;
pub mod screen_state;
pub mod segments;
pub mod steps;
pub mod time;
