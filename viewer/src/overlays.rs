//! What is drawn over a screen: help, questions and the source around a line. An overlay gets the keys while it is
//! open.

mod answer;
mod export;
mod help;
mod leave;
mod message;
mod offload;
mod overlay;
mod source;

pub use answer::Answer;
pub use export::ExportMenu;
pub use help::Help;
pub use offload::OffloadQuestion;
pub use overlay::Overlay;
pub use source::SourceView;
