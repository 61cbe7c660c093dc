//! Layers as the tree of their modules.
//!
//! A module that only wraps another shares its row, and modules that differ only in their number are a group.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_units::format::size;

/// Least number of modules of a group.
const MIN_GROUP: usize = 3;

/// Deepest nesting; real modules nest no deeper, and a malicious name is not split further.
const MAX_DEPTH: usize = 24;

/// Figures of a layer.
pub trait Figures: Clone + Default {
    /// Adds the figures of another layer.
    fn add(&mut self, other: &Self);
    /// Bytes at the moment of the tree.
    fn bytes(&self) -> u64;
    /// True if every figure is zero.
    fn is_empty(&self) -> bool;
}

/// Modules that differ only in their number, such as the blocks of a transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub count: usize,
    /// Least and most bytes of a module, with the modules inside it.
    pub each: (u64, u64),
}

impl Group {
    /// `×48, 36.0 MiB each`.
    pub fn words(&self) -> String {
        group_words(self.count, self.each, size)
    }
}

/// Number of layers of a group, and the least and greatest figure of one: `×48, 36.0 MiB each`. `figure`: text of a figure.
pub(crate) fn group_words<T>(count: usize, (least, most): (T, T), figure: impl Fn(T) -> String) -> String {
    match (figure(least), figure(most)) {
        (least, most) if least == most => format!("×{count}, {most} each"),
        (least, most) => format!("×{count}, {least} to {most} each"),
    }
}

/// A module or a group, and the modules inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerNode<F> {
    /// Name without those of the modules around it, as far as they have rows.
    pub label: String,
    /// Qualified name; that of a group contains a range: `blocks.0–47`.
    pub name: String,
    /// Qualified name of the module with exactly this memory; `None`: a group among other modules.
    pub module: Option<String>,
    /// Class of the module, or of each module of the group.
    pub class: Option<Arc<str>>,
    /// Figures of the module alone.
    pub own: F,
    /// Figures including inner modules.
    pub inclusive: F,
    /// `None`: one module.
    pub group: Option<Group>,
    /// Inner modules, in the order of their names.
    pub inside: Vec<LayerNode<F>>,
}

/// A part of a name; `10` comes after `9`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NamePart(u128, String);

impl NamePart {
    fn new(text: &str) -> Self {
        Self(text.parse().unwrap_or(u128::MAX), text.to_owned())
    }
}

/// A module while the tree is built.
#[derive(Clone, Debug, Default)]
pub struct LayerTree<F> {
    class: Option<Arc<str>>,
    own: F,
    inside: BTreeMap<NamePart, LayerTree<F>>,
}

impl<F: Figures> LayerTree<F> {
    /// Adds the figures of a layer by its qualified name.
    pub fn put(&mut self, name: &str, class: Option<&Arc<str>>, own: &F) {
        let parts: Vec<&str> = match name {
            "" => Vec::new(),
            // A chain of classes stands for a name that is not known yet.
            _ if name.starts_with('<') => vec![name],
            _ => name.splitn(MAX_DEPTH, '.').collect(),
        };
        let at = parts.into_iter().fold(self, |at, part| at.inside.entry(NamePart::new(part)).or_default());
        at.own.add(own);
        at.class = at.class.take().or_else(|| class.cloned());
    }

    /// The outermost module, with the modules inside it.
    pub fn finish(self) -> LayerNode<F> {
        self.node(String::new(), String::new())
    }

    fn node(self, label: String, name: String) -> LayerNode<F> {
        let is_root = name.is_empty();
        let inside = self.inside.into_iter().map(|(NamePart(_, part), inner)| {
            let name = if is_root { part.clone() } else { format!("{name}.{part}") };
            inner.node(part, name)
        });
        let mut inside = grouped(inside.collect(), &name);
        let mut inclusive = self.own.clone();
        inside.iter().for_each(|inner| inclusive.add(&inner.inclusive));
        if !is_root
            && self.own.is_empty()
            && inside.len() == 1
            && let Some(mut only) = inside.pop()
        {
            only.label = format!("{label}.{}", only.label);
            only.module.get_or_insert(name);
            return only;
        }
        LayerNode {
            label,
            module: Some(name.clone()),
            name,
            class: self.class,
            own: self.own,
            inclusive,
            group: None,
            inside,
        }
    }
}

/// Replaces numbered modules of one class by groups, each in the place of its first.
fn grouped<F: Figures>(nodes: Vec<LayerNode<F>>, around: &str) -> Vec<LayerNode<F>> {
    let is_numbered = |node: &LayerNode<F>| node.label.bytes().all(|byte| byte.is_ascii_digit());
    let mut counts: BTreeMap<Option<Arc<str>>, usize> = BTreeMap::new();
    nodes.iter().filter(|node| is_numbered(node)).for_each(|node| *counts.entry(node.class.clone()).or_default() += 1);
    let mut rows: Vec<LayerNode<F>> = Vec::new();
    let mut places: BTreeMap<Option<Arc<str>>, usize> = BTreeMap::new();
    for node in nodes {
        let count = counts.get(&node.class).copied().filter(|count| is_numbered(&node) && *count >= MIN_GROUP);
        match (count, places.get(&node.class)) {
            (None, _) => rows.push(node),
            (Some(_), Some(place)) => rows[*place].join(node),
            (Some(_), None) => {
                places.insert(node.class.clone(), rows.len());
                rows.push(LayerNode::group(node));
            }
        }
    }
    places.into_values().for_each(|place| rows[place].set_range(around));
    rows
}

