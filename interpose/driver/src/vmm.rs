//! Device memory that can move to the host and back: the driver's memory calls, answered through virtual memory
//! management.
//!
//! The program's addresses stay fixed; memlab can replace the physical memory behind them (`interpose/src/mover` does). Used
//! in programs that were started for offloading, and for memory that spills over a limit.

pub mod allocations;
pub mod arena;
pub mod captures;
pub mod contexts;
pub mod gate;
pub mod handles;
pub mod host_memory;
pub mod mode;
pub mod movable_memory;
pub mod physical;
pub mod queries;
pub mod totals;
