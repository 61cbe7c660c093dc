//! Names of the memory categories, and the categories that apply to blocks.

use std::cmp::Reverse;

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
        Category::Cached => ("cached", "cached"),
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

/// Columns of each part of a bar. Equal parts get equal columns, and every part gets at least one.
///
/// `whole`: bytes of all columns; the rest of them is free.
pub fn bar_columns(parts: &[u64], whole: u64, columns: usize) -> Vec<usize> {
    let nonzero = parts.iter().filter(|bytes| **bytes > 0).count();
    if whole == 0 || columns < nonzero {
        // No room for each: the largest ones.
        let mut largest: Vec<usize> = (0..parts.len()).collect();
        largest.sort_by_key(|index| Reverse(parts[*index]));
        largest.truncate(if whole > 0 { columns } else { 0 });
        return (0..parts.len()).map(|index| usize::from(largest.contains(&index))).collect();
    }
    let share = |bytes: u64| u128::from(bytes) * columns as u128 * 2 / u128::from(whole);
    let mut shares: Vec<usize> = parts
        .iter()
        .map(|bytes| (share(*bytes).div_ceil(2) as usize).clamp(usize::from(*bytes > 0), columns))
        .collect();
    // The widest parts absorb the excess, and without free memory the deficit: there it is least visible.
    let sum = parts.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    // Free memory of at least half a column keeps one.
    let free_columns = usize::from(share(whole.saturating_sub(sum)) > 0);
    let most = (columns - free_columns).max(nonzero);
    while shares.iter().sum::<usize>() > most
        && let Some(widest) = shares.iter_mut().max()
    {
        *widest -= 1;
    }
    while sum >= whole
        && shares.iter().sum::<usize>() < columns
        && let Some(widest) = shares.iter_mut().max()
    {
        *widest += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_every_part() {
        // Free memory takes what is left.
        assert_eq!(bar_columns(&[50, 1, 24], 100, 100), [50, 1, 24]);
        assert_eq!(bar_columns(&[145, 145, 1, 600], 1000, 20), [3, 3, 1, 12]);
        // Without free memory the widest part does.
        assert_eq!(bar_columns(&[145, 145, 1, 709], 1000, 20), [3, 3, 1, 13]);
        assert_eq!(bar_columns(&[1, 1, 1], 3, 10), [3, 3, 4]);
        assert_eq!(bar_columns(&[u64::MAX, u64::MAX], u64::MAX, 7), [4, 3]);
        assert_eq!(bar_columns(&[5, 0], 0, 3), [0, 0]);
        assert_eq!(bar_columns(&[5, 9, 1, 7], 100, 2), [0, 1, 0, 1]);
        assert_eq!(bar_columns(&[5, 5, 5], 100, 2), [1, 1, 0]);
        // Free memory does not vanish beside many small parts.
        assert_eq!(bar_columns(&[1, 1, 1, 1, 900], 1000, 20).iter().sum::<usize>(), 19);
        assert!(bar_columns(&[], 5, 3).is_empty());
    }

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
