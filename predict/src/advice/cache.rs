//! Keys and values that models of Hugging Face keep for generating text, in training too.

use crate::advice::block_lifetimes::BlockLifetimes;

const NO_CACHE: &str = "model.config.use_cache = False\n";

/// The line of code without which they are kept, if a block was made by such a model; otherwise nothing.
pub(crate) fn switched_off(lifetimes: &BlockLifetimes<'_>, block: Option<u32>) -> &'static str {
    let recording = lifetimes.recording;
    let is_of_transformers = block.is_some_and(|id| {
        let frames = recording.model.frames(recording.allocations[id as usize].stack);
        frames.iter().any(|frame| frame.file.contains("/transformers/models/"))
    });
    if is_of_transformers { NO_CACHE } else { "" }
}
