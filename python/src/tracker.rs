//! Answers of `memlab.tracker` and `memlab.watch`, as plain tuples.
//!
//! The package gives them names.

use std::time::{SystemTime, UNIX_EPOCH};

use memlab_trace::{BlockView, LayerView, LineView, Model, TimelinePoint};
use pyo3::prelude::*;

use crate::live_books;

/// File, line, function and text of a line; all None: no Python frame.
type SourceLine = (Option<String>, Option<u32>, Option<String>, Option<String>);
/// A line: its place, then live, at_peak, peak, allocated, allocations, blocks, backward.
type LineRow = (Option<String>, Option<u32>, Option<String>, Option<String>, u64, u64, u64, u64, u64, u64, u64);
/// Root, name and class of a layer, then live, at_peak, parameters, gradients, optimizer_state, buffers, activations.
type LayerRow = (Option<String>, Option<String>, Option<String>, u64, u64, u64, u64, u64, u64, u64);
/// Address, nbytes, category, file, line, function, layer, phase.
type BlockRow = (u64, u64, &'static str, Option<String>, Option<u32>, Option<String>, Option<String>, &'static str);
/// A line of a watched block: its place, then at_start, at_peak, at_end, allocated, kept.
type WatchedLineRow = (Option<String>, Option<u32>, Option<String>, Option<String>, u64, u64, u64, u64, u64);
/// A layer of a watched block: root, name and class, then at_start, at_peak, at_end.
type WatchedLayerRow = (Option<String>, Option<String>, Option<String>, u64, u64, u64);

/// A point of a watched block's timeline: nanoseconds since its start; allocated: least, most, last; the most reserved.
type PointRow = (u64, u64, u64, u64, u64);

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Runs without the GIL, because reading the backlog may take long.
fn with_books<T>(py: Python, look: impl FnOnce(&mut memlab_live::Books) -> T + Send) -> Option<T>
where
    T: Send,
{
    py.detach(|| live_books::current().map(|mut live| look(&mut live.books)))
}

#[pyfunction]
pub fn books_start(py: Python) {
    py.detach(live_books::start);
}

#[pyfunction]
pub fn books_stop(py: Python) {
    py.detach(live_books::stop);
}

#[pyfunction]
pub fn books_active() -> bool {
    live_books::is_active()
}

/// Reason why the recording cannot be read; None: it can.
#[pyfunction]
pub fn books_error() -> Option<String> {
    live_books::unread()?.books.error().map(ToString::to_string)
}

/// Allocated, reserved, used, peak allocated, peak reserved.
#[pyfunction]
pub fn totals(device: i32) -> (u64, u64, u64, u64, u64) {
    // Holds the GIL, because releasing it costs more than this usually takes. The thread processes a long backlog.
    let Some(live) = live_books::current() else { return (0, 0, 0, 0, 0) };
    let (now, most) = (live.books.model().totals(device), live.books.model().peaks(device));
    (now.allocated_bytes, now.reserved_bytes, now.used_bytes, most.allocated_bytes, most.reserved_bytes)
}

/// Allocated, reserved, used, seconds since the recording began, and optimizer steps, at the peak.
#[pyfunction]
pub fn peak(py: Python, device: i32) -> (u64, u64, u64, f64, u64) {
    let view = with_books(py, |books| books.model().device(device)).flatten().unwrap_or_default();
    let time_s = view.peak_time as f64 / 1e9;
    (view.peak_allocated_bytes, view.reserved_bytes_at_peak, view.used_bytes_at_peak, time_s, view.peak_step)
}

/// Resets the peaks of a device, or of all devices with None.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub fn reset_peak(py: Python, device: Option<i32>) {
    with_books(py, |books| books.reset_peaks(device));
}

/// Seconds from the start of the recording to its latest event.
#[pyfunction]
pub fn latest_time(py: Python) -> f64 {
    with_books(py, |books| books.model().time()).unwrap_or(0) as f64 / 1e9
}

