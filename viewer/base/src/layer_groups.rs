//! Layers that differ only in their number, as the blocks of a transformer, in one row.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::{LayerView, LayerWorkView};

use crate::holdings::HeldLayer;
use crate::layer_tree::{Group, group_words};
use crate::text::compare_names;

/// A row of a table of layers, each without the layers inside it.
pub trait LayerRow {
    /// Figure that compares the layers of a group.
    type Figure: Ord + Copy;

    /// Outermost module, qualified name and class.
    fn layer(&self) -> (u32, Option<&str>, Option<&Arc<str>>);
    /// The figure of this row.
    fn figure(&self) -> Self::Figure;
    /// Adds the figures of another layer.
    fn add(&mut self, other: &Self);
    /// Sets the name.
    fn rename(&mut self, name: String);
}

impl LayerRow for LayerView {
    type Figure = u64;

    fn layer(&self) -> (u32, Option<&str>, Option<&Arc<str>>) {
        (self.root, self.name.as_deref(), self.class.as_ref())
    }

    fn figure(&self) -> u64 {
        self.live_bytes_at_peak
    }

    fn add(&mut self, other: &Self) {
        Self::add(self, other);
    }

    fn rename(&mut self, name: String) {
        self.name = Some(name.into());
    }
}

impl LayerRow for HeldLayer {
    type Figure = u64;

    fn layer(&self) -> (u32, Option<&str>, Option<&Arc<str>>) {
        (self.layer.root, self.layer.name.as_deref(), self.layer.class.as_ref())
    }

    fn figure(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn rename(&mut self, name: String) {
        self.layer.name = Some(name.into());
    }
}

impl LayerRow for LayerWorkView {
    type Figure = u64;

    fn layer(&self) -> (u32, Option<&str>, Option<&Arc<str>>) {
        (self.root, self.name.as_deref(), self.class.as_ref())
    }

    fn figure(&self) -> u64 {
        self.totals.nanoseconds
    }

    fn add(&mut self, other: &Self) {
        self.totals.add(other.totals);
        self.forward_nanoseconds = self.forward_nanoseconds.saturating_add(other.forward_nanoseconds);
        self.backward_nanoseconds = self.backward_nanoseconds.saturating_add(other.backward_nanoseconds);
    }

    fn rename(&mut self, name: String) {
        self.name = Some(name.into());
    }
}

/// Layers of one class whose names differ in one number.
#[derive(Clone, Debug)]
pub struct LayerGroup<R: LayerRow> {
    /// Sums of their figures. The name has the range of the numbers: `blocks.0–47.mlp.0`.
    pub sum: R,
    pub count: usize,
    /// Least and greatest figure of a layer.
    pub each: (R::Figure, R::Figure),
}

impl<R: LayerRow> LayerGroup<R> {
    fn of(row: R) -> Self {
        let figure = row.figure();
        Self { sum: row, count: 1, each: (figure, figure) }
    }

    fn add(&mut self, row: &R) {
        self.sum.add(row);
        self.count += 1;
        let figure = row.figure();
        self.each = (self.each.0.min(figure), self.each.1.max(figure));
    }

