//! What a wrapper says of a kernel where it is defined: which nodes make which output.
//!
//! Kernels that the program wrote are there too. They write into memory that other operations have made.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::scan::number;

const SOURCE_NODES: &str = "Source Nodes: [";

/// A kernel's definition.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    /// The source nodes that its first launch was made from.
    pub(crate) sources: Vec<String>,
    /// The source node of each node of AOTAutograd's graph, as an index into `sources`.
    pub(crate) source_of: FxHashMap<String, usize>,
    /// Source nodes that are nodes of TorchDynamo's graph: AOTAutograd calls nodes that it made itself their own source.
    pub(crate) known: FxHashSet<String>,
    /// The nodes of AOTAutograd's graph (or names of buffers) whose values it writes.
    pub(crate) outputs: Vec<String>,
    /// The positions of its parameters that it writes.
    pub(crate) written: Vec<usize>,
    /// The positions of its parameters that it reads and writes.
    pub(crate) in_place: Vec<usize>,
    /// Whether the program wrote it.
    pub(crate) is_of_program: bool,
    /// Its parameters that are tensors, in order.
    pub(crate) tensors: Vec<String>,
    /// For parameters that it writes: the source node of the value, as an index into `sources`.
    pub(crate) source_of_parameter: FxHashMap<usize, usize>,
}

impl Kernel {
    /// Takes in a comment above the definition.
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

    /// Takes in a line that says how it is compiled.
    pub(crate) fn describe_compilation(&mut self, text: &str) {
        if let Some((_, signature)) = text.split_once("'signature': {") {
            let parameters = signature.split('}').next().unwrap_or_default().split(", ");
            let tensors = parameters.filter_map(|parameter| parameter.split_once(": '*"));
            self.tensors = tensors.map(|(name, _)| name.trim_matches('\'').to_owned()).collect();
        }
        self.is_of_program |= text.starts_with("custom_kernel=True");
    }

    /// At the first launch, which the definition describes: which source node makes the value of which parameter.
    ///
    /// Outputs are listed in the order of their buffers' numbers, with those that were optimized away.
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

    /// Which source nodes of a launch are certainly TorchDynamo's: those in the place of one in the definition.
    pub(crate) fn known_among(&self, sources: &[String]) -> FxHashSet<String> {
        if sources.len() != self.sources.len() {
            return FxHashSet::default();
        }
        let is_known = |(_, defined): &(&String, &String)| self.known.contains(*defined);
        sources.iter().zip(&self.sources).filter(is_known).map(|(source, _)| source.clone()).collect()
    }
}

/// The names in a comment of source nodes.
pub(crate) fn source_nodes(comment: &str) -> Option<Vec<String>> {
    let (kind, rest) = comment.split_once(SOURCE_NODES)?;
    if !matches!(kind.trim(), "Topologically Sorted" | "Unsorted" | "") {
        return None;
    }
    let (sources, _) = rest.split_once(']')?;
    Some(sources.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}
