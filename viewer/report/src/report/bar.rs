//! Memory of the device, as a bar and a list that sum to the whole.

use memlab_trace::{Category, DeviceView};

use memlab_base::category::{LETTERS, category_index, category_names};
use memlab_units::format::{self, size};

/// Memory of the categories at a moment.
pub(super) struct Shares<'h> {
    /// Bytes by category.
    pub(super) held: &'h [(Category, u64)],
    /// Part of it in host memory.
    pub(super) host_bytes: u64,
}

/// The bar, the categories below it, the free memory, and the sum.
pub(super) fn lines(device: &DeviceView, shares: &Shares<'_>, columns: usize) -> Vec<String> {
    let held: Vec<(Category, u64)> = shares.held.iter().copied().filter(|(_, bytes)| *bytes > 0).collect();
    let sum = held.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let used = sum.saturating_sub(shares.host_bytes);
    // Only the driver knows the size of a device. Without it, the whole is the memory in use.
    let whole = device.total_bytes.max(used);
    let free = whole - used;
    let mut lines = vec![format!("  [{}]", bar(&held, whole.max(sum), columns.saturating_sub(4).min(100)))];
    let mut entry = |letter: &str, name: &str, bytes: &str, part: u64| {
        lines.push(format!("  {letter} {name:<17} {bytes:>9} {:>7}", format::percent(part, whole)));
    };
    for (category, bytes) in &held {
        let name = match category {
            Category::Context if !device.process_is_known => "context, others",
            category => category_names(*category).0,
        };
        entry(LETTERS[category_index(*category)], name, &size(*bytes), *bytes);
    }
    if shares.host_bytes > 0 {
        entry("-", "in host memory", &format!("-{}", size(shares.host_bytes)), shares.host_bytes);
    }
    if free > 0 {
        entry(".", "free", &size(free), free);
    }
    entry("=", if device.total_bytes > 0 { "device total" } else { "in use" }, &size(whole), whole);
    // The first row has the label for all.
    lines[1] += &format!(" {}", whole_of(device));
    lines
}

/// Denominator of the shares of a device's memory.
pub(super) fn whole_of(device: &DeviceView) -> &'static str {
    if device.total_bytes > 0 { "of the device" } else { "of memory in use" }
}

/// For each column, the letter of the category at its middle; `.` without one.
fn bar(shares: &[(Category, u64)], whole: u64, columns: usize) -> String {
    let mut parts = shares.iter();
    let mut part = parts.next();
    // End of the current part, in 128 bits for the product of columns and bytes.
    let mut end = part.map_or(0, |(_, bytes)| u128::from(*bytes));
    let mut bar = String::with_capacity(columns);
    for column in 0..columns {
        let middle = (2 * column as u128 + 1) * u128::from(whole) / (2 * columns as u128);
        while part.is_some() && middle >= end {
            part = parts.next();
            end += part.map_or(0, |(_, bytes)| u128::from(*bytes));
        }
        bar.push_str(part.map_or(".", |(category, _)| LETTERS[category_index(*category)]));
    }
    bar
}
