//! Where the device's memory is, as a bar and a list that sum to the whole.

use memlab_trace::{Category, CategoryView, DeviceView};

use crate::format::{self, Units};
use crate::theme::{category_index, category_names};

/// One letter for each category.
pub(super) const LETTERS: [char; 12] = ['P', 'G', 'O', 'B', 'A', 'I', 'T', 'W', 'c', 'x', 'o', '?'];

/// The bar, the categories under it, what is free, and the sum.
pub(super) fn lines(device: &DeviceView, categories: &[CategoryView], columns: usize) -> Vec<String> {
    let shares: Vec<(Category, u64)> =
        categories.iter().map(|view| (view.category, view.bytes_at_peak)).filter(|(_, bytes)| *bytes > 0).collect();
    let used = shares.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    // What a device has is known only by the driver's word; without it, the bar is what was in use.
    let whole = device.total_bytes.max(used);
    let free = whole - used;
    let size = |bytes| format::bytes(bytes, Units::Auto);
    let mut lines = vec![format!("  [{}]", bar(&shares, whole, columns.saturating_sub(4).min(100)))];
    let mut entry = |letter: char, name: &str, bytes: u64| {
        lines.push(format!("  {letter} {name:<17} {:>9} {:>7}", size(bytes), format::percent(bytes, whole)));
    };
    for (category, bytes) in &shares {
        let name = match category {
            Category::Context if !device.process_is_known => "context, others",
            category => category_names(*category).0,
        };
        entry(LETTERS[category_index(*category)], name, *bytes);
    }
    if free > 0 {
        entry('.', "free", free);
    }
    entry('=', if device.total_bytes > 0 { "the device's" } else { "in use" }, whole);
    lines
}

/// For each column the letter of what lies at its middle; `.` where nothing does.
fn bar(shares: &[(Category, u64)], whole: u64, columns: usize) -> String {
    let mut parts = shares.iter();
    let mut part = parts.next();
    // The end of the part at hand, in the same 128 bits in which columns are multiplied by bytes.
    let mut end = part.map_or(0, |(_, bytes)| u128::from(*bytes));
    let mut bar = String::with_capacity(columns);
    for column in 0..columns {
        let middle = (2 * column as u128 + 1) * u128::from(whole) / (2 * columns as u128);
        while part.is_some() && middle >= end {
            part = parts.next();
            end += part.map_or(0, |(_, bytes)| u128::from(*bytes));
        }
        bar.push(part.map_or('.', |(category, _)| LETTERS[category_index(*category)]));
    }
    bar
}
