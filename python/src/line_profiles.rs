//! Line profiles: adding functions, enabling and disabling, and their figures as plain tuples.

use std::sync::Arc;

use memlab_live::{Counters, Function, LineFigures, Mark, Moment, Sample};
use pyo3::prelude::*;

use crate::library::Library;
use crate::live_books;

/// Function, line and device; hits; highest values of the counters at the end and at any time, of increases and of
/// decreases; growth within an execution; bytes and number of the line's allocations, with the freed and the backward part;
/// PyTorch's own counters.
type FiguresRow =
    (u32, u32, i32, u64, Counters, Counters, Counters, Counters, u64, (u64, u64, u64, u64), Option<Sample>);

/// Adds an empty profile.
///
/// Returns its id, or 0 if no books are kept.
#[pyfunction]
pub fn profile_new(py: Python) -> u64 {
    py.detach(|| live_books::current().map_or(0, |mut live| live.books.add_profile()))
}

#[pyfunction]
pub fn profile_drop(py: Python, profile: u64) {
    py.detach(|| live_books::unread().map(|mut live| live.books.drop_profile(profile)));
}

/// Adds a function, by the names under which its file and itself may be recorded, and its lines.
///
/// Returns its index.
#[pyfunction]
pub fn profile_add(
    py: Python,
    profile: u64,
    files: Vec<String>,
    names: Vec<String>,
    first_line: u32,
    last_line: u32,
) -> Option<u32> {
    let shared = |texts: Vec<String>| texts.into_iter().map(Arc::from).collect();
    let function = Function { files: shared(files), names: shared(names), lines: (first_line, last_line) };
    py.detach(|| live_books::current()?.books.add_function(profile, function))
}

/// Enables or disables a profile.
///
/// Returns true if the books contain it.
#[pyfunction]
pub fn profile_enable(py: Python, profile: u64, enabled: bool) -> bool {
    py.detach(|| {
        let (Some(library), Some(mut live)) = (Library::get(), live_books::current()) else { return false };
        let moment = if enabled { Moment::Enabled } else { Moment::Disabled };
        live.books.mark(Mark { position: library.position(), profile, moment });
        live.books.profile(profile).is_some()
    })
}

/// Clears the figures of a profile.
#[pyfunction]
pub fn profile_clear(py: Python, profile: u64) {
    py.detach(|| {
        let mut live = live_books::current()?;
        live.books.profile_mut(profile)?.clear();
        Some(())
    });
}

/// Returns the figures of all lines that ran or allocated.
#[pyfunction]
pub fn profile_figures(py: Python, profile: u64) -> Vec<FiguresRow> {
    let rows = py.detach(|| {
        let live = live_books::current()?;
        let rows = live.books.profile(profile)?.figures();
        Some(rows.map(|(function, line, device, figures)| row(function, line, device, figures)).collect())
    });
    rows.unwrap_or_default()
}

fn row(function: u32, line: u32, device: i32, figures: &LineFigures) -> FiguresRow {
    let LineFigures { hits, current, peak, allocated, freed, peak_growth, sample, .. } = figures;
    let own = (figures.line_allocated, figures.line_allocations, figures.line_freed, figures.line_backward);
    (function, line, device, *hits, *current, *peak, *allocated, *freed, *peak_growth, own, sample.clone())
}
