//! Device memory that can leave and come back: the driver's memory calls, answered by virtual memory management.
//!
//! The program gets addresses as before; the physical memory behind them is memlab's to replace ([`crate::mover`] does).
//! Used in programs that were started for offloading, and for memory that is spilled over a limit.

pub mod allocations;
pub mod arena;
pub mod captures;
pub mod contexts;
pub mod gate;
pub mod handles;
pub mod holdings;
pub mod host_memory;
pub mod mode;
pub mod physical;
pub mod queries;
pub mod totals;
