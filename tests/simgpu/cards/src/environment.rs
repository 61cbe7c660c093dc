//! Sizes that the environment gives.

/// The size in a variable, or `default` where it is not set. What is not a size is said on stderr.
pub fn size_from(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return default };
    memlab_sizes::parse(&text).unwrap_or_else(|error| {
        eprintln!("simgpu: {variable}: {error}; using {}", memlab_sizes::format(default));
        default
    })
}