impl<F: Figures> LayerNode<F> {
    /// A group of one module so far.
    fn group(first: Self) -> Self {
        let bytes = first.inclusive.bytes();
        Self {
            label: String::new(),
            name: String::new(),
            module: None,
            class: first.class.clone(),
            own: first.own.clone(),
            inclusive: first.inclusive.clone(),
            group: Some(Group { count: 1, each: (bytes, bytes) }),
            inside: vec![first],
        }
    }

    /// Adds a module to a group.
    fn join(&mut self, node: Self) {
        self.own.add(&node.own);
        self.inclusive.add(&node.inclusive);
        if let Some(Group { count, each: (least, most) }) = &mut self.group {
            let bytes = node.inclusive.bytes();
            (*count, *least, *most) = (*count + 1, bytes.min(*least), bytes.max(*most));
        }
        self.inside.push(node);
    }

    /// Names a group by its first and last number.
    fn set_range(&mut self, around: &str) {
        let ends = self.inside.first().zip(self.inside.last());
        self.label = ends.map_or_else(String::new, |(first, last)| format!("{}–{}", first.label, last.label));
        self.name = if around.is_empty() { self.label.clone() } else { format!("{around}.{}", self.label) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Bytes(u64);

    impl Figures for Bytes {
        fn add(&mut self, other: &Self) {
            self.0 += other.0;
        }

        fn bytes(&self) -> u64 {
            self.0
        }

        fn is_empty(&self) -> bool {
            self.0 == 0
        }
    }

    fn tree(layers: &[(&str, &str, u64)]) -> LayerNode<Bytes> {
        let mut tree = LayerTree::default();
        layers.iter().for_each(|(name, class, bytes)| tree.put(name, Some(&(*class).into()), &Bytes(*bytes)));
        tree.finish()
    }

    fn rows(node: &LayerNode<Bytes>, depth: usize) -> Vec<String> {
        let group = node.group.map(|group| format!(" {}", group.words())).unwrap_or_default();
        let class = node.class.as_deref().unwrap_or("-");
        let row = format!("{}{} {class} {}+{}{group}", " ".repeat(depth), node.label, node.own.0, node.inclusive.0);
        std::iter::once(row).chain(node.inside.iter().flat_map(|inner| rows(inner, depth + 1))).collect()
    }

    #[test]
    fn numbered_modules_are_a_group_and_wrappers_have_no_row() {
        // GIVEN a model of three equal blocks and a head, and a wrapper around a single layer
        let node = tree(&[
            ("", "GPT", 1),
            ("blocks.0.mlp.0", "Linear", 10),
            ("blocks.1.mlp.0", "Linear", 10),
            ("blocks.2.mlp.0", "Linear", 10),
            ("blocks.0", "Block", 2),
            ("blocks.1", "Block", 2),
            ("blocks.2", "Block", 3),
            ("head.proj", "Linear", 5),
        ]);
        // THEN the list of the blocks is one row that opens to them, and the wrapper shares the row of its layer
        let block = |n: u64, own| [format!("  {n} Block {own}+{}", own + 10), "   mlp.0 Linear 10+10".to_owned()];
        let mut wanted = vec![" GPT 1+43".to_owned(), " blocks.0–2 Block 7+37 ×3, 12 B to 13 B each".to_owned()];
        wanted.extend([(0, 2), (1, 2), (2, 3)].into_iter().flat_map(|(n, own)| block(n, own)));
        wanted.push(" head.proj Linear 5+5".to_owned());
        assert_eq!(rows(&node, 0), wanted);
        // AND the group has the memory of the module that it replaces
        assert_eq!((node.inside[0].name.as_str(), node.inside[0].module.as_deref()), ("blocks.0–2", Some("blocks")));
        assert_eq!(node.inside[0].inside[1].name, "blocks.1");
    }

    #[test]
    fn different_classes_are_different_groups() {
        // GIVEN a sequence in which a class comes twice, and another three times
        let node =
            tree(&[("0", "Linear", 1), ("1", "ReLU", 1), ("2", "Linear", 1), ("3", "ReLU", 1), ("10", "Linear", 2)]);
        // THEN three are a group, also with others between them, and two are not
        let labels: Vec<_> = node.inside.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["0–10", "1", "3"]);
        assert_eq!(node.inside[0].module, None);
    }

    #[test]
    fn a_malicious_name_is_not_nested_without_end() {
        let mut tree = LayerTree::default();
        tree.put(&"a.".repeat(100_000), None, &Bytes(5));
        assert_eq!(tree.finish().inclusive.0, 5);
    }
}
