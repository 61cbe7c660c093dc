//! Things said often are said once: frames, stacks and layers get small ids, shared by all threads.
//!
//! A definition is appended to the log under the table's lock, before any thread can learn the id, so the file always
//! has it before its first use. The lock is memlab's own and nothing is called out to while it is held.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashMap;
use memlab_trace::encode::{self, LineBuffer};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use crate::log::Log;
use crate::python::walk::{CodeIdentity, Interpreter, RawFrame};
use crate::sources::Sources;

/// What a Python frame means to attribution besides its line.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameRole(u8);

impl FrameRole {
    pub const NONE: Self = Self(0);
    /// `nn.Module.__call__`: its first local is the module that runs.
    pub const MODULE_CALL: Self = Self(1);
    /// `Optimizer.step`.
    pub const OPTIMIZER_STEP: Self = Self(2);
    /// `Module.to`, `cuda` and kin, which move parameters and buffers, and what copies parameters.
    pub const MODULE_APPLY: Self = Self(4);
    /// Code that torch.fx generated from a graph: the agent can tell which module each line came from.
    pub const GENERATED: Self = Self(8);
    /// `torch.fx`'s interpreter (which runs compiled graphs before PyTorch 2.12 or so): its second local is the graph's
    /// node, and the agent can tell which module that came from.
    pub const GRAPH_NODE: Self = Self(16);
    /// What DDP and FSDP do to exchange gradients and parameters.
    pub const COMMUNICATION: Self = Self(32);
    /// What they do beside that: inputs are moved to the device.
    const INPUTS: Self = Self(64);
    /// What calls a layer.
    const LAYER: u8 = Self::MODULE_CALL.0 | Self::GENERATED.0 | Self::GRAPH_NODE.0;

    pub fn has(self, role: Self) -> bool {
        self.0 & role.0 != 0
    }

    /// The roles of a stack that ends in a frame of role `inner`. A layer called by an optimizer's step (which runs a
    /// closure) is forward, not the optimizer's; nor is it part of the exchange that it may wait for.
    pub fn with(self, inner: Self) -> Self {
        let ended = match inner.0 {
            role if role & Self::LAYER != 0 => Self::OPTIMIZER_STEP.0 | Self::COMMUNICATION.0,
            role if role & Self::INPUTS.0 != 0 => Self::COMMUNICATION.0,
            _ => 0,
        };
        Self(self.0 & !ended | inner.0)
    }

    /// Which local of the frame holds the module (or graph node) that it stands for.
    pub fn local(self) -> Option<usize> {
        if self.has(Self::MODULE_CALL) || self.has(Self::GENERATED) {
            Some(0)
        } else if self.has(Self::GRAPH_NODE) {
            Some(1)
        } else {
            None
        }
    }

    /// PyTorch's own functions are known by their file and name.
    fn of(file: &str, name: &str) -> Self {
        if file.ends_with("torch/nn/modules/module.py") {
            match name {
                "_wrapped_call_impl" | "_call_impl" => Self::MODULE_CALL,
                "_apply" => Self::MODULE_APPLY,
                _ => Self::NONE,
            }
        } else if file.ends_with("torch/nn/parameter.py") && name == "__deepcopy__" {
            Self::MODULE_APPLY
        } else if file.ends_with("torch/optim/optimizer.py") && name == "wrapper" {
            Self::OPTIMIZER_STEP
        } else if file.ends_with("torch/fx/interpreter.py") && name == "run_node" {
            Self::GRAPH_NODE
        } else if file.starts_with("<eval_with_key>") {
            Self::GENERATED
        } else if let Some((_, distributed)) = file.rsplit_once("/torch/") {
            Self::of_distributed(distributed, name)
        } else {
            Self::NONE
        }
    }

