//! Training frameworks, and costly habits of libraries, found by the functions on the stacks of allocations.
//!
//! An import leaves nothing on a stack: a program has a framework only where the framework's loop calls its code.

use super::process_state::Model;

/// A framework whose loop calls the program's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// `transformers.Trainer` of Hugging Face.
    Transformers,
    /// `lightning.Trainer`.
    Lightning,
    /// `accelerate.Accelerator`, with the program's own loop.
    Accelerate,
}

/// Calls on a stack, innermost first: the function without its class, empty for any, and the end of the file.
type Calls = &'static [(&'static str, &'static str)];

/// The loop of each framework.
const LOOPS: [(Framework, Calls); 6] = [
    (Framework::Transformers, &[("", "/transformers/trainer.py")]),
    (Framework::Lightning, &[("", "/lightning/pytorch/trainer/trainer.py")]),
    (Framework::Lightning, &[("", "/pytorch_lightning/trainer/trainer.py")]),
    (Framework::Accelerate, &[("", "/accelerate/optimizer.py")]),
    (Framework::Accelerate, &[("backward", "/accelerate/accelerator.py")]),
    (Framework::Accelerate, &[("prepare_model", "/accelerate/accelerator.py")]),
];
const COLLECTED_LOGITS: Calls =
    &[("add", "/transformers/trainer_pt_utils.py"), ("evaluation_loop", "/transformers/trainer.py")];
const EVALUATION: Calls = &[("evaluation_loop", "/transformers/trainer.py")];
const ATTENTION: Calls = &[("multi_head_attention_forward", "/torch/nn/functional.py")];
const ATTENTION_WEIGHTS: Calls =
    &[("softmax", "/torch/nn/functional.py"), ("multi_head_attention_forward", "/torch/nn/functional.py")];
/// A layer for which Transformers can switch checkpointing on, in its versions.
const CHECKPOINTABLE: [Calls; 2] = [
    &[("forward_with_checkpointing", "/transformers/modeling_layers.py")],
    &[("__call__", "/transformers/modeling_layers.py")],
];

impl Model {
    /// Returns the framework whose loop made most of these bytes; `None`: none did, or its calls are not on the stacks.
    ///
    /// Accelerate's programs call their models themselves. It is their framework if it moved the model to the device, or if
    /// its optimizer or its backward allocated.
    pub fn framework(&self, device: i32, bytes_by_stack: impl Iterator<Item = (u32, u64)>) -> Option<Framework> {
        let mut sums: Vec<(Option<Framework>, u64)> = Vec::new();
        for (stack, bytes) in bytes_by_stack {
            let framework = self.framework_on(stack);
            match sums.iter_mut().find(|(known, _)| *known == framework) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => sums.push((framework, bytes)),
            }
        }
        let most = sums.iter().max_by_key(|(_, bytes)| *bytes)?.0;
        most.or_else(|| {
            let is_accelerate = |stack: u32| self.framework_on(stack) == Some(Framework::Accelerate);
            self.stacks(device).iter().any(|view| is_accelerate(view.stack)).then_some(Framework::Accelerate)
        })
    }

    /// Returns the framework of the loop on a stack. The loop of a Trainer may call Accelerate's functions.
    fn framework_on(&self, stack: u32) -> Option<Framework> {
        LOOPS.iter().find(|(_, calls)| self.has_calls(stack, calls)).map(|(framework, _)| *framework)
    }

    /// True if the Trainer of Transformers collected the results of its evaluation on the GPU there.
    pub fn collects_logits(&self, stack: u32) -> bool {
        self.has_calls(stack, COLLECTED_LOGITS)
    }

    /// True if the Trainer of Transformers evaluated there.
    pub fn evaluates_in_trainer(&self, stack: u32) -> bool {
        self.has_calls(stack, EVALUATION)
    }

    /// True if `nn.MultiheadAttention` allocated the weights that it returns there.
    pub fn makes_attention_weights(&self, stack: u32) -> bool {
        self.has_calls(stack, ATTENTION_WEIGHTS)
    }

    /// True if `nn.MultiheadAttention` allocated there.
    pub fn is_of_attention(&self, stack: u32) -> bool {
        self.has_calls(stack, ATTENTION)
    }

    /// True if a layer allocated there for which Transformers can switch checkpointing on.
    pub fn is_checkpointable_by_transformers(&self, stack: u32) -> bool {
        CHECKPOINTABLE.iter().any(|calls| self.has_calls(stack, calls))
    }

    /// True if all of these calls are on a stack, in this order.
    fn has_calls(&self, stack: u32, calls: Calls) -> bool {
        let mut wanted = calls.iter().peekable();
        for frame in self.symbols.climb(stack) {
            let name = frame.line.function.rsplit('.').next().unwrap_or_default();
            let is_it = |(function, file): &&(&str, &str)| {
                let is_named = if function.is_empty() { name != "<module>" } else { name == *function };
                is_named && frame.line.file.ends_with(file)
            };
            wanted.next_if(is_it);
        }
        wanted.peek().is_none()
    }
}
