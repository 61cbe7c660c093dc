//! The difference as JSON: a contract with scripts. Keys are added, never renamed or removed.

use std::io::{self, Write};
use std::sync::Arc;

use memlab_trace::{Scope, SearchView};
use serde::Serialize;

use super::change::Change;
use super::difference::Difference;
use super::holders::{HolderChange, HolderChanges};
use super::layers::LayerChange;
use super::lines::{LineChange, Match};
use super::side::Side;
use super::times::TimeDifference;
use crate::holders::HolderRow;
use memlab_base::json::parts::Range;
use memlab_base::json::write_pretty;

#[derive(Serialize)]
struct Diff {
    before: MomentJson,
    after: MomentJson,
    totals: Vec<ChangeJson>,
    categories: Vec<ChangeJson>,
    lines: Vec<LineRow<Bytes>>,
    /// The same memory by the innermost lines of the user's code or of a library.
    library_lines: Vec<LineRow<Bytes>>,
    /// The list that the text shows: `lines` or `library_lines`.
    lines_shown: &'static str,
    layers: Vec<LayerRow<Bytes>>,
    ranges: Vec<RangeRow>,
    /// Of the memory of the shown lines that grew; null: none grew, or neither trace has a search for holders.
    holders: Option<HoldersJson>,
    /// Over the whole runs, or their recorded steps; null: one run has no times, or both are the same run.
    gpu_time: Option<TimesJson>,
}

#[derive(Serialize)]
struct MomentJson {
    path: String,
    /// The moment as typed: `peak`, `end`, `oom:1`, `step:12`, `12.5s`.
    at: String,
    time_ns: u64,
    steps_ended: u64,
    /// Extent of `gpu_time`: `the whole run`, or `13 of 104 steps`.
    gpu_time_of: String,
    device: i32,
    device_name: String,
    command: Vec<String>,
    directory: String,
}

/// Total of allocated, reserved or used bytes, or of a category.
#[derive(Serialize)]
struct ChangeJson {
    name: &'static str,
    #[serde(flatten)]
    bytes: Bytes,
}

#[derive(Serialize)]
struct Bytes {
    before_bytes: u64,
    after_bytes: u64,
    change_bytes: i64,
}

#[derive(Serialize)]
struct Nanoseconds {
    before_ns: u64,
    after_ns: u64,
    change_ns: i64,
}

#[derive(Serialize)]
struct TimesJson {
    #[serde(flatten)]
    total: Nanoseconds,
    lines: Vec<LineRow<Nanoseconds>>,
    /// The same time by the innermost lines of the user's code or of a library.
    library_lines: Vec<LineRow<Nanoseconds>>,
    layers: Vec<LayerRow<Nanoseconds>>,
    /// Kernels, kinds of copies, and fills.
    kernels: Vec<KernelRow>,
}

#[derive(Serialize)]
struct KernelRow {
    name: String,
    #[serde(flatten)]
    figures: Nanoseconds,
}

#[derive(Serialize)]
struct LineRow<F> {
    /// Relative to the working directory of its run, if inside it; null with the other fields: no Python frame.
    file: Option<String>,
    function: Option<String>,
    line_before: Option<u32>,
    line_after: Option<u32>,
    /// `same`, `moved` (the same function at another line), or `only_before` and `only_after`.
    matched: &'static str,
    #[serde(flatten)]
    figures: F,
}

#[derive(Serialize)]
struct LayerRow<F> {
    /// The qualified name in the outermost module; null: outside any layer.
    name: Option<Arc<str>>,
    #[serde(rename = "type")]
    class: Option<Arc<str>>,
    root_type: Option<Arc<str>>,
    root_name: Option<Arc<str>>,
    #[serde(flatten)]
    figures: F,
}

#[derive(Serialize)]
struct HoldersJson {
    /// The search near each moment; null: there was none.
    search_before: Option<SearchJson>,
    search_after: Option<SearchJson>,
    rows: Vec<HolderChangeRow>,
}

#[derive(Serialize)]
struct SearchJson {
    time_ns: u64,
    steps_ended: u64,
}

#[derive(Serialize)]
struct HolderChangeRow {
    #[serde(flatten)]
    holder: HolderRow,
    /// Null: no search near that moment.
    before_bytes: Option<u64>,
    after_bytes: Option<u64>,
    change_bytes: Option<i64>,
}

