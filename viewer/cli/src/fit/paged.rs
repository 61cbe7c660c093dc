//! Modules whose weights are paged: those that the program moves to the GPU, and the memory that they get there.

use std::collections::BTreeMap;
use std::path::Path;

use memlab_units::format::size;
use serde::{Deserialize, Serialize};

/// Variable with the decision, as `paging.py` reads it.
pub const DECISION: &str = "MEMLAB_FIT_PAGE";

/// Variable with the file in which `paging.py` reports the modules.
pub const MOVED: &str = "MEMLAB_FIT_MOVED";

/// Memory for units that `memlab.page` copies while the module computes with others, besides two of the largest tensors.
const RING_BYTES: u64 = 32 << 20;

/// Modules smaller than this share of the missing memory are paged last.
const SMALL_SHARE: u64 = 8;

/// A module that the program moves to the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedModule {
    /// Its place in the order in which modules move.
    pub number: u64,
    pub class: String,
    pub nbytes: u64,
    /// Most memory of its weights on the GPU. All of `nbytes`: it moves as a whole.
    pub budget_bytes: u64,
    /// Least memory with which paging works.
    least_bytes: u64,
    /// Number of its calls in a run.
    calls: u64,
}

impl PagedModule {
    pub fn is_paged(&self) -> bool {
        self.budget_bytes < self.nbytes
    }

    /// Returns a description for people.
    pub fn described(&self) -> String {
        let PagedModule { class, nbytes, budget_bytes, .. } = self;
        format!("the weights of {class} paged ({} of {} stay on the GPU)", size(*budget_bytes), size(*nbytes))
    }

    /// Bytes that are copied in each of its calls.
    pub fn streamed_bytes(&self) -> u64 {
        self.nbytes - self.budget_bytes
    }
}

/// The decision for `paging.py`.
#[derive(Serialize)]
struct Decision<'a> {
    reserved_bytes: Option<u64>,
    modules: Vec<Part<'a>>,
}

#[derive(Serialize)]
struct Part<'a> {
    number: u64,
    class: &'a str,
    budget_bytes: u64,
}

/// Returns the decision as JSON. `reserved_bytes`: most bytes that PyTorch's allocator reserves; `None`: no bound.
pub fn decision<'a>(modules: impl Iterator<Item = &'a PagedModule>, reserved_bytes: Option<u64>) -> String {
    let modules = modules
        .map(|module| Part { number: module.number, class: &module.class, budget_bytes: module.budget_bytes })
        .collect();
    serde_json::to_string(&Decision { reserved_bytes, modules }).unwrap_or_default()
}

/// A line of the report of `paging.py`.
#[derive(Deserialize)]
struct Line {
    number: u64,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    nbytes: u64,
    #[serde(default)]
    largest_bytes: u64,
    #[serde(default)]
    calls: u64,
    refused: Option<String>,
}

/// Modules that a run on a simulated card has reported.
#[derive(Clone, Debug, Default)]
pub struct Moved {
    pub modules: Vec<PagedModule>,
    /// Reasons why modules were not paged.
    pub refused: Vec<String>,
}

impl Moved {
    /// Reads a report; without the file, no module has moved. Ranks of a job report the same modules.
    pub fn read(report: &Path) -> Moved {
        let text = std::fs::read_to_string(report).unwrap_or_default();
        let mut modules: BTreeMap<u64, PagedModule> = BTreeMap::new();
        let mut refused = Vec::new();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            let Line { number, kind, nbytes, largest_bytes, calls, refused: why } = line;
            if let Some(why) = why {
                refused.push(why);
            } else if nbytes > 0 {
                let least_bytes = (2 * largest_bytes + RING_BYTES).min(nbytes);
                modules.entry(number).or_insert(PagedModule {
                    number,
                    class: kind,
                    nbytes,
                    budget_bytes: nbytes,
                    least_bytes,
                    calls: 0,
                });
            } else if let Some(module) = modules.get_mut(&number) {
                module.calls = module.calls.max(calls);
            }
        }
        Moved { modules: modules.into_values().collect(), refused }
    }
}

/// Takes memory from modules, or gives it back. Returns false if nothing can be changed.
///
/// Modules that are called least lose their weights first: a pipeline calls its text encoder once, and its denoiser in each
/// step.
pub fn change_budgets(modules: &mut [PagedModule], missing: i128) -> bool {
    let mut missing = missing;
    let before = modules.to_vec();
    let is_taken = missing > 0;
    let small = u64::try_from(missing).unwrap_or(0) / SMALL_SHARE;
    let mut order: Vec<&mut PagedModule> = modules.iter_mut().collect();
    order.sort_by_key(|module| (module.nbytes < small, module.calls.max(1), u64::MAX - module.nbytes));
    if !is_taken {
        order.reverse(); // The most expensive weights return first.
    }
    for module in order {
        let budget = i128::from(module.budget_bytes) - missing;
        let bounded = budget.clamp(i128::from(module.least_bytes), i128::from(module.nbytes));
        missing -= i128::from(module.budget_bytes) - bounded;
        module.budget_bytes = u64::try_from(bounded).unwrap_or(module.nbytes);
    }
    before != modules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(number: u64, nbytes: u64, calls: u64) -> PagedModule {
        let class = "M".to_owned();
        PagedModule { number, class, nbytes, budget_bytes: nbytes, least_bytes: nbytes / 10, calls }
    }

    fn budgets(modules: &[PagedModule]) -> Vec<u64> {
        modules.iter().map(|module| module.budget_bytes).collect()
    }

    #[test]
    fn modules_that_are_called_least_are_paged_first() {
        // GIVEN a large module that is called often, a smaller one that is called once, and a tiny one
        let mut modules = [module(0, 1000, 50), module(1, 400, 1), module(2, 10, 1)];
        // WHEN memory is missing; THEN the one that is called once loses it, up to its least
        assert!(change_budgets(&mut modules, 300));
        assert_eq!(budgets(&modules), [1000, 100, 10]);
        assert!(change_budgets(&mut modules, 160));
        assert_eq!(budgets(&modules), [900, 40, 10]);
        // AND what is left over returns to the module that is called often
        assert!(change_budgets(&mut modules, -120));
        assert_eq!(budgets(&modules), [1000, 60, 10]);
        // AND with all at their least, nothing changes
        change_budgets(&mut modules, 5000);
        assert_eq!(budgets(&modules), [100, 40, 1]);
        assert!(!change_budgets(&mut modules, 5000));
    }
}
