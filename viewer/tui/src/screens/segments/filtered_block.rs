//! A block, for the filter.

use memlab_trace::BlockView;

use memlab_base::filter::{Field, Filterable};
use memlab_base::text::{phase_name, place};
use memlab_follow::snapshot::SnapshotNames;

/// A block with the names that filters search.
pub struct FilteredBlock<'a> {
    /// The block.
    pub block: &'a BlockView,
    /// Names of its ids.
    pub names: &'a SnapshotNames,
    /// File and number of the line that requested it.
    place: Option<String>,
}

impl<'a> FilteredBlock<'a> {
    /// Makes a block with its line and layer.
    pub fn new(block: &'a BlockView, names: &'a SnapshotNames) -> Self {
        let line = names.lines.get(&block.stack);
        Self { block, names, place: line.map(|line| place(line, "")) }
    }
}

impl Filterable for FilteredBlock<'_> {
    fn texts(&self) -> Vec<&str> {
        let line = self.names.lines.get(&self.block.stack);
        let layer = self.names.layers.get(&self.block.layer);
        let texts = line.into_iter().flat_map(|line| [&*line.file, &*line.function]);
        texts.chain(layer.map(|layer| &**layer)).chain([self.block.category.as_str()]).collect()
    }

    fn bytes(&self) -> u64 {
        self.block.bytes
    }

    fn field(&self, field: Field) -> Vec<&str> {
        let line = self.names.lines.get(&self.block.stack);
        match field {
            Field::Layer => self.names.layers.get(&self.block.layer).map(|layer| &**layer).into_iter().collect(),
            Field::Category => vec![self.block.category.as_str()],
            Field::Line => self.place.as_deref().into_iter().collect(),
            Field::Phase => vec![phase_name(self.block.phase)],
            Field::Function => line.map(|line| &*line.function).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}
