//! Assigns small ids to frames, stacks and layers, shared by all threads, so that events need not repeat them.
//!
//! A definition is appended to the log under the table's lock, before any thread can learn the id. So in the file it always
//! precedes its first use. The lock belongs to memlab, and no code of the program or of Python runs while it is held.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashMap;
use memlab_inductor::SourceFrame;
use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::BENCHMARKS;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use crate::sources::Sources;
use interpose_base::file_names::{absolute, is_cell, numbered_cell, without_numbers};
use interpose_base::frame_role::FrameRole;
use interpose_base::log::Log;
use interpose_python::walk::{CodeIdentity, Interpreter, RawFrame};

#[derive(Clone, Copy)]
pub struct Frame {
    pub id: u32,
    pub role: FrameRole,
    pub identity: CodeIdentity,
}

/// A layer whose qualified name is not known yet.
#[derive(Clone, Copy)]
pub struct UnnamedLayer {
    pub id: u32,
    pub parent: u32,
    /// Address of the module, which may have died since.
    ///
    /// For generated code, the address of its graph module. For a graph's node, the node's address. 0 for a wrapper of
    /// Inductor.
    pub module: usize,
    /// For a layer of generated code, the id of the frame that represents it; [`UnnamedLayer::NODE`] for a graph's node;
    /// otherwise 0.
    pub generated: u32,
    /// Line of that frame.
    pub line: u32,
}

/// A place in a wrapper of Inductor.
///
/// In an AOTInductor package, the function is the node that it computes, or empty.
#[derive(Clone)]
pub struct WrapperPlace {
    pub file: String,
    pub line: u32,
    pub function: String,
}

impl UnnamedLayer {
    pub const NODE: u32 = u32::MAX;
}

/// A frame of a notebook cell, with the file name that IPython generated for the cell.
pub struct Cell {
    pub frame: u32,
    pub file: String,
    /// 0: none.
    pub line: u32,
    pub function: String,
}

/// Maximum number of layers of dead modules with tensors that are kept apart, for one class and one caller.
///
/// A program may create any number of such modules.
const MAX_DEAD_LAYERS: usize = 64;

/// Maximum number of frames of code without a file (`<string>`, `<eval_with_key>.7`) that are kept apart by the numbers in
/// the code's name.
///
/// Further frames are joined under one name without the numbers. A program may create any number of them.
const MAX_NUMBERED_FRAMES: u32 = 4096;

/// The interner's record of a layer.
struct LayerRecord {
    parent: u32,
    /// Hash of the class's name.
    class: u64,
    /// Hash of the layer's name; 0: not named yet.
    name: u64,
    /// True for an outermost module without parameters and buffers, such as a loss.
    is_tensorless: bool,
}

#[derive(Default)]
struct InternTables {
    /// Hashes strings.
    texts: RandomState,
    /// Frames by file, function and line: code that is compiled repeatedly is one frame.
    frames_by_content: HashMap<(u64, usize, Option<u32>), u32, FxBuildHasher>,
    /// Layers by id, from 1.
    facts: Vec<LayerRecord>,
    /// Layers whose module died, by parent and class.
    ///
    /// The next module of the same parent and class takes over one of them, so that losses created at every step share one
    /// layer.
    dead: HashMap<(u32, u64), BTreeSet<u32>, FxBuildHasher>,
    frames: HashMap<(usize, usize), Frame, FxBuildHasher>,
    stacks: HashMap<(u32, u32), u32, FxBuildHasher>,
    /// By parent layer and module address: the layer, and the module's class.
    ///
    /// A module's death removes its entries, since its address will be reused. If memlab missed the death, a different class
    /// reveals it.
    layers: HashMap<(u32, usize), (u32, usize), FxBuildHasher>,
    layers_of_module: HashMap<usize, Vec<u32>, FxBuildHasher>,
    /// Parent and class of the layers that have no name yet.
    nameless: HashMap<u32, (u32, String), FxBuildHasher>,
    /// Code objects whose local of this index contains a module.
    module_codes: HashMap<usize, (CodeIdentity, usize), FxBuildHasher>,
    last_frame: u32,
    /// Number of frames of code without a file.
    made_frames: u32,
    last_stack: u32,
    unnamed: Vec<UnnamedLayer>,
    /// Frames of Inductor's wrappers.
    wrappers: HashMap<u32, WrapperPlace, FxBuildHasher>,
    /// Frames of cells, new since the interpreter was last asked for the notebook's names of the cells.
    cells: Vec<Cell>,
}

impl InternTables {
    fn facts(&mut self, layer: u32) -> Option<&mut LayerRecord> {
        self.facts.get_mut((layer as usize).checked_sub(1)?)
    }

