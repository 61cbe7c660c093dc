//! Symbols: frames, stacks, layers, and the line that counts each stack.
//!
//! Events may use ids before their definitions. In a hostile trace, ids may be arbitrarily large and form cycles. All
//! lookups therefore go by hash, and every walk remembers the ids it visited.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use hashbrown::{HashMap, HashSet};

use super::code_origin::{CodeOrigin, CodeRoots};
use super::line::Line;
use super::scope::{ByScope, Scope};
use super::sources::Sources;
use super::tensor_names::{TensorName, TensorNames};
use super::views::RangePath;
use memlab_format::record::{self, UNKNOWN_COMPILED};

/// Maximum number of frames read from a stack, from the innermost one.
///
/// memlab writes at most 512 frames for a stack, plus those of backward.
pub const MAX_STACK_DEPTH: usize = 1024;

/// Maximum number of enclosing ranges read, from the innermost one. memlab nests at most 128.
const MAX_RANGE_DEPTH: usize = 256;

/// Maximum length of the name of a file, function, layer or range, in bytes: `PATH_MAX`.
///
/// Names are repeated for every block.
const MAX_NAME_BYTES: usize = 4096;

/// Cuts a name to [`MAX_NAME_BYTES`].
fn bounded(name: &str) -> &str {
    if name.len() <= MAX_NAME_BYTES { name } else { &name[..name.floor_char_boundary(MAX_NAME_BYTES)] }
}

/// An interned line: index into [`Symbols::lines`] plus one; 0: no line.
pub(crate) type LineId = u32;

/// The result of resolving the line of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResolvedLine {
    /// The line; 0: the stack has none.
    Line(LineId),
    /// A definition is missing so far.
    Missing(MissingDefinition),
}

/// The missing definition that stopped a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MissingDefinition {
    /// A stack.
    Stack(u32),
    /// A frame.
    Frame(u32),
}

/// A frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) line: Arc<Line>,
    pub(crate) origin: CodeOrigin,
    /// Ids of the frames that compiled code stands for, outermost first; empty if they are not known.
    pub(crate) stands_for: Option<Arc<[u32]>>,
}

/// Placeholder for the program's lines of compiled code that names none.
static UNKNOWN_FRAME: LazyLock<Frame> = LazyLock::new(|| Frame {
    line: Arc::new(Line { file: UNKNOWN_COMPILED.into(), line: None, function: "".into() }),
    origin: CodeOrigin::User,
    stands_for: None,
});

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layer {
    pub(crate) parent: u32,
    pub(crate) class: Arc<str>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) variable: Option<Arc<str>>,
}

/// A range named by the program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Range {
    pub(crate) parent: u32,
    pub(crate) name: Arc<str>,
}

/// An owner of tensors by tags: an outermost module and a qualified name in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) root: u32,
    pub(crate) name: Arc<str>,
}

/// All definitions of a trace.
#[derive(Clone, Default)]
pub(crate) struct Symbols {
    pub(crate) frames: HashMap<u32, Frame>,
    /// Files of all frames ever defined.
    pub(crate) files: HashSet<Arc<str>>,
    pub(crate) stacks: HashMap<u32, record::Stack>,
    pub(crate) layers: HashMap<u32, Layer>,
    pub(crate) ranges: HashMap<u32, Range>,
    pub(crate) kernels: HashMap<u32, Arc<str>>,
    pub(crate) threads: HashMap<u32, record::Thread>,
    pub(crate) software: Vec<record::Software>,
    pub(crate) sources: Arc<Sources>,
    lines: Vec<Arc<Line>>,
    line_ids: HashMap<Arc<Line>, LineId>,
    /// Best frame of each resolved stack, by scope; `None`: the stack has none.
    stack_lines: ByScope<HashMap<u32, Option<BestFrame>>>,
    /// Frames that compiled code stands for, and their lines.
    compiled_frames: HashSet<u32>,
    compiled_lines: HashSet<Arc<Line>>,
    owners: Vec<Owner>,
    owner_ids: HashMap<Owner, u32>,
    pub(crate) tensor_names: TensorNames,
    places: CodeRoots,
}

