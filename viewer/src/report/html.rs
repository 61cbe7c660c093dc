//! The report as a page: one HTML file that needs nothing else, to look at, to print and to pass on.
//!
//! Nothing a trace says is trusted: every text goes through [`crate::text::markup`], names are cut to a length, tables
//! and pictures are capped, and the page's own policy lets no script run but its own and nothing be fetched.

mod at;
mod device;
mod document;
mod elements;
mod layers;
mod memory;
mod ooms;
mod run;
mod tables;
mod timeline;
mod verdict;

pub use at::write_html_at;
pub use run::write_html;
