//! Layers that differ only in their number, as the blocks of a transformer, in one row.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::LayerView;
use memlab_units::format::size;

use crate::text::compare_names;

/// Layers of one class whose names differ in one number.
#[derive(Clone, Debug)]
pub struct LayerGroup {
    /// Sums of their figures. The name has the range and the count of the numbers: `blocks.0–47.mlp.0 ×48`.
    pub sum: LayerView,
    pub count: usize,
    /// Least and most bytes of a layer at the peak.
    pub each: (u64, u64),
}

impl LayerGroup {
    fn of(layer: LayerView) -> Self {
        let bytes = layer.live_bytes_at_peak;
        Self { sum: layer, count: 1, each: (bytes, bytes) }
    }

    fn add(&mut self, layer: &LayerView) {
        self.sum.add(layer);
        self.count += 1;
        let bytes = layer.live_bytes_at_peak;
        self.each = (self.each.0.min(bytes), self.each.1.max(bytes));
    }

    /// `, 36.0 MiB each`; empty for a single layer.
    pub fn sizes(&self) -> String {
        match (self.count, self.each) {
            (1, _) => String::new(),
            (_, (least, most)) if size(least) == size(most) => format!(", {} each", size(most)),
            (_, (least, most)) => format!(", {} to {} each", size(least), size(most)),
        }
    }
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

/// Layers in groups, the largest at the peak first.
pub fn grouped(layers: Vec<LayerView>) -> Vec<LayerGroup> {
    let mut groups: Vec<LayerGroup> = Vec::new();
    // Position of a group in the list, and its first and last number.
    let mut found: BTreeMap<GroupKey, (usize, u64, u64)> = BTreeMap::new();
    for layer in layers {
        let name = layer.name.clone().unwrap_or_default();
        let Some((before, number, after)) = numbered(&name) else {
            groups.push(LayerGroup::of(layer));
            continue;
        };
        let key = (layer.root, layer.class.clone(), before.to_owned(), after.to_owned());
        match found.get_mut(&key) {
            Some((at, first, last)) => {
                groups[*at].add(&layer);
                (*first, *last) = ((*first).min(number), (*last).max(number));
            }
            None => {
                found.insert(key, (groups.len(), number, number));
                groups.push(LayerGroup::of(layer));
            }
        }
    }
    for ((_, _, before, after), (at, first, last)) in found {
        let LayerGroup { sum, count, .. } = &mut groups[at];
        if *count > 1 {
            sum.name = Some(format!("{before}{first}–{last}{after} ×{count}").into());
        }
    }
    groups.sort_by(|a, b| {
        let names = || compare_names(a.sum.name.as_deref(), b.sum.name.as_deref());
        b.sum.live_bytes_at_peak.cmp(&a.sum.live_bytes_at_peak).then_with(names)
    });
    groups
}

#[cfg(test)]
mod tests {
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
            groups.iter().map(|group| format!("{}{}", group.sum.name.as_deref().unwrap(), group.sizes())).collect();
        assert_eq!(rows, ["h.0–10.mlp.0 ×11, 3.00 MiB each", "head", "h.0.mlp.2", "h.11.mlp.0"]);
        assert_eq!((groups[0].sum.live_bytes_at_peak, groups[0].sum.parameter_bytes), (33 << 20, 11));
    }

    #[test]
    fn different_sizes_are_a_range() {
        let groups = grouped(vec![layer("down.0", "Conv2d", 1 << 20), layer("down.1", "Conv2d", 3 << 20)]);
        assert_eq!(groups[0].sizes(), ", 1.00 MiB to 3.00 MiB each");
    }
}
