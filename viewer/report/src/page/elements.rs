//! Pieces of HTML that the parts of a page share.

use memlab_trace::DeviceView;

use memlab_base::text::{fit_end, markup};
pub use memlab_units::format::{counted as plural, size};

/// The longest name shown, in columns.
pub(crate) const MAX_NAME_COLUMNS: usize = 120;

/// A name out of a trace, cut to a length and escaped.
pub fn name(text: &str) -> String {
    markup(&fit_end(text, MAX_NAME_COLUMNS, "…")).into_owned()
}

/// `width:12.34%`, of what may be larger than a number can count.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// What a device is called: `cuda:0`.
pub fn short_name(device: &DeviceView) -> String {
    format!("cuda:{}", device.index)
}
