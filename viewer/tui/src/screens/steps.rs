//! Memory by optimizer step.

pub mod changes;
mod columns;
mod compared;
mod comparison;
mod draw;
mod item;
mod state;

pub use state::StepsScreen;
