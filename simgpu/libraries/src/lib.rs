//! Simulated cuBLAS, cuBLASLt, cuDNN and NCCL: compute routines launch kernels that do nothing; queries that programs size their
//! allocations by return plausible values.
//!
//! # Layers
//!
//! ```text
//! cublaslt, cublas_routines, cudnn_backend, cudnn_rnn, cudnn_routines, nccl
//! cudnn_rnn_sizes              the workspace and reserve of recurrent networks
//! cudnn_rnn_network
//! cublas, cudnn, cudnn_stream
//! kernels                      what compute routines launch
//! cudnn_planner                what the installed cuDNN plans without a device
//! device_memory, table
//! driver
//! api
//! ```

mod api;
mod cublas;
mod cublas_routines;
mod cublaslt;
mod cudnn;
mod cudnn_backend;
mod cudnn_planner;
mod cudnn_rnn;
mod cudnn_rnn_network;
mod cudnn_rnn_sizes;
mod cudnn_routines;
mod cudnn_stream;
mod device_memory;
mod driver;
mod kernels;
mod nccl;
mod table;