    /// ` ×48, 36.0 MiB each`; empty for a single layer. `figure`: text of a figure.
    pub fn words(&self, figure: impl Fn(R::Figure) -> String) -> String {
        if self.count == 1 { String::new() } else { format!(" {}", group_words(self.count, self.each, figure)) }
    }
}

impl<R: LayerRow<Figure = u64>> LayerGroup<R> {
    /// Their number and sizes; `None`: a single layer.
    pub fn group(&self) -> Option<Group> {
        (self.count > 1).then_some(Group { count: self.count, each: self.each })
    }
}

/// Order of layers: the largest at the peak first, and among equals by their names.
pub fn order_at_peak(a: &LayerView, b: &LayerView) -> Ordering {
    let names = || compare_names(a.name.as_deref(), b.name.as_deref());
    b.live_bytes_at_peak.cmp(&a.live_bytes_at_peak).then_with(names)
}

/// Part of a layer's name before its first number, the number, and the part after it; `None`: it has no number.
fn numbered(name: &str) -> Option<(&str, u64, &str)> {
    let mut start = 0;
    for part in name.split('.') {
        if let Ok(number) = part.parse() {
            return Some((&name[..start], number, &name[start + part.len()..]));
        }
        start += part.len() + 1;
    }
    None
}

/// Outermost module, class, and the name before and after the number.
type GroupKey = (u32, Option<Arc<str>>, String, String);

/// Rows in groups, each in the place of its first layer.
pub fn grouped<R: LayerRow>(rows: Vec<R>) -> Vec<LayerGroup<R>> {
    let mut groups: Vec<LayerGroup<R>> = Vec::new();
    // Position of a group in the list, and its first and last number.
    let mut found: BTreeMap<GroupKey, (usize, u64, u64)> = BTreeMap::new();
    for row in rows {
        let (root, name, class) = row.layer();
        let Some((before, number, after)) = name.and_then(numbered) else {
            groups.push(LayerGroup::of(row));
            continue;
        };
        let key = (root, class.cloned(), before.to_owned(), after.to_owned());
        match found.get_mut(&key) {
            Some((at, first, last)) => {
                groups[*at].add(&row);
                (*first, *last) = ((*first).min(number), (*last).max(number));
            }
            None => {
                found.insert(key, (groups.len(), number, number));
                groups.push(LayerGroup::of(row));
            }
        }
    }
    for ((_, _, before, after), (at, first, last)) in found {
        let LayerGroup { sum, count, .. } = &mut groups[at];
        if *count > 1 {
            sum.rename(format!("{before}{first}–{last}{after}"));
        }
    }
    groups
}

/// Changes in groups of layers that all grew, all shrank, or all stayed: changes of different signs do not cancel out.
pub fn grouped_by_sign<R: LayerRow<Figure = i64>>(rows: Vec<R>) -> Vec<LayerGroup<R>> {
    let mut by_sign: [Vec<R>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    rows.into_iter().for_each(|row| by_sign[(row.figure().signum() + 1) as usize].push(row));
    by_sign.into_iter().flat_map(grouped).collect()
}

#[cfg(test)]
mod tests {
    use memlab_units::format::size;

    use super::*;

    fn layer(name: &str, class: &str, bytes: u64) -> LayerView {
        let (name, class) = (Some(name.into()), Some(class.into()));
        LayerView { name, class, live_bytes_at_peak: bytes, parameter_bytes: 1, ..LayerView::default() }
    }

    #[test]
    fn layers_that_differ_in_a_number_are_one_row() {
        // GIVEN blocks of a transformer, of which one is of another class, and a layer without a number
        let mut layers: Vec<LayerView> = (0..11).map(|n| layer(&format!("h.{n}.mlp.0"), "Linear", 3 << 20)).collect();
        layers.push(layer("h.11.mlp.0", "Linear4bit", 1 << 20));
        layers.push(layer("h.0.mlp.2", "Linear", 2 << 20));
        layers.push(layer("head", "Linear", 4 << 20));
        // WHEN they are grouped
        let groups = grouped(layers);
        // THEN layers of one class and place are one row with the sums
        let rows: Vec<_> =
            groups.iter().map(|group| format!("{}{}", group.sum.name.as_deref().unwrap(), group.words(size))).collect();
        assert_eq!(rows, ["h.0–10.mlp.0 ×11, 3.00 MiB each", "h.11.mlp.0", "h.0.mlp.2", "head"]);
        assert_eq!((groups[0].sum.live_bytes_at_peak, groups[0].sum.parameter_bytes), (33 << 20, 11));
    }

    #[test]
    fn different_sizes_are_a_range() {
        let groups = grouped(vec![layer("down.0", "Conv2d", 1 << 20), layer("down.1", "Conv2d", 3 << 20)]);
        assert_eq!(groups[0].words(size), " ×2, 1.00 MiB to 3.00 MiB each");
    }
}