    /// Returns a layer for a module of this class that `parent` calls: the layer of a dead module or, if the second value is
    /// true, a new one.
    fn take_layer(&mut self, parent: u32, class: &str) -> (u32, bool) {
        let class = self.texts.hash_one(class);
        // Take the oldest: modules called in the same order as before get the same layers.
        let dead = self.dead.get(&(parent, class)).and_then(|dead| Some((*dead.first()?, dead.len())));
        if let Some((layer, dead)) = dead
            && (dead > MAX_DEAD_LAYERS || self.may_be_joined(layer))
        {
            self.dead.entry((parent, class)).and_modify(|dead| {
                dead.remove(&layer);
            });
            return (layer, false);
        }
        self.facts.push(LayerRecord { parent, class, name: 0, is_tensorless: false });
        (self.facts.len() as u32, true)
    }

    /// Returns true if another module can take over this layer without losing information.
    fn may_be_joined(&mut self, layer: u32) -> bool {
        let mut outermost = layer;
        let Some(facts) = self.facts(layer) else { return false };
        if facts.name == 0 {
            return true;
        }
        while let Some(&mut LayerRecord { parent, .. }) = self.facts(outermost)
            && parent != 0
        {
            outermost = parent;
        }
        self.facts(outermost).is_some_and(|facts| facts.is_tensorless)
    }

    /// Makes the layer of a dead module available to another module.
    fn mark_dead(&mut self, layer: u32) {
        if let Some(&mut LayerRecord { parent, class, .. }) = self.facts(layer) {
            self.dead.entry((parent, class)).or_default().insert(layer);
        }
    }

    /// Defines a layer that has no name yet; returns its id.
    fn add_layer(
        &mut self,
        log: &Log,
        key: (u32, usize),
        kind: usize,
        class: String,
        (layer, is_new): (UnnamedLayer, bool),
    ) -> u32 {
        if is_new {
            log.append(encode::layer(&mut LineBuffer::<1024>::new(), layer.id, layer.parent, &class, None, None));
        }
        if let Some((unnoticed, _)) = self.layers.insert(key, (layer.id, kind)) {
            self.mark_dead(unnoticed);
        }
        self.nameless.insert(layer.id, (layer.parent, class));
        self.unnamed.push(layer);
        layer.id
    }
}

/// Returns the id of a frame of the program that other code represents.
///
/// Defines it at the first call.
fn define_source_frame(tables: &mut InternTables, log: &Log, file: &str, line: Option<u32>, function: &str) -> u32 {
    // No frame of running code has this position.
    let content = (tables.texts.hash_one((file, function)), usize::MAX, line);
    if let Some(&known) = tables.frames_by_content.get(&content) {
        return known;
    }
    tables.last_frame += 1;
    let id = tables.last_frame;
    tables.frames_by_content.insert(content, id);
    log.append(encode::frame(&mut LineBuffer::<4096>::new(), id, file, line, function));
    id
}

#[derive(Default)]
pub struct Interner {
    tables: Mutex<InternTables>,
    pub sources: Sources,
}

impl Interner {
    /// Returns the frame's id and role.
    ///
    /// The second value is true for a new frame of a notebook cell, which needs the cell's name.
    pub fn frame(&self, log: &Log, python: &Interpreter, raw: &RawFrame, identity: CodeIdentity) -> (Frame, bool) {
        let mut tables = self.tables.lock();
        let key = (raw.code as usize, raw.position);
        if let Some(&frame) = tables.frames.get(&key)
            && frame.identity == identity
        {
            return (frame, false);
        }
        let file = absolute(python.file(raw.code));
        let file = numbered_cell(&file).unwrap_or(file);
        let (function, line) = (python.qualified_name(raw), python.line(raw));
        let (role, is_cell) = (FrameRole::of(&file, &python.name(raw.code), &function), is_cell(&file));
        let is_made = file.starts_with('<') && !is_cell;
        let is_joined = is_made && tables.made_frames >= MAX_NUMBERED_FRAMES;
        let file = if is_joined { without_numbers(&file) } else { file };
        let role = if is_joined && role == FrameRole::GENERATED { FrameRole::empty() } else { role };
        // Positions are addresses, which differ between identical pieces of code.
        let position = if is_joined { 0 } else { raw.position };
        let content = (tables.texts.hash_one((&file, &function)), position, line);
        // Frames of generated code and of cells are never shared: the agent describes each separately.
        let alike = !is_cell && role != FrameRole::GENERATED;
        let known = tables.frames_by_content.get(&content).copied().filter(|_| alike);
        let id = known.unwrap_or_else(|| {
            tables.last_frame += 1;
            tables.made_frames += u32::from(is_made);
            let id = tables.last_frame;
            tables.frames_by_content.insert(content, id);
            let mut buffer = LineBuffer::<4096>::new();
            if role.intersects(FrameRole::BENCHMARK) {
                let benchmarks = define_source_frame(&mut tables, log, BENCHMARKS, None, "");
                log.append(encode::compiled_frame(&mut buffer, id, &file, line, &function, &[benchmarks]));
            } else if role.intersects(FrameRole::WRAPPER) {
                log.append(encode::compiled_frame(&mut buffer, id, &file, line, &function, &[]));
                let place = WrapperPlace { file: file.clone(), line: line.unwrap_or(0), function: function.clone() };
                tables.wrappers.insert(id, place);
            } else {
                log.append(encode::frame(&mut buffer, id, &file, line, &function));
                self.sources.met(&file, line);
            }
            id
        });
        let frame = Frame { id, role, identity };
        if let Some(local) = frame.role.local() {
            tables.module_codes.insert(raw.code as usize, (identity, local));
        }
        tables.frames.insert(key, frame);
        if is_cell {
            tables.cells.push(Cell { frame: frame.id, file, line: line.unwrap_or(0), function });
        }
        (frame, is_cell)
    }

