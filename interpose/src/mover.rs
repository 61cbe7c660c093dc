//! Moves the program's device memory to host memory and back, on request from outside, while the program runs or waits.
//!
//! [`operation::start`] begins an operation on a thread. It closes the gate ([`interpose_driver::vmm::gate`]) and waits
//! until none of the program's work runs on a device ([`quiesce`]). Then it moves bytes through the [`copy`] pipeline to
//! pinned host memory ([`interpose_driver::vmm::arena`]) or back. The thread needs neither the GIL nor a lock of PyTorch or
//! of the program.

mod copy;
mod leaving_pieces;
mod mappings;
mod offload;
pub mod operation;
mod page_ranges;
pub mod pinning_ahead;
pub mod progress;
mod quiesce;
mod restore;
mod returning_pieces;
mod staging;
pub mod status;
