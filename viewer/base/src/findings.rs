//! Findings on a run, most urgent first: out-of-memory errors, growing memory, memory on the host or in other
//! processes, memory that the allocator retains. Each finding contains the next action.
//!
//! The text report, the HTML report, the summary of a run and the dashboard show these findings in their own formats.

pub mod advice;
mod causes;
mod finding;
mod forwards;
mod graph_pools;
mod headline;
pub mod holder;
mod jax_pool;
mod leak;
mod pressure;
mod verdict;
mod words;

use memlab_trace::Model;

pub use advice::GrowingLine;
pub use finding::{Finding, Kind};
pub use graph_pools::{PoolsOfLine, by_line as graph_pools_by_line};
pub use headline::{fullest, headline, mostly};
pub use leak::{Growing, growing};
pub use pressure::{grows, out_of_memory};
pub use verdict::verdict;
pub use words::{Word, Words};

/// All findings on a run, most urgent first.
pub fn of(model: &Model) -> Vec<Finding> {
    let devices = model.devices();
    let several = devices.len() > 1;
    let mut findings: Vec<Finding> = Vec::new();
    for device in &devices {
        let mut found = pressure::out_of_memory(model, device, several).into_iter().collect::<Vec<_>>();
        let is_out_of_memory = !found.is_empty();
        let growing = leak::growing(model, device, several);
        found.extend(forwards::earlier_forwards(model, device, several, &growing));
        found.extend(growing.into_iter().map(|growing| growing.finding));
        found.extend(pressure::spilling(device, several));
        found.extend(pressure::others(model, device, several, is_out_of_memory));
        found.extend(pressure::fragmentation(model, device, several));
        found.extend(graph_pools::graph_pools(model, device, several));
        found.extend(jax_pool::jax_pool(model, device, several));
        findings.extend(found);
    }
    findings.sort_by_key(|finding| (finding.kind, std::cmp::Reverse(finding.bytes)));
    findings
}
