//! The simulated cards: how many there are, how much memory each has, and which process holds how much of it.
//!
//! Every process under one `simgpu` invocation maps the same small file (named by `SIMGPU_CARDS`), so that free
//! memory, NVML's figures and running out of memory are right across processes. Without that variable the cards are
//! private to the process. A slot identifies its process by pid and start time; every query first frees the slots of
//! dead processes.
//!
//! # Layers
//!
//! ```text
//! cards         what one process sees and holds
//! file          the mapped card file
//! table         what is in it
//! environment, process, visible
//! ```

mod cards;
mod environment;
mod file;
mod process;
mod table;
mod visible;

pub use cards::Cards;
pub use environment::size_from;
pub use process::start_time;
pub use table::MAX_DEVICES;
pub use visible::{uuid, uuid_text};
