//! Shared parts of the simulated cuBLAS, cuDNN and NCCL: entry points, handles, device memory, kernels.
//!
//! # Layers
//!
//! ```text
//! kernels                      kernels that compute routines launch
//! device_memory, table
//! driver
//! api
//! ```

pub mod api;
pub mod device_memory;
pub mod driver;
pub mod kernels;
pub mod table;
