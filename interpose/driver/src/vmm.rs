//! Device memory that can move to the host and back: virtual memory management answers the driver's memory calls.
//!
//! The program's addresses stay fixed. memlab can replace the physical memory behind them (in `interpose/src/mover`). Used
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
