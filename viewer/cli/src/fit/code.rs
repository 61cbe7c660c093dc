//! The changes as code.

use memlab_predict::advice::OFFLOADED_STATE;
use memlab_units::format::size;

use super::changes::{Changes, WORKSPACES};
use crate::allocator_settings::AllocatorSettings;

const EARLY_GRADIENTS: &str = "\
from torch.optim.optimizer import register_optimizer_step_post_hook
def release_gradients(optimizer, *_):
    for group in optimizer.param_groups:
        for parameter in group[\"params\"]:
            parameter.grad = None
register_optimizer_step_post_hook(release_gradients)";

const LOSS_IN_ROWS: &str = "\
import torch.nn.functional as F
class CrossEntropyInRows(torch.autograd.Function):
    @staticmethod
    def forward(context, logits, target, rows):
        parts = zip(logits.split(rows), target.split(rows))
        column = -torch.cat([F.cross_entropy(*part, reduction=\"none\") for part in parts])
        context.save_for_backward(logits, target)
        context.rows, context.autocast = rows, torch.is_autocast_enabled(logits.device.type)
        return F.nll_loss(column.unsqueeze(1), torch.zeros_like(target).masked_fill(target == -100, -100))

    @staticmethod
    def backward(context, gradient):
        logits, target = context.saved_tensors
        gradient, found = gradient / (target != -100).sum(), torch.empty_like(logits)
        for part, goal, to in zip(*(tensor.split(context.rows) for tensor in (logits, target, found))):
            part = part.detach().requires_grad_()
            with torch.enable_grad(), torch.autocast(logits.device.type, enabled=context.autocast):
                losses = F.cross_entropy(part, goal, reduction=\"none\")
            to.copy_(torch.autograd.grad(losses, part, gradient.expand(len(part)))[0])
        return found, None, None
def cross_entropy(logits, target):  # call it in place of torch.nn.functional.cross_entropy
    return CrossEntropyInRows.apply(logits, target, max(256, len(logits) // 32))";

/// Returns Python code that makes the changes.
pub fn of(changes: &Changes, budget: u64, settings: &AllocatorSettings) -> String {
    let AllocatorSettings { variable, value } = settings;
    let mut parts = vec![
        format!(
            "# `memlab run --fit` needs no change of the program. This code does about the same.\n\
             # It takes no care of what changes a module's results in the second forward: BatchNorm, other state, caches.\n\
             # In the environment: {variable}={value}\nimport torch"
        ),
        format!(
            "# A bound on reserved memory: {}. PyTorch returns cached memory beyond it\n\
             total = torch.cuda.get_device_properties(0).total_memory\n\
             torch.cuda.set_per_process_memory_fraction({budget} / total)",
            size(budget)
        ),
    ];
    if changes.host_state_bytes > 0 {
        parts.push(format!("# Optimizer state on the host between steps\n{OFFLOADED_STATE}"));
    }
    if changes.early_gradients {
        parts.push(format!("# Early gradients\n{EARLY_GRADIENTS}"));
    }
    if changes.loss_in_rows {
        parts.push(format!("# The loss in rows\n{LOSS_IN_ROWS}"));
    }
    if let Some(percent) = changes.compiled_percent {
        parts.push(format!(
            "# Compiled graphs keep a share of their activations\nimport torch._functorch.config\n\
             torch._functorch.config.activation_memory_budget = {}",
            f64::from(percent) / 100.0
        ));
    }
    if changes.small_workspaces {
        let (name, value) = WORKSPACES;
        parts.push(format!("# Small workspaces, in the environment: {name}={value}"));
    }
    if let Some(offloaded) = changes.offloaded {
        parts.push(format!(
            "# Activations off the GPU: around the forward\nimport memlab\n\
             with memlab.offload_activations(budget={}):\n    ...",
            offloaded.budget_bytes
        ));
    }
    for module in changes.paged() {
        let (kind, budget) = (&module.class, module.budget_bytes);
        parts.push(format!(
            "# In place of the line that moves the {kind} to the GPU\nimport memlab\n\
             memlab.page(model, budget={budget}, on_change=\"upload\")"
        ));
    }
    if let Some(code) = changes.checkpointing() {
        parts.push(format!("# Checkpointed modules\n{code}"));
    }
    parts.join("\n\n")
}
