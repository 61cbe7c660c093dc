//! Memory of the device, as a bar and a list that sum to the whole.

use memlab_trace::{Category, DeviceView};

use memlab_base::category::{LETTERS, bar_columns, category_index, category_names};
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
    let mut entry = |letter: &str, name: &str, bytes: &str, share: &str| {
        lines.push(format!("  {letter} {name:<18} {bytes:>9} {share:>7}").trim_end().to_owned());
    };
    let share = |bytes: u64| format::percent(bytes, sum);
    for (category, bytes) in &held {
        let name = match category {
            Category::Context if !device.process_is_known => "context, others",
            category => category_names(*category).0,
        };
        entry(LETTERS[category_index(*category)], name, &size(*bytes), &share(*bytes));
    }
    if shares.host_bytes > 0 {
        entry("-", "in host memory", &format!("-{}", size(shares.host_bytes)), "");
    }
    entry("=", "in use", &size(used), "");
    if device.total_bytes > 0 {
        entry(".", "free on the device", &size(free), "");
    }
    // The first row has the label for all.
    lines[1] += SHARE_OF;
    lines
}

/// Denominator of the shares of the categories.
pub(super) const SHARE_OF: &str = " of memory in use";

/// The letters of the categories; `.` for free memory.
fn bar(shares: &[(Category, u64)], whole: u64, columns: usize) -> String {
    let parts: Vec<u64> = shares.iter().map(|(_, bytes)| *bytes).collect();
    let parts = bar_columns(&parts, whole, columns);
    let letters =
        shares.iter().zip(parts).map(|((category, _), columns)| LETTERS[category_index(*category)].repeat(columns));
    format!("{:.<columns$}", letters.collect::<String>())
}
