//! Environment variables: `SIMGPU_CARD`, and sizes.

use crate::model::Model;
use crate::models::DEFAULT;
use crate::naming::find;

/// Returns the card that `SIMGPU_CARD` names, or the default one. An unknown name is reported on stderr.
pub(crate) fn model() -> Model {
    let Ok(text) = std::env::var("SIMGPU_CARD") else { return DEFAULT };
    find(&text).unwrap_or_else(|error| {
        eprintln!("simgpu: SIMGPU_CARD: {error}; using the default card");
        DEFAULT
    })
}

/// Returns the size in an environment variable, or `default` if it is not set. An invalid size is reported on stderr.
pub fn size_from(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return default };
    memlab_units::parse_size(&text).unwrap_or_else(|error| {
        eprintln!("simgpu: {variable}: {error}; using {}", memlab_units::format::size(default));
        default
    })
}