/// Number of missing events.
///
/// They came faster than the recording could be kept small.
#[pyfunction]
pub fn lost_events(py: Python) -> u64 {
    with_books(py, |books| books.model().lost_events()).unwrap_or(0)
}

/// Indices of the devices seen.
#[pyfunction]
pub fn devices(py: Python) -> Vec<i32> {
    with_books(py, |books| books.model().devices().iter().map(|device| device.index).collect()).unwrap_or_default()
}

/// Name of a device and its memory in bytes; None and 0 if the driver was not queried.
#[pyfunction]
pub fn device_facts(py: Python, device: i32) -> (Option<String>, u64) {
    let view = with_books(py, |books| books.model().device(device)).flatten().unwrap_or_default();
    ((!view.name.is_empty()).then_some(view.name), view.total_bytes)
}

#[pyfunction]
pub fn lines(py: Python, device: i32) -> Vec<LineRow> {
    let rows = with_books(py, |books| {
        let model = books.model();
        let mut lines = model.lines(device);
        lines.sort_by(|a, b| {
            (b.live_bytes, b.live_bytes_at_peak, &a.line).cmp(&(a.live_bytes, a.live_bytes_at_peak, &b.line))
        });
        lines.iter().map(|view| line_row(view, model)).collect()
    });
    rows.unwrap_or_default()
}

fn line_row(view: &LineView, model: &Model) -> LineRow {
    let (file, line, function, text) = place(view, model);
    (
        file,
        line,
        function,
        text,
        view.live_bytes,
        view.live_bytes_at_peak,
        view.peak_live_bytes,
        view.allocated_bytes,
        view.allocations,
        view.live_blocks,
        view.backward_bytes,
    )
}

fn place(view: &LineView, model: &Model) -> SourceLine {
    match &view.line {
        None => (None, None, None, None),
        Some(line) => {
            let text = line
                .line
                .and_then(|number| model.sources().line(&line.file, number))
                .map(|text| text.trim().to_owned());
            (Some(line.file.to_string()), line.line, Some(line.function.to_string()), text)
        }
    }
}

#[pyfunction]
pub fn layers(py: Python, device: i32) -> Vec<LayerRow> {
    let rows = with_books(py, |books| {
        let mut layers = books.model().layers(device);
        layers.sort_by_key(|layer| std::cmp::Reverse((layer.live_bytes, layer.live_bytes_at_peak)));
        layers.iter().map(layer_row).collect()
    });
    rows.unwrap_or_default()
}

fn layer_row(view: &LayerView) -> LayerRow {
    let (root, name, class) = layer_names(view);
    (
        root,
        name,
        class,
        view.live_bytes,
        view.live_bytes_at_peak,
        view.parameter_bytes,
        view.gradient_bytes,
        view.optimizer_state_bytes,
        view.buffer_bytes,
        view.activation_bytes,
    )
}

fn layer_names(view: &LayerView) -> (Option<String>, Option<String>, Option<String>) {
    let text = |name: &Option<std::sync::Arc<str>>| name.as_ref().map(ToString::to_string);
    (text(&view.root_name), text(&view.name), text(&view.class))
}

/// Category, live, at_peak, in display order.
#[pyfunction]
pub fn categories(py: Python, device: i32) -> Vec<(&'static str, u64, u64)> {
    let rows = with_books(py, |books| {
        let views = books.model().categories(device);
        views.iter().map(|view| (view.category.as_str(), view.bytes, view.bytes_at_peak)).collect()
    });
    rows.unwrap_or_default()
}

#[pyfunction]
pub fn blocks(py: Python, device: i32) -> Vec<BlockRow> {
    let rows = with_books(py, |books| {
        let model = books.model();
        model.blocks(device).iter().map(|block| block_row(block, model)).collect()
    });
    rows.unwrap_or_default()
}

fn block_row(block: &BlockView, model: &Model) -> BlockRow {
    let line = model.line_of(block.stack);
    let layer = model.layer_of(block).name.map(|name| name.to_string());
    let (file, number, function) = match &line {
        Some(line) => (Some(line.file.to_string()), line.line, Some(line.function.to_string())),
        None => (None, None, None),
    };
    (block.address, block.bytes, block.category.as_str(), file, number, function, layer, block.phase.as_str())
}