    /// Takes the frames of cells that are new since the last call.
    pub fn take_cells(&self) -> Vec<Cell> {
        std::mem::take(&mut self.tables.lock().cells)
    }

    /// Returns the index of the local in which a frame of this code holds a module, if known.
    ///
    /// The locals of other frames may hold no object at all.
    pub fn module_local(&self, code: *const u8, identity: CodeIdentity) -> Option<usize> {
        match self.tables.lock().module_codes.get(&(code as usize)) {
            Some(&(known, local)) if known == identity => Some(local),
            _ => None,
        }
    }

    pub fn stack(&self, log: &Log, parent: u32, frame: u32) -> u32 {
        let mut tables = self.tables.lock();
        if let Some(&stack) = tables.stacks.get(&(parent, frame)) {
            return stack;
        }
        tables.last_stack += 1;
        let stack = tables.last_stack;
        log.append(encode::stack(&mut LineBuffer::<128>::new(), stack, parent, frame));
        tables.stacks.insert((parent, frame), stack);
        stack
    }

    /// Returns the layer of `module` (or graph `node`) called by layer `parent`.
    ///
    /// The second value is true if the layer is new and needs a name.
    pub fn layer(&self, log: &Log, python: &Interpreter, parent: u32, module: *const u8, node: bool) -> (u32, bool) {
        let mut tables = self.tables.lock();
        let (key, kind) = ((parent, module as usize), python.class(module) as usize);
        if let Some(&(layer, known)) = tables.layers.get(&key)
            && known == kind
        {
            return (layer, false);
        }
        tables.layers_of_module.entry(module as usize).or_default().push(parent);
        let generated = if node { UnnamedLayer::NODE } else { 0 };
        let class = python.class_name(module);
        let (id, is_new) = tables.take_layer(parent, &class);
        let layer = UnnamedLayer { id, parent, module: module as usize, generated, line: 0 };
        (tables.add_layer(log, key, kind, class, (layer, is_new)), true)
    }

    /// Returns the layer for a frame of generated code, or of a wrapper of Inductor, that layer `parent` runs.
    ///
    /// The result is like that of [`layer`](Self::layer).
    pub fn generated_layer(
        &self,
        log: &Log,
        python: &Interpreter,
        parent: u32,
        frame: Frame,
        raw: &RawFrame,
    ) -> (u32, bool) {
        let mut tables = self.tables.lock();
        // Frame ids are small numbers, which are never module addresses.
        let key = (parent, frame.id as usize);
        if let Some(&(layer, _)) = tables.layers.get(&key) {
            return (layer, false);
        }
        let (class, module, line) = if frame.role.intersects(FrameRole::WRAPPER) {
            ("", 0, 0) // Readers attribute a layer without a class to its caller.
        } else {
            ("GraphModule", python.local(raw.frame, 0) as usize, python.line(raw).unwrap_or(0))
        };
        let (id, is_new) = tables.take_layer(parent, class);
        let layer = UnnamedLayer { id, parent, module, generated: frame.id, line };
        (tables.add_layer(log, key, 0, class.to_owned(), (layer, is_new)), true)
    }

    /// Returns the frame for a line of an AOTInductor package; `line.file` is the package's library.
    pub fn package_frame(&self, log: &Log, source: &str, line: WrapperPlace) -> u32 {
        let mut tables = self.tables.lock();
        // No Python frame has this position.
        let content = (tables.texts.hash_one((&line.file, source)), usize::MAX, Some(line.line));
        if let Some(&known) = tables.frames_by_content.get(&content) {
            return known;
        }
        tables.last_frame += 1;
        let id = tables.last_frame;
        tables.frames_by_content.insert(content, id);
        log.append(encode::frame(&mut LineBuffer::<4096>::new(), id, source, Some(line.line), &line.function));
        tables.wrappers.insert(id, line);
        id
    }