/// The best frame of a stack so far.
#[derive(Clone, Copy)]
struct BestFrame {
    rank: CodeOrigin,
    line: LineId,
}

impl Symbols {
    /// Adds a software definition. Returns true if it changes the origin of frames.
    pub(crate) fn define_software(&mut self, software: record::Software) -> bool {
        let changes = self.places.define_software(&software) && self.classify_frames_again();
        self.software.retain(|known| known.software != software.software);
        // Bounds the list for hostile traces; a process has a handful.
        if self.software.len() < 256 {
            self.software.push(software);
        }
        changes
    }

    /// Adds a declared folder. Returns true if it changes the origin of frames.
    pub(crate) fn define_root(&mut self, root: record::CodeRoot) -> bool {
        self.places.define_root(root) && self.classify_frames_again()
    }

    /// Returns the declared folders.
    pub(crate) fn code_roots(&self) -> &[record::CodeRoot] {
        &self.places.roots
    }

    /// Adds a frame definition. Returns true if it changes the line of resolved stacks.
    pub(crate) fn define_frame(&mut self, frame: &record::Frame<'_>) -> bool {
        let line = Arc::new(Line {
            file: Arc::clone(self.files.get_or_insert_with(bounded(&frame.file), |file| file.into())),
            line: frame.line,
            function: bounded(&frame.function).into(),
        });
        let stands_for = frame.stands_for.as_ref().map(|known| known[..known.len().min(MAX_STACK_DEPTH)].into());
        let new = Frame { origin: self.places.code_origin(&line.file, &line.function), line, stands_for };
        if self.compiled_frames.contains(&frame.frame) {
            self.compiled_lines.insert(new.line.clone());
        }
        if let Some(known) = &new.stands_for {
            let lines = known.iter().filter_map(|id| self.frames.get(id)).map(|frame| frame.line.clone());
            self.compiled_lines.extend(lines);
            self.compiled_frames.extend(known.iter());
        }
        let changes = self.frames.insert(frame.frame, new.clone()).is_some_and(|old| old != new);
        if changes {
            self.forget_lines();
        }
        changes
    }

    /// Adds a stack definition. Returns true if it replaces a different one.
    pub(crate) fn define_stack(&mut self, stack: record::Stack) -> bool {
        let changes = self.stacks.insert(stack.stack, stack).is_some_and(|old| old != stack);
        if changes {
            self.forget_lines();
        }
        changes
    }

    pub(crate) fn define_source(&mut self, source: &record::Source<'_>) {
        Arc::make_mut(&mut self.sources).define(source);
    }

    pub(crate) fn define_layer(&mut self, layer: record::Layer) {
        let [name, variable] =
            [layer.name, layer.variable].map(|text| text.as_deref().map(|text| Arc::from(bounded(text))));
        let new = Layer { parent: layer.parent, class: bounded(&layer.class).into(), name, variable };
        self.layers.insert(layer.layer, new);
    }

    pub(crate) fn define_range(&mut self, range: record::Range) {
        let new = Range { parent: range.parent, name: bounded(&range.name).into() };
        self.ranges.insert(range.range, new);
    }

    pub(crate) fn define_kernel(&mut self, kernel: &record::Kernel) {
        self.kernels.insert(kernel.kernel, bounded(&kernel.name).into());
    }

    /// Returns the name of a kernel, copy or fill.
    pub(crate) fn kernel_name(&self, kernel: u32) -> Arc<str> {
        self.kernels.get(&kernel).cloned().unwrap_or_else(|| "(other kernels)".into())
    }

    pub(crate) fn define_thread(&mut self, thread: record::Thread) {
        self.threads.insert(thread.thread, thread);
    }

    pub(crate) fn adopt_names(&mut self, later: &Self) {
        self.layers.clone_from(&later.layers);
        self.ranges.clone_from(&later.ranges);
        self.threads.clone_from(&later.threads);
    }

