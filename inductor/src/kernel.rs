//! Kernel definitions in a wrapper: the nodes that make each output.
//!
//! User-defined kernels are included. They write into memory that other operations allocated.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::scan::number;

const SOURCE_NODES: &str = "Source Nodes: [";

/// Definition of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    /// Source nodes of its first launch.
    pub(crate) sources: Vec<String>,
    /// Source node of each node of AOTAutograd's graph, as an index into `sources`.
    pub(crate) source_of: FxHashMap<String, usize>,
    /// Source nodes that are in TorchDynamo's graph. AOTAutograd lists the nodes that it made as their own source.
    pub(crate) known: FxHashSet<String>,
    /// Nodes of AOTAutograd's graph (or names of buffers) whose values it writes.
    pub(crate) outputs: Vec<String>,
    /// Positions of the parameters that it writes.
    pub(crate) written: Vec<usize>,
    /// Positions of the parameters that it reads and writes.
    pub(crate) in_place: Vec<usize>,
    /// True for a user-defined kernel.
    pub(crate) is_of_program: bool,
    /// Tensor parameters, in order.
    pub(crate) tensors: Vec<String>,
    /// Source nodes of the values of written parameters, as indices into `sources`.
    pub(crate) source_of_parameter: FxHashMap<usize, usize>,
}

impl Kernel {
    /// Parses a comment above the definition.
    pub(crate) fn describe(&mut self, comment: &str) {
        if let Some(sources) = source_nodes(comment) {
            *self = Self { sources, ..Self::default() };
        } else if let Some((source, nodes)) = comment.split_once(" => ") {
            let source = source.trim();
            if let Some(index) = self.sources.iter().position(|known| known == source) {
                let nodes: Vec<&str> = nodes.split(", ").map(str::trim).collect();
                if nodes != [source] {
                    self.known.insert(source.to_owned());
                }
                self.source_of.extend(nodes.into_iter().map(|node| (node.to_owned(), index)));
            }
        } else if let Some(outputs) = comment.trim_start().strip_prefix("return ") {
            self.outputs =
                outputs.split(',').filter_map(|output| output.trim().strip_prefix('%')).map(str::to_owned).collect();
        }
    }

    /// Parses a line with compilation options.
    pub(crate) fn describe_compilation(&mut self, text: &str) {
        if let Some((_, signature)) = text.split_once("'signature': {") {
            let parameters = signature.split('}').next().unwrap_or_default().split(", ");
            let tensors = parameters.filter_map(|parameter| parameter.split_once(": '*"));
            self.tensors = tensors.map(|(name, _)| name.trim_matches('\'').to_owned()).collect();
        }
        self.is_of_program |= text.starts_with("custom_kernel=True");
    }

    /// Matches source nodes to written parameters at the first launch, which the definition describes.
    ///
    /// Outputs are listed in the order of their buffers' numbers, including those that were optimized away.
    pub(crate) fn match_outputs(&mut self, parameters: &[(&str, Option<usize>)]) {
        let mut written: Vec<(usize, usize)> = Vec::new();
        for parameter in &self.written {
            match parameters.get(*parameter).and_then(|(name, _)| number(name, "buf")) {
                Some(buffer) => written.push((buffer, *parameter)),
                None => return self.outputs.clear(),
            }
        }
        written.sort_unstable();
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.retain(|output| match number(output, "buf") {
            Some(buffer) => {
                written.retain(|(number, _)| *number != buffer);
                false
            }
            None => true,
        });
        if outputs.len() == written.len() {
            let sources = outputs.iter().map(|output| self.source_of.get(output).copied());
            let found = written.iter().zip(sources).filter_map(|((_, parameter), source)| Some((*parameter, source?)));
            self.source_of_parameter.extend(found);
        }
        self.written.clear();
    }

    /// Returns the source nodes of a launch that are certainly TorchDynamo's: those at the position of such a node in
    /// the definition.
    pub(crate) fn known_among(&self, sources: &[String]) -> FxHashSet<String> {
        if sources.len() != self.sources.len() {
            return FxHashSet::default();
        }
        let is_known = |(_, defined): &(&String, &String)| self.known.contains(*defined);
        sources.iter().zip(&self.sources).filter(is_known).map(|(source, _)| source.clone()).collect()
    }
}

/// Extracts the names from a comment of source nodes.
pub(crate) fn source_nodes(comment: &str) -> Option<Vec<String>> {
    let (kind, rest) = comment.split_once(SOURCE_NODES)?;
    if !matches!(kind.trim(), "Topologically Sorted" | "Unsorted" | "") {
        return None;
    }
    let (sources, _) = rest.split_once(']')?;
    Some(sources.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}
