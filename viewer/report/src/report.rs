//! The report on a recorded run: as text, as a web page and as JSON.

mod advice;
mod at;
mod bar;
mod brief;
mod gpu_time;
mod growth;
mod html;
mod job;
mod json;
pub(crate) mod names;
mod sections;
mod text;
mod training;

pub use advice::{AdvicePart, advised, tried};
pub use at::write_text_at;
pub use brief::write_brief;
pub use html::live;
pub use html::{write_html, write_html_at};
pub use job::{JobFinding, RankNames, job_findings, write_job_html, write_job_json, write_job_text};
pub use json::write_json;
pub use text::{deep_stacks, write_advice, write_text};
