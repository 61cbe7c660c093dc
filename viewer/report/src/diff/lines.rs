//! Matches the lines of two runs.
//!
//! Lines match at the same place in the same function of the same file. Files match by whole path, else by path
//! relative to each run's working directory, else by name. The two runs may use two checkouts.
//!
//! Code added above a line changes its number. A line without a counterpart counts as moved, if the other run has
//! exactly one such line in that function too.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use memlab_trace::{Line, Scope};

use super::change::{Change, order};
use super::side::Side;
use memlab_base::text::short_path;

/// Kind of match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The same place.
    Same,
    /// The same function, at another line.
    Moved,
    /// In one of the runs only.
    Alone,
}

/// Change of a line's memory or GPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineChange {
    /// The line in the first run.
    pub before: Option<Arc<Line>>,
    /// The line in the second run; both `None`: no Python frame of the user's code.
    pub after: Option<Arc<Line>>,
    /// Kind of match.
    pub matched: Match,
    /// Bytes or nanoseconds.
    pub change: Change,
}

impl LineChange {
    /// File for display, relative to the run's working directory.
    pub fn file(&self, before: &Side, after: &Side) -> Option<String> {
        let of = |line: &Option<Arc<Line>>, side: &Side| {
            line.as_ref().map(|line| short_path(&line.file, &side.directory).to_owned())
        };
        of(&self.after, after).or_else(|| of(&self.before, before))
    }
}

/// A figure of each line; `None`: memory or time without a Python frame of the user's code.
pub(super) type LineFigures = HashMap<Option<Arc<Line>>, u64>;

/// Changes of all lines of `scope` with a figure before or after.
pub(super) fn compare(
    (before, figures_before): (&Side, &LineFigures),
    (after, figures_after): (&Side, &LineFigures),
    scope: Scope,
) -> Vec<LineChange> {
    let figure = |figures: &LineFigures, line: &Option<Arc<Line>>| figures.get(line).copied().unwrap_or(0);
    let mut changes = Vec::new();
    let mut note = |before: Option<Arc<Line>>, after: Option<Arc<Line>>, matched: Match| {
        let is_none = before.is_none() && after.is_none();
        let change = Change {
            before: if before.is_some() || is_none { figure(figures_before, &before) } else { 0 },
            after: if after.is_some() || is_none { figure(figures_after, &after) } else { 0 },
        };
        if change != Change::default() {
            changes.push(LineChange { before, after, matched, change });
        }
    };
    note(None, None, Match::Same);

    let (mut left, mut right) = (before.lines[scope].clone(), after.lines[scope].clone());
    let relative = |line: &Line, side: &Side| short_path(&line.file, &side.directory).to_owned();
    pair(&mut left, &mut right, |line| line.clone(), |line| line.clone(), |a, b| note(Some(a), Some(b), Match::Same));
    pair(
        &mut left,
        &mut right,
        |line| (relative(line, before), line.line, line.function.clone()),
        |line| (relative(line, after), line.line, line.function.clone()),
        |a, b| note(Some(a), Some(b), Match::Same),
    );
    let by_name = |line: &Arc<Line>| (name_of(&line.file).to_owned(), line.line, line.function.clone());
    pair(&mut left, &mut right, by_name, by_name, |a, b| note(Some(a), Some(b), Match::Same));
    // From here on, lines without a figure match no other line.
    left.retain(|line| figures_before.contains_key(&Some(line.clone())));
    right.retain(|line| figures_after.contains_key(&Some(line.clone())));
    pair(
        &mut left,
        &mut right,
        |line| (relative(line, before), line.function.clone()),
        |line| (relative(line, after), line.function.clone()),
        |a, b| note(Some(a), Some(b), Match::Moved),
    );
    let by_name = |line: &Arc<Line>| (name_of(&line.file).to_owned(), line.function.clone());
    pair(&mut left, &mut right, by_name, by_name, |a, b| note(Some(a), Some(b), Match::Moved));
    left.into_iter().for_each(|line| note(Some(line), None, Match::Alone));
    right.into_iter().for_each(|line| note(None, Some(line), Match::Alone));
    changes.sort_by(|a, b| {
        order(a.change).cmp(&order(b.change)).then_with(|| (&a.after, &a.before).cmp(&(&b.after, &b.before)))
    });
    changes
}

/// File name without its folders.
fn name_of(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// Removes pairs with a key that occurs once in each list.
fn pair<K: Eq + Hash>(
    left: &mut Vec<Arc<Line>>,
    right: &mut Vec<Arc<Line>>,
    key_left: impl Fn(&Arc<Line>) -> K,
    key_right: impl Fn(&Arc<Line>) -> K,
    mut found: impl FnMut(Arc<Line>, Arc<Line>),
) {
    let mut lines: HashMap<K, (Vec<usize>, Vec<usize>)> = HashMap::new();
    for (index, line) in left.iter().enumerate() {
        lines.entry(key_left(line)).or_default().0.push(index);
    }
    for (index, line) in right.iter().enumerate() {
        lines.entry(key_right(line)).or_default().1.push(index);
    }
    let (mut of_left, mut of_right) = (vec![false; left.len()], vec![false; right.len()]);
    for (a, b) in lines.into_values() {
        if let ([a], [b]) = (&*a, &*b) {
            found(left[*a].clone(), right[*b].clone());
            (of_left[*a], of_right[*b]) = (true, true);
        }
    }
    let mut taken = of_left.into_iter();
    left.retain(|_| !taken.next().unwrap_or(false));
    let mut taken = of_right.into_iter();
    right.retain(|_| !taken.next().unwrap_or(false));
}
