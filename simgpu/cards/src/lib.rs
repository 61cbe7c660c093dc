//! The simulated cards: what they are ([`Model`], the table [`MODELS`]), how many there are, how much memory each has, and
//! which process holds how much of it ([`Cards`]).
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
//! environment   what the environment asks for
//! naming        cards by name or by size
//! models        the table of cards that can be named
//! model, process, visible
//! ```

mod cards;
mod environment;
mod file;
mod model;
mod models;
mod naming;
mod process;
mod table;
mod visible;

pub use cards::Cards;
pub use environment::size_from;
pub use model::{Context, LINK_LANES, Limits, Model};
pub use models::MODELS;
pub use naming::{UnknownCard, find};
pub use process::start_time;
pub use table::MAX_DEVICES;
pub use visible::{uuid, uuid_text};