    /// The same for a file of PyTorch's that may be part of DDP or FSDP. Named are the functions that allocate, not those
    /// that call the user's modules or make the parameters that a rank keeps.
    fn of_distributed(file: &str, name: &str) -> Self {
        let communicates = match file {
            "nn/parallel/distributed.py" => matches!(
                name,
                "_ddp_init_helper"
                    | "_pre_forward"
                    | "_sync_module_buffers"
                    | "_distributed_broadcast_coalesced"
                    | "_default_broadcast_coalesced"
                    | "_check_global_requires_backward_grad_sync"
                    | "_match_all_reduce_for_bwd_pass"
                    | "_register_delay_all_reduce_hook"
            ),
            "distributed/utils.py" if matches!(name, "_to_kwargs" | "_recursive_to" | "_cast_forward_inputs") => {
                return Self::INPUTS;
            }
            "distributed/utils.py" => name == "_sync_params_and_buffers",
            "distributed/fsdp/_flat_param.py" | "distributed/fsdp/flat_param.py" => matches!(
                name,
                "_alloc_padded_unsharded_flat_param" | "_use_low_precision_shard" | "_all_gather_flat_param"
            ),
            "distributed/fsdp/_runtime_utils.py" => matches!(name, "_get_reduce_scatter_tensors" | "_reduce_grad"),
            // FSDP2, and where it was until PyTorch 2.5.
            "distributed/fsdp/_fully_shard/_fsdp_collectives.py"
            | "distributed/_composable/fsdp/_fsdp_collectives.py" => true,
            "distributed/fsdp/_fully_shard/_fsdp_param.py" | "distributed/_composable/fsdp/_fsdp_param.py" => matches!(
                name,
                "init_all_gather_outputs"
                    | "alloc_all_gather_outputs"
                    | "alloc_storage"
                    | "all_gather_inputs"
                    | "to_sharded_post_forward"
            ),
            _ => file.starts_with("distributed/algorithms/ddp_comm_hooks/"),
        };
        if communicates { Self::COMMUNICATION } else { Self::NONE }
    }
}

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
    /// The module's address; it may have died since. Of generated code, the address of its graph module; of a graph's
    /// node, the node's.
    pub module: usize,
    /// The frame that stands for the layer, if it is one of generated code; [`UnnamedLayer::NODE`] for a graph's node;
    /// else 0.
    pub generated: u32,
    /// That frame's line.
    pub line: u32,
}

impl UnnamedLayer {
    pub const NODE: u32 = u32::MAX;
}

/// A frame of a notebook's cell, under the name of the file that IPython made up for it.
pub struct Cell {
    pub frame: u32,
    pub file: String,
    /// 0: it has none.
    pub line: u32,
    pub function: String,
}

/// So many layers of dead modules with tensors, of one class and one caller, are told apart. A program may make such
/// modules for ever.
const DEAD_TOLD_APART: usize = 64;

/// So many frames of code without a file (`<string>`, `<eval_with_key>.7`) are told apart by the numbers in its name. Programs
/// may make such code for ever.
const MADE_TOLD_APART: u32 = 4096;

/// What is known of a layer.
struct Facts {
    parent: u32,
    /// The hash of its class's name.
    class: u64,
    /// The hash of its own name; 0: it has none yet.
    name: u64,
    /// An outermost module without parameters and buffers, such as a loss.
    is_tensorless: bool,
}

#[derive(Default)]
struct Tables {
    /// What makes hashes of texts here.
    texts: RandomState,
    /// Frames by what they say: code that is compiled again and again is the same frame.
    frames_by_content: HashMap<(u64, usize, Option<u32>), u32, FxBuildHasher>,
    /// By id, from 1.
    facts: Vec<Facts>,
    /// Layers whose module died, by their parent and class: the next such module takes the place of one, so that losses
    /// made anew at every step are one layer.
    dead: HashMap<(u32, u64), BTreeSet<u32>, FxBuildHasher>,
    frames: HashMap<(usize, usize), Frame, FxBuildHasher>,
    stacks: HashMap<(u32, u32), u32, FxBuildHasher>,
    /// By parent layer and module address: the layer, and the module's class. A module's death removes its entries, since
    /// its address will be reused; should nobody have noticed, another class gives it away.
    layers: HashMap<(u32, usize), (u32, usize), FxBuildHasher>,
    layers_of_module: HashMap<usize, Vec<u32>, FxBuildHasher>,
    /// Parent and class of the layers that have no name yet.
    nameless: HashMap<u32, (u32, String), FxBuildHasher>,
    /// Code objects that have a module in the local of this number.
    module_codes: HashMap<usize, (CodeIdentity, usize), FxBuildHasher>,
    last_frame: u32,
    /// How many of them are of code without a file.
    made_frames: u32,
    last_stack: u32,
    unnamed: Vec<UnnamedLayer>,
    /// Frames of cells met since the interpreter was last asked what the notebook calls them.
    cells: Vec<Cell>,
}

impl Tables {
    fn facts(&mut self, layer: u32) -> Option<&mut Facts> {
        self.facts.get_mut((layer as usize).checked_sub(1)?)
    }

    /// A layer for a module of this class that `parent` calls: that of a dead one, or, as the second value says, a new one.
    fn take_layer(&mut self, parent: u32, class: &str) -> (u32, bool) {
        let class = self.texts.hash_one(class);
        // The oldest: what is called in the same order as before gets the same places.
        let dead = self.dead.get(&(parent, class)).and_then(|dead| Some((*dead.first()?, dead.len())));
        if let Some((layer, dead)) = dead
            && (dead > DEAD_TOLD_APART || self.may_be_joined(layer))
        {
            self.dead.entry((parent, class)).and_modify(|dead| {
                dead.remove(&layer);
            });
            return (layer, false);
        }
        self.facts.push(Facts { parent, class, name: 0, is_tensorless: false });
        (self.facts.len() as u32, true)
    }

