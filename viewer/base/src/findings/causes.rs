//! Memory whose cause is a call of a library, with the argument that avoids it.

use memlab_trace::{Category, Framework, Model, OomView};
use memlab_units::format::size;

/// Memory below one part of this number of the allocated bytes is not the cause.
const MIN_DIVISOR: u64 = 10;
/// Stacks of the peak are those of the error if at least this part of the peak was allocated at it.
const NEAR_PEAK_PERCENT: u64 = 90;

/// Cure of memory that these stacks allocated, with the bytes of each; `None`: the library has no part in it.
pub(super) fn cure_of_stacks(model: &Model, bytes_by_stack: &[(u32, u64)]) -> Option<&'static str> {
    let all = bytes_by_stack.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let cures: [(Habit, &'static str); 2] =
        [(Model::collects_logits, COLLECTED_LOGITS), (Model::makes_attention_weights, ATTENTION_WEIGHTS)];
    let most = |is_it: &Habit| bytes_of(bytes_by_stack, |stack| is_it(model, stack)) > all / 2;
    cures.iter().find(|(is_it, _)| most(is_it)).map(|(_, cure)| *cure)
}

type Habit = fn(&Model, u32) -> bool;

const COLLECTED_LOGITS: &str = "Move the logits of the evaluation to the host after a few batches: \
     `TrainingArguments(eval_accumulation_steps=8)`. If the metrics need less than the logits, pass a function that computes it \
     to the Trainer as preprocess_logits_for_metrics.";
const ATTENTION_WEIGHTS: &str = "Pass need_weights=False to the calls of nn.MultiheadAttention, unless the program reads the \
     weights: attention then does not compute them.";

fn bytes_of(bytes_by_stack: &[(u32, u64)], is_it: impl Fn(u32) -> bool) -> u64 {
    bytes_by_stack.iter().filter(|(stack, _)| is_it(*stack)).fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}

/// The loop of a framework that ran out of memory.
pub struct FailedLoop {
    framework: Option<Framework>,
    is_evaluation: bool,
    is_checkpointable: bool,
    /// True if the results of an evaluation are the growing memory, and the inputs.
    collects_logits: bool,
}

/// Cures of an out-of-memory error by calls of libraries, and the loop in which it happened.
pub(super) fn of_error(model: &Model, oom: &OomView) -> (Vec<String>, FailedLoop) {
    let stacks = model.stacks(oom.device);
    let peak = model.device(oom.device).map_or(0, |device| device.peak_allocated_bytes);
    let is_near_peak = oom.allocated_bytes >= peak / 100 * NEAR_PEAK_PERCENT;
    let mut held: Vec<(u32, u64)> = vec![(oom.stack, oom.requested_bytes)];
    if is_near_peak {
        held.extend(stacks.iter().map(|view| (view.stack, view.live_bytes_at_peak)));
    }
    let cure = |is_it: Habit, text: &str| {
        let bytes = bytes_of(&held, |stack| is_it(model, stack));
        (bytes > oom.allocated_bytes / MIN_DIVISOR).then(|| text.to_owned())
    };
    let logits = cure(Model::collects_logits, COLLECTED_LOGITS);
    let weights = cure(Model::makes_attention_weights, ATTENTION_WEIGHTS);
    let failed = FailedLoop {
        collects_logits: logits.is_some(),
        framework: model.framework(oom.device, [(oom.stack, 1)].into_iter()),
        is_evaluation: model.evaluates_in_trainer(oom.stack),
        is_checkpointable: stacks.iter().any(|view| model.is_checkpointable_by_transformers(view.stack)),
    };
    (logits.into_iter().chain(weights).collect(), failed)
}

impl FailedLoop {
    /// True if a cure of the library covers growing lines and inputs.
    pub(super) fn is_growth_explained(&self) -> bool {
        self.collects_logits
    }

    /// Advice to shrink a category, in the terms of the framework; `{}` stands for its bytes. `None`: there are none.
    pub(super) fn by_category(&self, category: Category, bytes: u64) -> Option<String> {
        let way = match (self.framework?, category) {
            (Framework::Transformers, Category::Activation | Category::Temporary) if self.is_evaluation => {
                "in the evaluation, halve per_device_eval_batch_size."
            }
            (Framework::Transformers, Category::Activation) if self.is_checkpointable => {
                "halve per_device_train_batch_size and double gradient_accumulation_steps, or recompute them: \
                 `TrainingArguments(gradient_checkpointing=True)`, or keep many in 16 bits: `TrainingArguments(bf16=True)`."
            }
            (Framework::Transformers, Category::Activation) => {
                "halve per_device_train_batch_size and double gradient_accumulation_steps, or keep many in 16 bits: \
                 `TrainingArguments(bf16=True)`."
            }
            (Framework::Lightning, Category::Activation) => {
                "halve the batch of the DataLoader and double accumulate_grad_batches (by default 1): \
                 `Trainer(accumulate_grad_batches=2)`, or keep many in 16 bits: `Trainer(precision=\"bf16-mixed\")`."
            }
            (Framework::Accelerate, Category::Activation) => {
                "halve the batch of the DataLoader and double gradient_accumulation_steps (by default 1): \
                 `Accelerator(gradient_accumulation_steps=2)`, or keep many in 16 bits: \
                 `Accelerator(mixed_precision=\"bf16\")`."
            }
            (Framework::Transformers, Category::OptimizerState) => {
                "use a factored optimizer: `TrainingArguments(optim=\"adafactor\")`, or shard it among ranks (ZeRO, FSDP)."
            }
            _ => return None,
        };
        let name = if category == Category::OptimizerState { "Optimizer state holds" } else { "Activations hold" };
        let name = if category == Category::Temporary { "Temporaries hold" } else { name };
        Some(format!("{name} {}: {way}", size(bytes)))
    }
}
