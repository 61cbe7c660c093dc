//! Overlays over a screen: help, questions, findings, advice, holders of memory and the source around a line.
//!
//! An open overlay receives the keys.

mod advice;
mod answer;
mod export;
mod findings;
mod help;
mod holders;
mod leave;
mod message;
mod offload;
mod overlay;
mod scrolled_lines;
mod source;

pub use advice::AdviceView;
pub use answer::Answer;
pub use export::ExportMenu;
pub use findings::FindingsView;
pub use help::Help;
pub use holders::HoldersView;
pub use offload::OffloadQuestion;
pub use overlay::Overlay;
pub use source::SourceView;