    /// Whether nothing is lost if another module takes the place of this layer's.
    fn may_be_joined(&mut self, layer: u32) -> bool {
        let mut outermost = layer;
        let Some(facts) = self.facts(layer) else { return false };
        if facts.name == 0 {
            return true;
        }
        while let Some(&mut Facts { parent, .. }) = self.facts(outermost)
            && parent != 0
        {
            outermost = parent;
        }
        self.facts(outermost).is_some_and(|facts| facts.is_tensorless)
    }

    /// The layer's module died.
    fn bury(&mut self, layer: u32) {
        if let Some(&mut Facts { parent, class, .. }) = self.facts(layer) {
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
            self.bury(unnoticed);
        }
        self.nameless.insert(layer.id, (layer.parent, class));
        self.unnamed.push(layer);
        layer.id
    }
}

#[derive(Default)]
pub struct Interner {
    tables: Mutex<Tables>,
    pub sources: Sources,
}

impl Interner {
    /// The frame; the second value says that it is one of a notebook's cell, which is new and wants the cell's name.
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
        let (role, is_cell) = (FrameRole::of(&file, &python.name(raw.code)), is_cell(&file));
        let is_made = file.starts_with('<') && !is_cell;
        let is_joined = is_made && tables.made_frames >= MADE_TOLD_APART;
        let file = if is_joined { without_numbers(&file) } else { file };
        let role = if is_joined && role == FrameRole::GENERATED { FrameRole::NONE } else { role };
        let content = (tables.texts.hash_one((&file, &function)), raw.position, line);
        // Of generated code and of cells the agent says more, for each apart.
        let alike = !is_cell && role != FrameRole::GENERATED;
        let known = tables.frames_by_content.get(&content).copied().filter(|_| alike);
        let id = known.unwrap_or_else(|| {
            tables.last_frame += 1;
            tables.made_frames += u32::from(is_made);
            let id = tables.last_frame;
            tables.frames_by_content.insert(content, id);
            log.append(encode::frame(&mut LineBuffer::<4096>::new(), id, &file, line, &function));
            self.sources.met(&file, line);
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

    /// The frames of cells met since the last call.
    pub fn take_cells(&self) -> Vec<Cell> {
        std::mem::take(&mut self.tables.lock().cells)
    }

    /// The local in which a frame of this code is known to have a module. What other frames have in their locals may be
    /// no object at all.
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

    /// The layer of `module` (or graph `node`) called by layer `parent`; the second value says that it is new and wants a
    /// name.
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

    /// The layer that a frame of generated code stands for, when layer `parent` runs it; as [`layer`](Self::layer).
    pub fn generated_layer(
        &self,
        log: &Log,
        python: &Interpreter,
        parent: u32,
        frame: u32,
        raw: &RawFrame,
    ) -> (u32, bool) {
        let mut tables = self.tables.lock();
        // Frame ids are small numbers, which no module has for an address.
        let key = (parent, frame as usize);
        if let Some(&(layer, _)) = tables.layers.get(&key) {
            return (layer, false);
        }
        let (module, line) = (python.local(raw.frame, 0) as usize, python.line(raw).unwrap_or(0));
        let class = "GraphModule".to_owned();
        let (id, is_new) = tables.take_layer(parent, &class);
        let layer = UnnamedLayer { id, parent, module, generated: frame, line };
        (tables.add_layer(log, key, 0, class, (layer, is_new)), true)
    }

    pub fn take_unnamed(&self) -> Vec<UnnamedLayer> {
        std::mem::take(&mut self.tables.lock().unnamed)
    }

    /// Of layers that were taken to be named, those that still have no name wait again, before all later ones: callers
    /// come before what they call.
    pub fn put_back_unnamed(&self, mut taken: Vec<UnnamedLayer>) {
        let mut tables = self.tables.lock();
        taken.retain(|layer| tables.nameless.contains_key(&layer.id));
        taken.append(&mut tables.unnamed);
        tables.unnamed = taken;
    }

    /// The class of a layer that has no name yet.
    pub fn class_of(&self, layer: u32) -> String {
        self.tables.lock().nameless.get(&layer).map(|(_, class)| class.clone()).unwrap_or_default()
    }

    /// Says the layer's qualified name in its outermost module and, if there is something to say, the class of the module
    /// meant (for generated code), the variable that holds an outermost module, and the layer that is the outermost module
    /// (of a replica) where no module called this one.
    pub fn name_layer(&self, log: &Log, layer: u32, name: &[u8], class: &[u8], variable: &[u8], outermost: u32) {
        let mut tables = self.tables.lock();
        if let Some((caller, known)) = tables.nameless.remove(&layer) {
            let parent = if caller == 0 && outermost != layer { outermost } else { caller };
            let class = if class.is_empty() { known.as_bytes() } else { class };
            let variable = (!variable.is_empty()).then_some(variable);
            let text = tables.texts.hash_one((parent, name, class, variable)) | 1;
            let is_said = tables.facts(layer).is_some_and(|facts| std::mem::replace(&mut facts.name, text) == text);
            if is_said {
                return; // Of a dead module in whose place this one is.
            }
            log.append(encode::layer(&mut LineBuffer::<4096>::new(), layer, parent, class, Some(name), variable));
        }
    }

    /// The outermost module of this layer has no tensors.
    pub fn is_tensorless(&self, layer: u32) {
        if let Some(facts) = self.tables.lock().facts(layer) {
            facts.is_tensorless = true;
        }
    }

    /// A module died: whatever comes to lie at its address is another one.
    pub fn forget_module(&self, module: usize) {
        let mut tables = self.tables.lock();
        for parent in tables.layers_of_module.remove(&module).unwrap_or_default() {
            if let Some((layer, _)) = tables.layers.remove(&(parent, module)) {
                tables.nameless.remove(&layer);
                tables.bury(layer);
            }
        }
    }
}

/// The name of a cell that IPython numbers itself: `<ipython-input-3-0a1b2c>` is `In[3]`.
fn numbered_cell(file: &str) -> Option<String> {
    let name = file.rsplit('/').next()?;
    let rest = name.strip_prefix('<').unwrap_or(name).strip_prefix("ipython-input-")?;
    let (number, _) = rest.split_once('-')?;
    let number: u32 = number.parse().ok()?;
    Some(format!("In[{number}]"))
}

/// A name with `#` in place of each number: `<eval_with_key>.#`.
fn without_numbers(file: &str) -> String {
    let mut name = String::with_capacity(file.len());
    for letter in file.chars() {
        match letter {
            '0'..='9' if name.ends_with('#') => {}
            '0'..='9' => name.push('#'),
            _ => name.push(letter),
        }
    }
    name
}

/// Whether only IPython knows which cell a file stands for: `/tmp/ipykernel_12/345.py`, `<timed exec>`.
fn is_cell(file: &str) -> bool {
    file.contains("/ipykernel_")
        || file.contains("/ipython-input-")
        || file.starts_with("<timed e")
        || file == "<magic-timeit>"
}

/// `co_filename` may be relative to the directory the program was started in.
fn absolute(file: String) -> String {
    if file.starts_with('/') || file.starts_with('<') {
        return file;
    }
    match std::env::current_dir() {
        Ok(directory) => directory.join(&file).to_string_lossy().into_owned(),
        Err(_) => file,
    }
}

#[cfg(test)]
mod tests {
    use super::FrameRole;

    #[test]
    fn the_innermost_of_layer_and_optimizer_counts() {
        let stack = |roles: &[FrameRole]| roles.iter().fold(FrameRole::NONE, |outer, inner| outer.with(*inner));
        let (layer, step, other) = (FrameRole::MODULE_CALL, FrameRole::OPTIMIZER_STEP, FrameRole::NONE);
        assert!(stack(&[other, step, other]).has(step));
        assert!(stack(&[layer, step, other]).has(step), "a training step inside a module");
        assert!(!stack(&[step, other, layer, other]).has(step), "a closure that calls a model");
        assert!(stack(&[step, layer, step]).has(step), "a model that steps an optimizer of its own");
        assert!(!stack(&[step, FrameRole::GENERATED]).has(step) && !stack(&[step, FrameRole::GRAPH_NODE]).has(step));
    }

    #[test]
    fn what_is_exchanged_is_told_from_what_is_computed() {
        let stack = |frames: &[(&str, &str)]| {
            let of = |(file, name): &(&str, &str)| FrameRole::of(&format!("/x/site-packages/torch/{file}"), name);
            frames.iter().map(of).fold(FrameRole::NONE, FrameRole::with).has(FrameRole::COMMUNICATION)
        };
        let (ddp, call) = ("nn/parallel/distributed.py", ("nn/modules/module.py", "_call_impl"));
        assert!(stack(&[call, (ddp, "forward"), (ddp, "_pre_forward")]));
        assert!(!stack(&[call, (ddp, "forward"), (ddp, "_pre_forward"), ("distributed/utils.py", "_to_kwargs")]));
        assert!(!stack(&[call, (ddp, "forward"), (ddp, "_run_ddp_forward"), call]));
        let unshard = ("distributed/fsdp/_flat_param.py", "_alloc_padded_unsharded_flat_param");
        assert!(stack(&[call, unshard, ("distributed/utils.py", "_alloc_storage"), ("storage.py", "_resize_")]));
        assert!(!stack(&[unshard, call]), "a module called meanwhile");
    }
}