    /// Returns the approximate heap size in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        /// Overhead of a map entry, and of texts that are not shared.
        const ENTRY_OVERHEAD_BYTES: usize = 64;
        let entries =
            [self.frames.len(), self.stacks.len(), self.layers.len(), self.ranges.len(), self.tensor_names.all().len()];
        let found: usize = self.stack_lines.values().iter().map(HashMap::len).sum();
        (entries.iter().sum::<usize>() + found + self.lines.len() + self.owners.len()) * ENTRY_OVERHEAD_BYTES
            + self.sources.bytes()
    }

    fn forget_lines(&mut self) {
        self.stack_lines.values_mut().iter_mut().for_each(HashMap::clear);
    }

    /// Determines the origin of all frames again. Returns true if any changed.
    fn classify_frames_again(&mut self) -> bool {
        let mut changes = false;
        for frame in self.frames.values_mut() {
            let origin = self.places.code_origin(&frame.line.file, &frame.line.function);
            changes |= frame.origin != origin;
            frame.origin = origin;
        }
        if changes {
            self.forget_lines();
        }
        changes
    }

    pub(crate) fn intern_line(&mut self, line: &Arc<Line>) -> LineId {
        if let Some(id) = self.line_ids.get(line) {
            return *id;
        }
        self.lines.push(line.clone());
        let id = self.lines.len() as LineId;
        self.line_ids.insert(line.clone(), id);
        id
    }

    /// Returns all lines, in the order of their ids.
    pub(crate) fn lines(&self) -> &[Arc<Line>] {
        &self.lines
    }

    /// Returns the line with this id; `None` for 0.
    pub(crate) fn line(&self, id: LineId) -> Option<&Arc<Line>> {
        self.lines.get((id as usize).checked_sub(1)?)
    }

    pub(crate) fn intern_owner(&mut self, root: u32, name: &str) -> u32 {
        let owner = Owner { root, name: bounded(name).into() };
        if let Some(id) = self.owner_ids.get(&owner) {
            return *id;
        }
        self.owners.push(owner.clone());
        let id = self.owners.len() as u32;
        self.owner_ids.insert(owner, id);
        id
    }

    pub(crate) fn intern_tensor(&mut self, name: &str, shard: &str) -> u32 {
        self.tensor_names.intern(TensorName { name: bounded(name).into(), shard: bounded(shard).into() })
    }

    /// Returns the owner with this id; `None` for 0.
    pub(crate) fn owner(&self, id: u32) -> Option<&Owner> {
        self.owners.get((id as usize).checked_sub(1)?)
    }

    /// Returns all owners, in the order of their ids.
    pub(crate) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// Resolves the line of a stack in a scope: the innermost frame of the best origin.
    pub(crate) fn resolve(&mut self, stack: u32, scope: Scope) -> ResolvedLine {
        let mut climbed = Vec::new();
        let mut seen = HashSet::new();
        let mut at = stack;
        let mut best = loop {
            if at == 0 {
                break None;
            }
            if let Some(best) = self.stack_lines[scope].get(&at) {
                break *best;
            }
            if climbed.len() == MAX_STACK_DEPTH {
                break None;
            }
            if !seen.insert(at) {
                // The frames of a cycle depend on its entry point, so a cycle counts as no stack.
                climbed.iter_mut().for_each(|(_, frame)| *frame = None);
                break None;
            }
            let Some(node) = self.stacks.get(&at) else {
                return ResolvedLine::Missing(MissingDefinition::Stack(at));
            };
            let frame = match node.frame {
                0 => None,
                id => Some(self.frames.get(&id).ok_or(MissingDefinition::Frame(id))),
            };
            let frame = match frame.transpose() {
                Err(missing) => return ResolvedLine::Missing(missing),
                Ok(frame) => frame.cloned(),
            };
            let stood_for = frame.iter().filter_map(|frame| frame.stands_for.as_deref()).flatten();
            if let Some(id) = stood_for.copied().find(|id| !self.frames.contains_key(id)) {
                return ResolvedLine::Missing(MissingDefinition::Frame(id));
            }
            let is_best =
                frame.as_ref().is_some_and(|frame| self.stood_for(frame).any(|frame| scope.shows(frame.origin)));
            climbed.push((at, frame));
            if is_best {
                break None;
            }
            at = node.parent;
        };
        for (stack, frame) in climbed.into_iter().rev() {
            if let Some(frame) = frame {
                let shown: Vec<Frame> = self.stood_for(&frame).cloned().collect();
                for inner in shown {
                    if best.is_none_or(|best| scope.rank(inner.origin) <= best.rank) {
                        best = Some(BestFrame { rank: scope.rank(inner.origin), line: self.intern_line(&inner.line) });
                    }
                }
            }
            self.stack_lines[scope].insert(stack, best);
        }
        ResolvedLine::Line(best.map_or(0, |best| best.line))
    }

    /// Returns the frame that counts a stack, without caching it.
    pub(crate) fn frame_of(&self, stack: u32, scope: Scope) -> Option<&Frame> {
        // min_by_key returns the first of equals, which is the innermost.
        self.climb(stack).min_by_key(|frame| scope.rank(frame.origin))
    }

    /// Returns the origin of a line's code.
    pub(crate) fn code_origin(&self, line: &Line) -> CodeOrigin {
        self.places.code_origin(&line.file, &line.function)
    }

    /// Returns true if compiled code stands for the line.
    ///
    /// The placeholders for unknown lines and for benchmarks have no line number.
    pub(crate) fn is_compiled(&self, line: &Arc<Line>) -> bool {
        line.line.is_some() && self.compiled_lines.contains(line)
    }

    /// Returns a frame, followed by the frames it stands for if it is compiled code, outermost first.
    pub(crate) fn stood_for<'s>(&'s self, frame: &'s Frame) -> impl DoubleEndedIterator<Item = &'s Frame> {
        let known = frame.stands_for.as_deref();
        let unknown = known.is_some_and(<[u32]>::is_empty).then(|| &*UNKNOWN_FRAME);
        std::iter::once(frame)
            .chain(unknown)
            .chain(known.unwrap_or_default().iter().filter_map(|id| self.frames.get(id)))
    }

    /// Returns the frames of a stack, innermost first.
    pub(crate) fn climb(&self, stack: u32) -> impl Iterator<Item = &Frame> {
        self.climb_stacks(stack).map(|(_, frame)| frame)
    }

    /// Returns the frames of a stack with the stack that ends in each.
    ///
    /// Compiled code expands to the frames that it stands for.
    pub(crate) fn climb_stacks(&self, stack: u32) -> impl Iterator<Item = (u32, &Frame)> {
        self.climb_nodes(stack).flat_map(|(here, frame)| self.stood_for(frame).rev().map(move |shown| (here, shown)))
    }

    /// Returns the stacks from this one to the outermost, with the frame that each ends in.
    pub(crate) fn climb_nodes(&self, stack: u32) -> impl Iterator<Item = (u32, &Frame)> {
        let mut at = stack;
        let mut seen = HashSet::new();
        std::iter::from_fn(move || {
            if at == 0 || !seen.insert(at) {
                return None;
            }
            let node = self.stacks.get(&at)?;
            let here = std::mem::replace(&mut at, node.parent);
            Some(self.frames.get(&node.frame).map(|frame| (here, frame)))
        })
        .take(MAX_STACK_DEPTH)
        .flatten()
    }

    /// Returns the frame ids of a stack, innermost first.
    pub(crate) fn climb_frame_ids(&self, stack: u32) -> Vec<u32> {
        self.climb_nodes(stack).filter_map(|(at, _)| self.stacks.get(&at)).map(|node| node.frame).collect()
    }

    /// Returns the layers from this one to its outermost module.
    fn climb_layers(&self, layer: u32) -> impl Iterator<Item = (u32, &Layer)> {
        let mut at = layer;
        let mut seen = HashSet::new();
        std::iter::from_fn(move || {
            if at == 0 || !seen.insert(at) {
                return None;
            }
            let node = self.layers.get(&at)?;
            let id = at;
            at = node.parent;
            Some((id, node))
        })
        .take(MAX_STACK_DEPTH)
    }

    /// Returns the number of stacks deeper than [`MAX_STACK_DEPTH`].
    pub(crate) fn deep_stacks(&self) -> usize {
        let mut depths: HashMap<u32, usize> = HashMap::with_capacity(self.stacks.len());
        let mut climbed = Vec::new();
        for stack in self.stacks.keys() {
            let mut at = *stack;
            while let Some(node) = self.stacks.get(&at)
                && !depths.contains_key(&at)
            {
                depths.insert(at, 0); // This also ends a loop.
                climbed.push(at);
                at = node.parent;
            }
            let mut depth = depths.get(&at).copied().unwrap_or(0);
            while let Some(inner) = climbed.pop() {
                depth += 1;
                depths.insert(inner, depth);
            }
        }
        depths.values().filter(|depth| **depth > MAX_STACK_DEPTH).count()
    }

    /// Returns the innermost layer that stands for a module. Skips compiled code outside all modules.
    pub(crate) fn module_layer(&self, layer: u32) -> u32 {
        match self.climb_layers(layer).find(|(_, layer)| !layer.class.is_empty()) {
            Some((module, _)) => module,
            None if self.layers.contains_key(&layer) => 0,
            None => layer,
        }
    }

    /// Returns the outermost module of a layer; the layer itself while it is undefined.
    pub(crate) fn root_of(&self, layer: u32) -> u32 {
        self.climb_layers(layer).last().map_or(layer, |(id, _)| id)
    }

    /// Returns the qualified name of a layer, else the chain of class names from its outermost module.
    pub(crate) fn layer_name(&self, layer: u32) -> Option<Arc<str>> {
        if layer == 0 {
            return None;
        }
        if let Some(Layer { name: Some(name), .. }) = self.layers.get(&layer) {
            return Some(name.clone());
        }
        let mut classes: Vec<&str> = self.climb_layers(layer).take(64).map(|(_, layer)| &*layer.class).collect();
        if classes.is_empty() {
            return Some(format!("<layer {layer}>").into());
        }
        classes.reverse();
        Some(format!("<{}>", classes.join(".")).into())
    }

    /// Returns the names of outermost modules.
    ///
    /// The name is the class. If several modules share a class, it is the variable that holds only this one, else class and
    /// number.
    pub(crate) fn root_names(&self, roots: &BTreeSet<u32>) -> HashMap<u32, Arc<str>> {
        let mut of_class: BTreeMap<&str, Vec<(u32, &Layer)>> = BTreeMap::new();
        for (root, layer) in roots.iter().filter_map(|root| Some((*root, self.layers.get(root)?))) {
            of_class.entry(&layer.class).or_default().push((root, layer));
        }
        let mut names = HashMap::new();
        for (class, roots) in of_class {
            let mut held: HashMap<&Arc<str>, u32> = HashMap::new();
            for variable in roots.iter().filter_map(|(_, layer)| layer.variable.as_ref()) {
                *held.entry(variable).or_default() += 1;
            }
            for (number, (root, layer)) in roots.iter().enumerate() {
                let name: Arc<str> = match layer.variable.as_ref().filter(|variable| held.get(variable) == Some(&1)) {
                    _ if roots.len() == 1 => class.into(),
                    Some(variable) => variable.clone(),
                    None => format!("{class} #{}", number + 1).into(),
                };
                names.insert(*root, name);
            }
        }
        names
    }

    /// Returns the names of a range and its enclosing ranges, outermost first; empty for 0.
    pub(crate) fn range_path(&self, range: u32) -> RangePath {
        let mut names = Vec::new();
        let mut at = range;
        let mut seen = HashSet::new();
        while at != 0 && names.len() < MAX_RANGE_DEPTH && seen.insert(at) {
            let Some(known) = self.ranges.get(&at) else {
                names.push(format!("<range {at}>").into());
                break;
            };
            names.push(known.name.clone());
            at = known.parent;
        }
        names.reverse();
        names.into()
    }

    /// Returns the class of a layer, if known.
    pub(crate) fn layer_class(&self, layer: u32) -> Option<Arc<str>> {
        self.layers.get(&layer).map(|layer| layer.class.clone())
    }
}
