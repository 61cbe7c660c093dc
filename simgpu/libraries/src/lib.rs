//! Simulated cuBLAS, cuBLASLt and cuDNN: compute routines launch kernels that do nothing; queries that programs size their
//! allocations by return plausible values.
//!
//! # Layers
//!
//! ```text
//! cublaslt, cublas_routines, cudnn_backend, cudnn_rnn, cudnn_routines
//! cudnn_rnn_sizes              the workspace and reserve of recurrent networks
//! cudnn_rnn_network
//! cublas, cudnn, cudnn_stream
//! cudnn_planner                what the installed cuDNN plans without a device
//! ```

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
