//! The report as one self-contained HTML file, for viewing, printing and sharing.
//!
//! Names are cut to a length; tables and pictures are capped.

mod advice;
mod at;
mod device;
mod document;
mod findings;
mod gpu_time;
mod layers;
pub mod live;
mod map;
mod memory;
mod ooms;
mod peak_step;
mod run;
mod tables;
mod timeline;

pub use at::write_html_at;
pub(super) use document::notes;
pub(super) use findings::finding_list;
pub use run::write_html;
