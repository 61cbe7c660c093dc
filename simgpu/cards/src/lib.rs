//! The simulated cards: their model ([`Model`], the table [`MODELS`]), number and memory, and the memory that each
//! process holds ([`Cards`]).
//!
//! Every process under one `simgpu` invocation maps the same small file (named by `SIMGPU_CARDS`). Free memory, NVML's
//! figures and out-of-memory errors are therefore right across processes. Without that variable, the cards are private
//! to the process. A slot identifies its process by pid and start time. Every query first frees the slots of dead
//! processes.
//!
//! # Layers
//!
//! ```text
//! cards         the cards and memory of one process
//! file          the mapped card file
//! table         contents of the card file
//! environment   environment variables
//! naming        cards by name or by size
//! models        the table of named cards
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
pub use model::{Context, LINK_LANES, Limits, Model, Rates};
pub use models::MODELS;
pub use naming::{UnknownCard, find};
pub use process::start_time;
pub use table::MAX_DEVICES;
pub use visible::{uuid, uuid_text};
