//! Backends: a CUDA device, a thread of the host, or a test's clock.

pub mod cuda;
pub mod host;
mod interface;

pub use cuda::Cuda;
pub use host::Host;
pub(crate) use interface::ActiveDevice;
pub use interface::{Backend, CaptureStatus, Event, RelaxedCaptures, Stream, Transfer};
