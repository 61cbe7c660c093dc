//! Keys and values that Hugging Face models keep for text generation, also during training.

use crate::advice::block_lifetimes::BlockLifetimes;

const NO_CACHE: &str = "model.config.use_cache = False";

/// Returns the line of code that switches the cache off if such a model allocated the block, else an empty string.
pub(crate) fn switched_off(lifetimes: &BlockLifetimes<'_>, block: Option<u32>) -> &'static str {
    let recording = lifetimes.recording;
    let is_of_transformers = block.is_some_and(|id| {
        let frames = recording.model.frames(recording.allocations[id as usize].stack);
        frames.iter().any(|frame| frame.file.contains("/transformers/models/"))
    });
    if is_of_transformers { NO_CACHE } else { "" }
}
