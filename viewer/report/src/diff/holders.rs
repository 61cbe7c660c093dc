//! Holders of the memory of lines that grew, at the searches near the two moments.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use memlab_trace::holders::{Holder, PathStep};
use memlab_trace::{HeldView, Line, Model, Scope, SearchView};

use super::lines::LineChange;
use super::side::Side;
use memlab_base::file_names::FileNames;
use memlab_base::findings::holder::{HolderView, holders};

/// A search describes a moment only if the lines held at most this factor more or less memory then.
const MAX_FACTOR: u64 = 2;

/// Holders of the memory of the lines that grew.
#[derive(Clone, Debug)]
pub struct HolderChanges {
    /// Search near the first moment.
    pub before: Option<SearchView>,
    /// Search near the second moment.
    pub after: Option<SearchView>,
    /// Holders, greatest growth first.
    pub rows: Vec<HolderChange>,
}

/// Bytes of a holder at the two searches; `None`: there was no search.
#[derive(Clone, Debug)]
pub struct HolderChange {
    /// The holder, as the later of the searches that name it found it.
    pub holder: HolderView,
    /// Bytes before.
    pub before: Option<u64>,
    /// Bytes after.
    pub after: Option<u64>,
}

impl HolderChange {
    /// Growth in bytes; `None`: one moment has no search.
    pub fn by(&self) -> Option<i64> {
        Some(memlab_units::format::signed_difference(self.after?, self.before?))
    }
}

/// Compares the holders; `None`: no line grew, or neither trace has a search.
pub(super) fn compare(before: &Side, after: &Side, lines: &[LineChange], scope: Scope) -> Option<HolderChanges> {
    let grown: Vec<&LineChange> = lines.iter().filter(|line| line.change.by() > 0).collect();
    if grown.is_empty() || before.searched.is_none() && after.searched.is_none() {
        return None;
    }
    let is_none = |line: &LineChange| line.before.is_none() && line.after.is_none();
    let of = |line: &LineChange, own: &Option<Arc<Line>>| (own.is_some() || is_none(line)).then(|| own.clone());
    let near = |side, other, own: fn(&LineChange) -> (&Option<Arc<Line>>, u64)| {
        let lines = grown.iter().filter_map(|line| of(line, own(line).0)).collect();
        Question { side, other, lines, bytes: grown.iter().map(|line| own(line).1).sum(), scope }.near()
    };
    let earlier = near(before, after, |line| (&line.before, line.change.before));
    let later = near(after, before, |line| (&line.after, line.change.after));
    let mut known: Vec<&Holder> = Vec::new();
    let mut views: Vec<HolderView> = Vec::new();
    // The later holders come first: an earlier one below them, such as the only item of a list, is part of them.
    for (found, side) in [(&later, after), (&earlier, before)] {
        let Some(found) = found else { continue };
        let all = holders(&found.held, &FileNames::in_directory(&side.directory));
        for (holder, view) in found.held.explanation.holders.iter().zip(&all) {
            let includes_another = all.iter().any(|other| view.includes(other));
            // The bytes of more names than are listed cannot be looked up.
            if holder.more > 0 || includes_another || known.iter().any(|known| is_part(holder, known)) {
                continue;
            }
            known.push(holder);
            views.push(view.clone());
        }
    }
    let bytes = |at: &Option<Near<'_>>| -> Vec<Option<u64>> {
        let held = at.as_ref().and_then(|at| at.bytes_of(&known));
        held.map_or_else(|| vec![None; known.len()], |held| held.into_iter().map(Some).collect())
    };
    let moments = bytes(&earlier).into_iter().zip(bytes(&later));
    let mut rows: Vec<HolderChange> = std::iter::zip(views, moments)
        .map(|(holder, (before, after))| HolderChange { holder, before, after })
        .collect();
    rows.sort_by_key(|row| Reverse((row.by(), row.after, row.before)));
    let search = |near: Option<Near<'_>>| near.map(|near| near.search);
    Some(HolderChanges { before: search(earlier), after: search(later), rows })
}

/// The question for the holders of some lines at a moment.
struct Question<'a> {
    side: &'a Side,
    other: &'a Side,
    lines: HashSet<Option<Arc<Line>>>,
    /// Bytes that the lines held at the moment.
    bytes: u64,
    scope: Scope,
}

impl<'a> Question<'a> {
    /// The answer of the search nearest to the moment, if the lines held about the same memory then.
    fn near(&self) -> Option<Near<'a>> {
        let model = self.side.searched.as_deref()?;
        let distance = |time: u64, side: &Side| time.abs_diff(side.time);
        let search = model.searches().min_by_key(|search| distance(search.time, self.side))?;
        let is_same_run = self.side.named.path == self.other.named.path;
        if is_same_run && distance(search.time, self.other) < distance(search.time, self.side) {
            return None;
        }
        let device = self.side.device.index;
        let views = model.stacks(device).into_iter().map(|view| view.stack);
        let stacks: BTreeSet<u32> =
            views.filter(|stack| self.lines.contains(&model.line_in(*stack, self.scope))).collect();
        let held = model.holders_of_stacks(search.number, device, &stacks)?;
        let is_alike =
            held.bytes <= self.bytes.saturating_mul(MAX_FACTOR) && self.bytes <= held.bytes.saturating_mul(MAX_FACTOR);
        is_alike.then_some(Near { model, device, stacks, search, held })
    }
}

/// A search near a moment.
struct Near<'a> {
    model: &'a Model,
    device: i32,
    stacks: BTreeSet<u32>,
    search: SearchView,
    held: HeldView,
}

impl Near<'_> {
    /// Bytes that each of these holders held at the search.
    fn bytes_of(&self, holders: &[&Holder]) -> Option<Vec<u64>> {
        self.model.bytes_held(self.search.number, self.device, &self.stacks, holders)
    }
}

/// True if each path of a holder begins with a path of another one.
fn is_part(holder: &Holder, whole: &Holder) -> bool {
    let alike = |one: &PathStep, other: &PathStep| (one.reference, &one.label) == (other.reference, &other.label);
    let begins = |path: &[PathStep], with: &[PathStep]| {
        path.len() >= with.len() && std::iter::zip(path, with).all(|(one, other)| alike(one, other))
    };
    holder.paths.iter().all(|path| whole.paths.iter().any(|with| begins(path, with)))
}
