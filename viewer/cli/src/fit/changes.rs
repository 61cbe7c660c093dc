//! Changes of a program that leave its results the same.

use memlab_predict::advice::Recomputation;
use memlab_units::format::size;
use serde::Serialize;

use super::paged::PagedModule;

/// Changes that a person can exclude by these names, besides modules.
pub const GRADIENTS: &str = "gradients";
pub const LOSS: &str = "loss";
pub const STATE: &str = "state";
pub const WEIGHTS: &str = "weights";
pub const ACTIVATIONS: &str = "activations";

/// Environment variable for small workspaces of cuBLAS.
pub const WORKSPACES: (&str, &str) = ("CUBLAS_WORKSPACE_CONFIG", ":16:8");

/// Changes of a program.
#[derive(Clone, Debug)]
pub struct Changes {
    /// Releases gradients when the optimizer's step has ended.
    pub early_gradients: bool,
    /// Computes the cross entropy some rows at a time.
    pub loss_in_rows: bool,
    /// Bytes of the optimizer's state that are on the host between steps.
    pub host_state_bytes: u64,
    pub recomputed: Option<Recomputation>,
    pub offloaded: Option<Offloaded>,
    /// Share of the activations that compiled graphs keep, in percent. Rounds in another way.
    pub compiled_percent: Option<u32>,
    /// cuBLAS gets little memory. Rounds in another way.
    pub small_workspaces: bool,
    /// Modules that the program moves to the GPU, and the memory that they get there.
    pub modules_moved: Vec<PagedModule>,
}

/// Activations of outermost modules that leave the GPU.
#[derive(Clone, Copy, Debug)]
pub struct Offloaded {
    /// Bytes that stay.
    pub budget_bytes: u64,
    /// Bytes of all activations.
    pub of_bytes: u64,
}

impl Changes {
    /// Modules with weights that are paged.
    pub fn paged(&self) -> impl Iterator<Item = &PagedModule> {
        self.modules_moved.iter().filter(|module| module.is_paged())
    }

    /// Returns true if results may change in their last bits.
    pub fn rounds(&self) -> bool {
        self.compiled_percent.is_some() || self.small_workspaces
    }

    /// Names of the modules whose activations are recomputed.
    pub fn modules(&self) -> Vec<&str> {
        self.recomputed.iter().flat_map(|found| &found.modules).map(|module| &*module.name).collect()
    }

    pub fn described(&self) -> String {
        let mut parts = vec!["expandable segments".to_owned()];
        if self.host_state_bytes > 0 {
            parts.push(format!("{} of optimizer state on the host between steps", size(self.host_state_bytes)));
        }
        let named = [(self.early_gradients, "early gradients"), (self.loss_in_rows, "the loss in rows")];
        parts.extend(named.into_iter().filter(|(is_made, _)| *is_made).map(|(_, name)| name.to_owned()));
        if let Some(found) = &self.recomputed {
            let count = found.modules.len();
            parts.push(format!("{count} of {} modules checkpointed ({})", found.candidates, found.place));
        }
        if let Some(Offloaded { budget_bytes, of_bytes }) = self.offloaded {
            parts.push(format!("activations off the GPU ({} of {} stay)", size(budget_bytes), size(of_bytes)));
        }
        if let Some(percent) = self.compiled_percent {
            parts.push(format!("compiled graphs that keep {percent} % of their activations (rounds differently)"));
        }
        if self.small_workspaces {
            parts.push("small workspaces of cuBLAS (rounds differently)".to_owned());
        }
        parts.extend(self.paged().map(PagedModule::described));
        match parts.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::new(),
        }
    }

    /// Code that checkpoints the modules, if there are some.
    pub fn checkpointing(&self) -> Option<&str> {
        self.recomputed.as_ref().map(|found| &*found.code)
    }

    /// The decision for a run on a simulated card.
    pub fn rehearsed(&self) -> Decision {
        let mut decision = Decision {
            early_gradients: self.early_gradients,
            loss_in_rows: self.loss_in_rows,
            host_state_bytes: self.host_state_bytes,
            activations_bytes: self.offloaded.map(|offloaded| [offloaded.budget_bytes, offloaded.of_bytes]),
            compiled_share: self.compiled_percent.map(|percent| f64::from(percent) / 100.0),
            rehearse: true,
            checkpoint: Vec::new(),
            described: String::new(),
            planned: String::new(),
        };
        for module in self.recomputed.iter().flat_map(|found| &found.modules) {
            match decision.checkpoint.iter_mut().find(|root| root.root == module.root) {
                Some(root) => root.modules.push(module.name.clone()),
                None => {
                    decision.checkpoint.push(Root { root: module.root.clone(), modules: vec![module.name.clone()] })
                }
            }
        }
        decision
    }

    /// The decision for the program itself, which takes this many bytes of the card.
    pub fn applied(&self, planned: u64) -> Decision {
        Decision { rehearse: false, described: self.described(), planned: size(planned), ..self.rehearsed() }
    }
}

/// The decision, as the agent reads it from `MEMLAB_FIT`.
#[derive(Clone, Debug, Serialize)]
pub struct Decision {
    early_gradients: bool,
    loss_in_rows: bool,
    host_state_bytes: u64,
    /// Most bytes of activations of an outermost module on the GPU, and the bytes of all.
    activations_bytes: Option<[u64; 2]>,
    /// Share of the activations that compiled graphs keep, from 0 to 1.
    compiled_share: Option<f64>,
    /// True for a run on a simulated card, which reports what would read the gradients.
    rehearse: bool,
    checkpoint: Vec<Root>,
    /// The changes and the size on the card, for messages about what they cost.
    described: String,
    planned: String,
}

/// Modules of one outermost module.
#[derive(Clone, Debug, Serialize)]
struct Root {
    root: String,
    modules: Vec<String>,
}