    /// Returns the layer for a package line that layer `parent` runs.
    ///
    /// The result is like that of [`layer`](Self::layer).
    pub fn package_layer(&self, log: &Log, parent: u32, frame: u32) -> (u32, bool) {
        let mut tables = self.tables.lock();
        let key = (parent, frame as usize);
        if let Some(&(layer, _)) = tables.layers.get(&key) {
            return (layer, false);
        }
        let (id, is_new) = tables.take_layer(parent, "");
        let layer = UnnamedLayer { id, parent, module: 0, generated: frame, line: 0 };
        (tables.add_layer(log, key, 0, String::new(), (layer, is_new)), true)
    }

    /// Returns the place of a wrapper's frame.
    pub fn wrapper_place(&self, frame: u32) -> Option<WrapperPlace> {
        self.tables.lock().wrappers.get(&frame).cloned()
    }

    /// Defines a wrapper's frame again, with the program lines that it represents, the outermost first.
    pub fn define_wrapper(&self, log: &Log, frame: u32, lines: &[SourceFrame]) {
        let mut tables = self.tables.lock();
        let mut stands_for = Vec::with_capacity(lines.len());
        for SourceFrame { file, line, function } in lines {
            stands_for.push(define_source_frame(&mut tables, log, file, Some(*line), function));
            self.sources.met(file, Some(*line));
        }
        let Some(WrapperPlace { file, line, function }) = tables.wrappers.get(&frame) else { return };
        let line = (*line != 0).then_some(*line);
        log.append(encode::compiled_frame(&mut LineBuffer::<4096>::new(), frame, file, line, function, &stands_for));
    }

    /// Defines a layer for a module that compiled code runs without calling it; returns its id.
    pub fn add_compiled_root(&self, log: &Log, class: &[u8], variable: &[u8]) -> u32 {
        let mut tables = self.tables.lock();
        let class = String::from_utf8_lossy(class).into_owned();
        let hash = tables.texts.hash_one(&class);
        tables.facts.push(LayerRecord { parent: 0, class: hash, name: 0, is_tensorless: false });
        let id = tables.facts.len() as u32;
        let variable = (!variable.is_empty()).then_some(variable);
        log.append(encode::layer(&mut LineBuffer::<1024>::new(), id, 0, &class, Some(b""), variable));
        id
    }

    pub fn take_unnamed(&self) -> Vec<UnnamedLayer> {
        std::mem::take(&mut self.tables.lock().unnamed)
    }

    /// Queues the layers of `taken` that still have no name again, before all later ones: callers must precede their
    /// callees.
    pub fn put_back_unnamed(&self, mut taken: Vec<UnnamedLayer>) {
        let mut tables = self.tables.lock();
        taken.retain(|layer| tables.nameless.contains_key(&layer.id));
        taken.append(&mut tables.unnamed);
        tables.unnamed = taken;
    }

    /// Returns the class of a layer that has no name yet.
    pub fn class_of(&self, layer: u32) -> String {
        self.tables.lock().nameless.get(&layer).map(|(_, class)| class.clone()).unwrap_or_default()
    }

    /// Writes the layer's qualified name in its outermost module.
    ///
    /// Non-empty arguments also give the class of the module meant (for generated code), and the variable that holds an
    /// outermost module. `outermost` is the layer that serves as outermost module (of a replica) if no module called this
    /// one.
    pub fn name_layer(&self, log: &Log, layer: u32, name: &[u8], class: &[u8], variable: &[u8], outermost: u32) {
        let mut tables = self.tables.lock();
        if let Some((caller, known)) = tables.nameless.remove(&layer) {
            let parent = if caller == 0 && outermost != layer { outermost } else { caller };
            let class = if class.is_empty() { known.as_bytes() } else { class };
            let variable = (!variable.is_empty()).then_some(variable);
            let text = tables.texts.hash_one((parent, name, class, variable)) | 1;
            let is_said = tables.facts(layer).is_some_and(|facts| std::mem::replace(&mut facts.name, text) == text);
            if is_said {
                return; // The dead module of this layer had the same name.
            }
            log.append(encode::layer(&mut LineBuffer::<4096>::new(), layer, parent, class, Some(name), variable));
        }
    }

    /// Marks the outermost module of this layer as having no tensors.
    pub fn is_tensorless(&self, layer: u32) {
        if let Some(facts) = self.tables.lock().facts(layer) {
            facts.is_tensorless = true;
        }
    }

    /// Forgets a module that died: a module at its address from now on is a different one.
    pub fn forget_module(&self, module: usize) {
        let mut tables = self.tables.lock();
        for parent in tables.layers_of_module.remove(&module).unwrap_or_default() {
            if let Some((layer, _)) = tables.layers.remove(&(parent, module)) {
                tables.nameless.remove(&layer);
                tables.mark_dead(layer);
            }
        }
    }
}
