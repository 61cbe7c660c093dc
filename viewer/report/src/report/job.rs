//! The report on a job, with its ranks side by side, as text, as a web page and as JSON.

mod findings;
mod heat;
mod html;
mod json;
mod names;
mod text;

pub use findings::{JobFinding, job_findings};
pub use html::write_job_html;
pub use json::write_job_json;
pub use names::RankNames;
pub use text::write_job_text;