#[derive(Serialize)]
struct RangeRow {
    #[serde(flatten)]
    range: Range,
    #[serde(flatten)]
    bytes: Bytes,
}

/// Writes the difference. Control characters in its texts are escaped.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_json(out: &mut impl Write, difference: &Difference) -> io::Result<()> {
    let row = |name: &'static str, change: Change| ChangeJson { name, bytes: change.into() };
    let diff = Diff {
        before: moment(&difference.before),
        after: moment(&difference.after),
        totals: difference.totals.iter().map(|(name, change)| row(name, *change)).collect(),
        categories: difference.categories.iter().map(|(category, change)| row(category.as_str(), *change)).collect(),
        lines: lines(&difference.lines[Scope::Users], difference),
        library_lines: lines(&difference.lines[Scope::Libraries], difference),
        lines_shown: difference.scope.as_str(),
        layers: difference.layers.iter().map(layer_row).collect(),
        ranges: difference
            .ranges
            .iter()
            .map(|change| RangeRow { range: Range { path: change.path.clone() }, bytes: change.bytes.into() })
            .collect(),
        holders: difference.holders.as_ref().map(holders_json),
        gpu_time: difference.times.as_ref().map(|times| times_json(times, difference)),
    };
    write_pretty(out, &diff)
}

fn moment(side: &Side) -> MomentJson {
    MomentJson {
        path: side.named.path.display().to_string(),
        at: side.named.moment.typed(),
        time_ns: side.time,
        steps_ended: side.steps_ended,
        gpu_time_of: side.work_part.clone(),
        device: side.device.index,
        device_name: side.device.name.clone(),
        command: side.command.clone(),
        directory: side.directory.clone(),
    }
}

fn holders_json(changes: &HolderChanges) -> HoldersJson {
    let search = |search: SearchView| SearchJson { time_ns: search.time, steps_ended: search.step };
    let row = |row: &HolderChange| HolderChangeRow {
        holder: row.holder.clone().into(),
        before_bytes: row.before,
        after_bytes: row.after,
        change_bytes: row.by(),
    };
    HoldersJson {
        search_before: changes.before.map(search),
        search_after: changes.after.map(search),
        rows: changes.rows.iter().map(row).collect(),
    }
}

fn times_json(times: &TimeDifference, difference: &Difference) -> TimesJson {
    TimesJson {
        total: times.total.into(),
        lines: lines(&times.lines[Scope::Users], difference),
        library_lines: lines(&times.lines[Scope::Libraries], difference),
        layers: times.layers.iter().map(layer_row).collect(),
        kernels: (times.kernels.iter())
            .map(|kernel| KernelRow { name: kernel.name.clone(), figures: kernel.change.into() })
            .collect(),
    }
}

fn layer_row<F: From<Change>>(change: &LayerChange) -> LayerRow<F> {
    LayerRow {
        name: change.layer.name.clone(),
        class: change.layer.class.clone(),
        root_type: change.layer.root_class.clone(),
        root_name: change.layer.root_name.clone(),
        figures: change.change.into(),
    }
}

fn lines<F: From<Change>>(lines: &[LineChange], difference: &Difference) -> Vec<LineRow<F>> {
    lines.iter().map(|line| line_row(line, difference)).collect()
}

fn line_row<F: From<Change>>(change: &LineChange, difference: &Difference) -> LineRow<F> {
    let line = change.after.as_ref().or(change.before.as_ref());
    LineRow {
        file: change.file(&difference.before, &difference.after),
        function: line.map(|line| line.function.to_string()),
        line_before: change.before.as_ref().and_then(|line| line.line),
        line_after: change.after.as_ref().and_then(|line| line.line),
        matched: match change.matched {
            Match::Same => "same",
            Match::Moved => "moved",
            Match::Alone if change.before.is_some() => "only_before",
            Match::Alone => "only_after",
        },
        figures: change.change.into(),
    }
}

impl From<Change> for Bytes {
    fn from(change: Change) -> Self {
        Self { before_bytes: change.before, after_bytes: change.after, change_bytes: change.by() }
    }
}

impl From<Change> for Nanoseconds {
    fn from(change: Change) -> Self {
        Self { before_ns: change.before, after_ns: change.after, change_ns: change.by() }
    }
}
