//! Simulated cuBLAS, cuBLASLt and cuDNN: compute routines launch kernels that do nothing.
//!
//! Queries from which programs compute the sizes of their allocations return plausible values.
//!
//! # Layers
//!
//! ```text
//! cublaslt, cublas_routines, cudnn_backend, cudnn_rnn, cudnn_routines
//! cudnn_rnn_sizes              workspace and reserve of recurrent networks
//! cudnn_rnn_network
//! cublas, cudnn, cudnn_stream
//! elements                     types of elements
//! cudnn_planner                the installed cuDNN, which plans without a device
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
mod elements;
