//! Names of the memory categories, and the categories that apply to blocks.

use memlab_trace::Category;

/// One letter per category, in the order of [`Category::ALL`], for bars without colour.
pub const LETTERS: [&str; Category::COUNT] =
    ["P", "G", "O", "B", "K", "A", "I", "T", "g", "r", "d", "N", "W", "a", "k", "b", "c", "n", "x", "o", "?"];

/// Categories of blocks. Memory of the other categories is not in blocks.
pub const BLOCK_CATEGORIES: [Category; 16] = [
    Category::Parameter,
    Category::Gradient,
    Category::OptimizerState,
    Category::Buffer,
    Category::KvCache,
    Category::Activation,
    Category::Input,
    Category::Temporary,
    Category::Gathered,
    Category::ReduceScatter,
    Category::DdpBucket,
    Category::Communication,
    Category::Workspace,
    Category::Benchmark,
    Category::BeforeMemlab,
    Category::Other,
];

/// Index of a category in [`Category::ALL`].
pub fn category_index(category: Category) -> usize {
    Category::ALL.iter().position(|other| *other == category).unwrap_or(0)
}

/// Name of a category on the screen, and a short name for a bar.
pub fn category_names(category: Category) -> (&'static str, &'static str) {
    match category {
        Category::Parameter => ("parameters", "param"),
        Category::Gradient => ("gradients", "grad"),
        Category::OptimizerState => ("optimizer state", "optim"),
        Category::Buffer => ("buffers", "buf"),
        Category::KvCache => ("KV cache", "kv"),
        Category::Activation => ("activations", "activ"),
        Category::Input => ("inputs", "input"),
        Category::Temporary => ("temporary", "temp"),
        Category::Gathered => ("all-gathered", "gather"),
        Category::ReduceScatter => ("reduce-scatter", "reduce"),
        Category::DdpBucket => ("DDP buckets", "bucket"),
        Category::Communication => ("communication", "comm"),
        Category::Workspace => ("workspaces", "work"),
        Category::OtherArrays => ("other arrays", "arrays"),
        Category::Benchmark => ("benchmarks", "bench"),
        Category::BeforeMemlab => ("before memlab", "before"),
        Category::Cached => ("cached, free", "cached"),
        Category::Nccl => ("NCCL", "nccl"),
        Category::Context => ("CUDA context", "ctx"),
        Category::OtherProcesses => ("other processes", "others"),
        Category::Other => ("other", "other"),
    }
}

/// Typed names of the block categories, separated by commas.
pub fn category_list() -> String {
    BLOCK_CATEGORIES.map(Category::as_str).join(", ")
}

/// Parses the name of a block category: `optimizer_state`, `optimizer state`, `parameters`.
///
/// # Errors
///
/// A message that lists all names, if no category has this one.
pub fn parse_category(text: &str) -> Result<Category, String> {
    let plain = |text: &str| text.trim().to_lowercase().replace([' ', '-'], "_");
    let name = plain(text);
    let has_name = |category: &&Category| {
        [category.as_str(), category_names(**category).0].iter().any(|other| plain(other) == name)
    };
    BLOCK_CATEGORIES.iter().find(has_name).copied().ok_or_else(|| format!("expected one of {}", category_list()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_have_names() {
        for name in ["optimizer_state", "Optimizer State", "optimizer-state"] {
            assert_eq!(parse_category(name), Ok(Category::OptimizerState));
        }
        assert_eq!(parse_category("parameters"), Ok(Category::Parameter));
        assert_eq!(parse_category("other"), Ok(Category::Other));
        assert!(parse_category("cached").unwrap_err().contains("optimizer_state, buffer"));
    }
}
