//! Calls of the CUDA driver, and device memory that can move to the host and back.
//!
//! # Layers
//!
//! ```text
//! vmm                        movable memory
//! device, pools              querying the driver
//! calls, caller, arrays
//! types
//! ```

#![expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "handles of the driver are opaque pointers, which it checks; addresses to copy from and to are the mover's own"
)]

pub mod arrays;
pub mod caller;
pub mod calls;
pub mod device;
pub mod pools;
pub mod types;
pub mod vmm;
