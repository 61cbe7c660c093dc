//! The messages of the control socket (`docs/control.md`), and the structs of `interpose/include/memlab.h`.
//!
//! libmemlab.so parses [`request::ControlRequest`] and writes the structs of [`status`]; the command does the reverse.
//! The Python package passes the structs of [`c_api`].
//!
//! # Layers
//!
//! ```text
//! request
//! status, c_api
//! ```

pub mod c_api;
pub mod request;
pub mod status;
