//! The changes with which a program fits, and the environment that makes them.

use std::ffi::OsString;
use std::fmt;

use memlab_protocol::status::OnLimit;
use memlab_units::format::{size, time_spent};
use tempfile::TempDir;

use super::changes::{Changes, Decision, WORKSPACES};
use super::code;
use super::paged::{self, PagedModule};
use super::trial::{CardNeeds, Environment};
use crate::allocator_settings::AllocatorSettings;
use crate::recording::{STARTUP_OF_PAGED, python_path};

/// The changes with which a program fits.
pub struct Fitted {
    /// The command, shortened.
    pub program: String,
    /// Memory that the unchanged program takes of the card.
    pub taken: u64,
    /// `None`: it fits as it is.
    pub chosen: Option<Chosen>,
}

/// Changes that were tried, and fit.
pub struct Chosen {
    pub attempt: Attempt,
    /// Most memory on the card.
    pub target: u64,
    /// Most memory that PyTorch's allocator reserves.
    pub budget: u64,
    /// GPU time of a step of the unchanged program.
    pub unchanged_ns: Option<u64>,
    pub settings: AllocatorSettings,
}

/// Variables with which a program fits, and the folder of files that they name.
#[derive(Default)]
pub struct FittedEnvironment {
    pub variables: Vec<(&'static str, OsString)>,
    _folder: Option<TempDir>,
}

impl Fitted {
    /// Returns the environment in which the program fits; empty if it fits as it is.
    ///
    /// # Errors
    ///
    /// If the files that page modules cannot be written.
    pub fn environment(&self) -> anyhow::Result<FittedEnvironment> {
        let Some(Chosen { attempt, target, budget, settings, .. }) = &self.chosen else {
            return Ok(FittedEnvironment::default());
        };
        let decision = attempt.changes.applied(attempt.needs.at_ease.min(*target));
        let variables = variables(&attempt.changes, &decision, Some(*budget), settings);
        let mut variables: Vec<_> = variables.into_iter().map(|(name, value)| (name, OsString::from(value))).collect();
        variables.push(("MEMLAB_LIMIT", format!("{target}B").into()));
        variables.push(("MEMLAB_ON_LIMIT", OnLimit::Spill.as_str().into()));
        let mut folder = None;
        if attempt.changes.paged().next().is_some() {
            let created = tempfile::Builder::new().prefix("memlab-page-").tempdir()?;
            variables.push(("PYTHONPATH", python_path(created.path(), STARTUP_OF_PAGED)?));
            folder = Some(created);
        }
        Ok(FittedEnvironment { variables, _folder: folder })
    }

    /// Returns the changes as code; `None` if none are necessary.
    pub fn code(&self) -> Option<String> {
        let chosen = self.chosen.as_ref()?;
        Some(code::of(&chosen.attempt.changes, chosen.budget, &chosen.settings))
    }
}

/// A sentence with the changes and what they cost.
impl fmt::Display for Fitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fitted { program, taken, chosen } = self;
        write!(f, "{program} takes {} of the card", size(*taken))?;
        let Some(Chosen { attempt, target, unchanged_ns, .. }) = chosen else {
            return write!(f, ", which fits");
        };
        let needed = size(attempt.needs.at_ease.min(*target));
        write!(f, ". Fits in {needed} with {}", attempt.changes.described())?;
        match (unchanged_ns, attempt.step_ns) {
            // Waits for the weights of paged modules are not simulated.
            (Some(unchanged), Some(changed)) if *unchanged > 0 && attempt.changes.paged().next().is_none() => {
                let (added, step) = (time_spent(changed.saturating_sub(*unchanged)), time_spent(*unchanged));
                write!(f, ": about +{added} of GPU time on a step of {step}")
            }
            _ => Ok(()),
        }
    }
}

/// Changes that were tried.
pub struct Attempt {
    pub changes: Changes,
    pub needs: CardNeeds,
    /// GPU time of a step.
    pub step_ns: Option<u64>,
}

impl Attempt {
    /// Order by cost. Waits for copies of the optimizer's state are not simulated, and they can take longer than a step.
    pub fn cost(&self) -> (bool, u64, Option<u64>, usize) {
        let streamed: u64 = self.changes.paged().map(PagedModule::streamed_bytes).sum();
        let offloaded = self.changes.offloaded.map_or(0, |offloaded| offloaded.of_bytes - offloaded.budget_bytes);
        let moved = self.changes.host_state_bytes + streamed + offloaded;
        (self.changes.rounds(), moved, self.step_ns, self.changes.modules().len())
    }
}

/// Returns the variables that make the changes. `budget`: most bytes that PyTorch's allocator reserves; `None`: a run on a
/// simulated card.
pub fn variables(
    changes: &Changes,
    decision: &Decision,
    budget: Option<u64>,
    settings: &AllocatorSettings,
) -> Environment {
    let is_paged = changes.paged().next().is_some();
    let mut variables = vec![
        (settings.variable, settings.value.clone()),
        ("MEMLAB_FIT", serde_json::to_string(decision).unwrap_or_default()),
    ];
    if changes.small_workspaces {
        let (name, value) = WORKSPACES;
        variables.push((name, value.to_owned()));
    }
    if budget.is_none() || is_paged {
        variables.push((paged::DECISION, paged::decision(changes.paged(), budget)));
    }
    variables
}
