//! Reads the Python stacks of this process without taking Python's locks.
//!
//! # Layers
//!
//! ```text
//! walk                       reading Python's frames
//! lines, running_agent, probe
//! api, layout, held_signals
//! ```

#![expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "only memlab's hooks call this, with objects of live frames of their own thread; each function says which it needs"
)]

pub mod api;
pub mod held_signals;
pub mod layout;
pub mod lines;
pub mod probe;
pub mod running_agent;
pub mod walk;