/// Starts a watch.
///
/// Returns its id, or 0 if no books are kept.
#[pyfunction]
pub fn watch_begin(py: Python) -> u64 {
    with_books(py, |books| books.begin_watch(unix_ns())).unwrap_or(0)
}

#[pyfunction]
pub fn watch_end(py: Python, watch: u64) {
    with_books(py, |books| books.end_watch(watch, unix_ns()));
}

#[pyfunction]
pub fn watch_drop(py: Python, watch: u64) {
    py.detach(|| live_books::unread().map(|mut live| live.books.drop_watch(watch)));
}

/// Figures of a watched block: allocated at its start, at its peak, at its end or now; reserved at its peak; true if events
/// are missing.
#[pyfunction]
pub fn watch_figures(py: Python, watch: u64, device: i32) -> (u64, u64, u64, u64, bool) {
    let figures = with_books(py, |books| {
        let watch = books.watch(watch)?;
        let view = watch.model.device(device).unwrap_or_default();
        let start = watch.allocated_at_start(device);
        Some((start, view.peak_allocated_bytes, view.allocated_bytes, view.peak_reserved_bytes, watch.has_gap))
    });
    figures.flatten().unwrap_or_default()
}

/// A watched block over time: its duration (so far), the time of its peak and the width of a point, in nanoseconds; the
/// points.
#[pyfunction]
pub fn watch_timeline(py: Python, watch: u64, device: i32) -> (u64, u64, u64, Vec<PointRow>) {
    let timeline = with_books(py, |books| {
        let now = books.time_at(unix_ns());
        let watch = books.watch(watch)?;
        let since = |time: u64| time.saturating_sub(watch.began);
        let timeline = watch.model.timeline(device);
        let row = |point: &TimelinePoint| {
            let allocated = point.allocated;
            (since(point.time), allocated.min, allocated.max, allocated.last, point.reserved.max)
        };
        let peak = watch.model.device(device).unwrap_or_default().peak_time;
        let points = timeline.points.iter().map(row).collect();
        Some((since(watch.ended.unwrap_or(now)), since(peak), timeline.width, points))
    });
    timeline.flatten().unwrap_or_default()
}

/// Category, at the peak and at the end of a watched block, in display order.
#[pyfunction]
pub fn watch_categories(py: Python, watch: u64, device: i32) -> Vec<(&'static str, u64, u64)> {
    let rows = with_books(py, |books| {
        let views = books.watch(watch)?.model.categories(device);
        Some(views.iter().map(|view| (view.category.as_str(), view.bytes_at_peak, view.bytes)).collect())
    });
    rows.flatten().unwrap_or_default()
}

/// Lines that held memory in a watched block, the largest at its peak first.
#[pyfunction]
pub fn watch_lines(py: Python, watch: u64, device: i32) -> Vec<WatchedLineRow> {
    let rows = with_books(py, |books| {
        let watch = books.watch(watch)?;
        let rows = watch.lines(device).into_iter().map(|line| {
            let (file, number, function, text) = place(&line.now, &watch.model);
            let (at_peak, at_end) = (line.now.live_bytes_at_peak, line.now.live_bytes);
            (file, number, function, text, line.at_start, at_peak, at_end, line.allocated, line.kept)
        });
        Some(rows.collect())
    });
    rows.flatten().unwrap_or_default()
}

/// Layers that held memory in a watched block, the largest at its peak first.
#[pyfunction]
pub fn watch_layers(py: Python, watch: u64, device: i32) -> Vec<WatchedLayerRow> {
    let rows = with_books(py, |books| {
        let rows = books.watch(watch)?.layers(device).into_iter().map(|(view, at_start)| {
            let (root, name, class) = layer_names(&view);
            (root, name, class, at_start, view.live_bytes_at_peak, view.live_bytes)
        });
        Some(rows.collect())
    });
    rows.flatten().unwrap_or_default()
}
