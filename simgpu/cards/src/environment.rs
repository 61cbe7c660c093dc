//! Sizes from environment variables.

/// The size in an environment variable, or `default` if it is not set. An invalid size is reported on stderr.
pub fn size_from(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return default };
    memlab_sizes::parse(&text).unwrap_or_else(|error| {
        eprintln!("simgpu: {variable}: {error}; using {}", memlab_sizes::format(default));
        default
    })
}
