//! Holders of memory: printed, and in JSON.

use memlab_trace::HeldView;
use serde::Serialize;

use memlab_base::file_names::FileNames;
use memlab_base::findings::holder::{HolderView, holders};
use memlab_base::text::{clean, wrapped};
use memlab_units::format::{self, size};

/// The holders of the memory of a device, in JSON.
#[derive(Serialize)]
pub struct DeviceRow {
    device: i32,
    /// Time of the search, and optimizer steps that had ended.
    time_ns: u64,
    step: u64,
    /// Time for which the program stood still.
    pause_ns: u64,
    allocated_bytes: u64,
    /// Bytes that no Python object leads to.
    unreached_bytes: u64,
    holders: Vec<HolderRow>,
}

/// An object or names that keep memory alive, in JSON.
#[derive(Serialize)]
pub(crate) struct HolderRow {
    /// The names; several if only their release together frees the memory.
    path: Vec<String>,
    kind: &'static str,
    /// File and line that store it; empty if unknown.
    place: String,
    /// Bytes in question that it keeps.
    bytes: u64,
    /// Bytes that its release frees.
    releases: u64,
    blocks: usize,
    cure: String,
}

impl From<HolderView> for HolderRow {
    fn from(holder: HolderView) -> Self {
        let HolderView { paths, kind, place, bytes, releases, blocks, cure, .. } = holder;
        Self { path: paths, kind, place, bytes, releases, blocks, cure }
    }
}

impl DeviceRow {
    /// Returns the holders that a search found on a device.
    #[must_use]
    pub fn of(device: i32, held: &HeldView, files: &FileNames) -> Self {
        Self {
            device,
            time_ns: held.time,
            step: held.step,
            pause_ns: held.pause_ns,
            allocated_bytes: held.bytes,
            unreached_bytes: held.explanation.unreached,
            holders: holders(held, files).into_iter().map(HolderRow::from).collect(),
        }
    }
}

/// Returns the holders that a search found on a device, as text.
///
/// `row`: the line or layer whose memory they hold, with the cure of each. Without it, they hold all memory, and only a
/// holder that the program hardly wants has its cure.
#[must_use]
pub fn lines(device: i32, held: &HeldView, row: Option<&str>, files: &FileNames, columns: usize) -> Vec<String> {
    let of = row.map(|row| format!(" of {row}")).unwrap_or_default();
    let at = format!("{}, at {}", format::step_reached(held.step), format::duration(held.time));
    let heading = format!("{}{of} allocated {at}", size(held.bytes));
    let mut lines = wrapped(&format!("cuda:{device}:"), &clean(&heading), columns);
    for holder in holders(held, files) {
        let bytes = format!("{:>10}", size(holder.bytes));
        lines.extend(wrapped(&bytes, &clean(&holder.what.text()), columns));
        let cure = if row.is_some() || holder.is_avoidable { format!(": {}", holder.cure) } else { String::new() };
        let release = format!("its release frees {}{cure}", size(holder.releases));
        lines.extend(wrapped("          ", &clean(&release), columns));
    }
    if held.explanation.unreached > 0 {
        let bytes = format!("{:>10}", size(held.explanation.unreached));
        lines.extend(wrapped(&bytes, "no Python object: temporary results, libraries, C++", columns));
    }
    lines
}
