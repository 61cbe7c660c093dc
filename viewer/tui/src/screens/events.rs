//! The latest events, one by one.

mod columns;
mod draw;
mod item;
mod state;

pub use state::EventsScreen;
