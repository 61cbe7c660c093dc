//! Settings of PyTorch's allocator.

/// The allocator setting that keeps reserved memory close to allocated memory.
const EXPANDABLE: &str = "expandable_segments:True";

/// Settings of the allocator with which the program runs.
#[derive(Clone)]
pub struct AllocatorSettings {
    /// The variable that has them.
    pub variable: &'static str,
    pub value: String,
}

impl AllocatorSettings {
    /// The settings of this environment, with expandable segments.
    pub fn today() -> AllocatorSettings {
        let names = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
        let set =
            names.into_iter().find_map(|name| Some((name, std::env::var(name).ok().filter(|text| !text.is_empty())?)));
        match set {
            Some((variable, value)) if value.contains("expandable_segments") => AllocatorSettings { variable, value },
            Some((variable, value)) => AllocatorSettings { variable, value: format!("{value},{EXPANDABLE}") },
            None => AllocatorSettings { variable: "PYTORCH_CUDA_ALLOC_CONF", value: EXPANDABLE.to_owned() },
        }
    }
}
