//! The graph of what holds memory, with names.

use std::ffi::CStr;
use std::ptr;
use std::time::Duration;

use hashbrown::HashMap;
use interpose_base::file_names;
use interpose_base::frame_role::FrameRole;
use interpose_base::symbols;
use interpose_python::api::{Api, Object};
use interpose_python::walk::{Interpreter, MAX_DEPTH, RawFrame};
use memlab_holders::{Edge, EdgeKind, HeapGraph, Node, NodeKind, ROOT, leading_to, reduced};

use crate::names::{self, References};
use crate::objects;
use crate::store_lines::Sources;
use crate::torch::Torch;
use crate::types::TypeKind;
use crate::walk::{MAX_OBJECTS, Place, Walk};

/// Finds what holds the memory of tensors on GPUs, in a copy of the process.
///
/// # Errors
///
/// If PyTorch is not loaded or unknown, or the program has too many objects.
///
/// # Safety
///
/// Only in a child process that ends afterwards, on its only thread, which must hold the GIL: objects get references that
/// are never dropped, and dictionaries for their attributes.
pub unsafe fn find(api: &Api, interpreter: &Interpreter) -> Result<HeapGraph, String> {
    // SAFETY: as the caller promises.
    unsafe {
        Calm::begin(api);
        let torch = torch(api)?;
        let mut walk = Walk::new(api, interpreter, torch);
        add_program(&mut walk, api, interpreter);
        add_libraries(&mut walk, api);
        walk.follow();
        if !walk.is_cut() {
            walk.add_unreached();
        }
        if walk.is_cut() {
            return Err(format!("the program has more than {MAX_OBJECTS} objects"));
        }
        Ok(reduced(&Builder::new(&walk, interpreter).graph()))
    }
}

/// Finds what holds the memory of tensors on GPUs, in the process, for a limited time. Also returns, in words, the objects
/// at which it did not look; empty: it looked at all.
///
/// # Errors
///
/// If PyTorch is not loaded or unknown, or Python cannot stop its garbage collector (before 3.10).
///
/// # Safety
///
/// The GIL must be held, and no lock of PyTorch. Objects may get dictionaries for their attributes.
pub unsafe fn find_in_place(
    api: &Api,
    interpreter: &Interpreter,
    limit: Duration,
) -> Result<(HeapGraph, String), String> {
    // SAFETY: as the caller promises. No code of the program runs until the references are dropped.
    unsafe {
        if symbols::in_process(c"PyGC_Disable").is_null() {
            return Err("this version of Python cannot stop its garbage collector".to_owned());
        }
        let calm = Calm::begin(api);
        let found = torch(api).map(|torch| search_within(api, interpreter, torch, limit));
        calm.end(api);
        found
    }
}

/// Finds what holds the memory, for a limited time, as [`find_in_place`].
///
/// # Safety
///
/// As there, while a [`Calm`] lasts.
unsafe fn search_within(api: &Api, interpreter: &Interpreter, torch: Torch, limit: Duration) -> (HeapGraph, String) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut walk = Walk::new(api, interpreter, torch);
        // Names and the smaller graph take time, too.
        walk.stop_after(limit / 2);
        // All modules are roots before any is followed: then the program's objects do not lead into libraries.
        add_program(&mut walk, api, interpreter);
        let program = walk.take_waiting();
        add_libraries(&mut walk, api);
        let libraries = walk.take_waiting();
        for roots in [program, libraries] {
            walk.add_waiting(roots);
            walk.follow();
        }
        let skipped = match walk.waiting() {
            0 if walk.objects.len() <= MAX_OBJECTS_IN_PLACE => {
                walk.add_unreached();
                String::new()
            }
            0 => "garbage".to_owned(),
            waiting => format!("{waiting} objects, what only they refer to, and garbage"),
        };
        (reduced(&Builder::new(&walk, interpreter).graph()), skipped)
    }
}

/// Beyond this number of objects, a search in the process does not look for garbage.
const MAX_OBJECTS_IN_PLACE: usize = 300_000;

unsafe fn torch(api: &Api) -> Result<Torch, String> {
    // SAFETY: the caller holds the GIL.
    unsafe { Torch::find(api) }.ok_or_else(|| "PyTorch is not loaded, or memlab does not know this version".to_owned())
}

/// A time in which no code of the program runs: no exception is pending, the garbage collector, which runs finalizers, is
/// off, and PyTorch calls no `__torch_function__`.
struct Calm {
    /// Kind, value and traceback of the exception that was pending, or nulls.
    exception: [Object; 3],
    /// `None`: the collector was not stopped by C.
    was_collecting: Option<bool>,
    overrides: Object,
}

impl Calm {
    unsafe fn begin(api: &Api) -> Self {
        let mut exception = [ptr::null_mut(); 3];
        let [kind, value, traceback] = &mut exception;
        // SAFETY: the caller holds the GIL.
        unsafe {
            (api.PyErr_Fetch)(kind, value, traceback);
            let was_collecting = switch_collector(c"PyGC_Disable");
            if was_collecting.is_none() {
                // Before 3.10.
                objects::call(api, objects::module(api, c"gc"), c"disable", ptr::null_mut());
            }
            Self { exception, was_collecting, overrides: Torch::disable_overrides(api) }
        }
    }

    /// Ends it, and drops the references that the search owns.
    unsafe fn end(self, api: &Api) {
        let [kind, value, traceback] = self.exception;
        // SAFETY: the caller holds the GIL.
        unsafe {
            Torch::enable_overrides(api, self.overrides);
            objects::release_owned(api);
            if self.was_collecting == Some(true) {
                switch_collector(c"PyGC_Enable");
            }
            (api.PyErr_Restore)(kind, value, traceback);
        }
    }
}

/// Calls one of Python's functions that switch the garbage collector. Returns true if it was on; `None`: there is no such
/// function.
unsafe fn switch_collector(name: &CStr) -> Option<bool> {
    let function = symbols::in_process(name);
    // SAFETY: `int PyGC_Disable(void)` and `int PyGC_Enable(void)`; the caller holds the GIL.
    (!function.is_null()).then(|| unsafe {
        let function: unsafe extern "C" fn() -> i32 = std::mem::transmute(function);
        function() != 0
    })
}

/// Adds the roots whose names a person expects: the main module and the frames.
unsafe fn add_program(walk: &mut Walk, api: &Api, interpreter: &Interpreter) {
    // SAFETY: as for `find`.
    unsafe {
        for main in [c"__main__", c"__mp_main__"] {
            let module = objects::module(api, main);
            if !module.is_null() {
                walk.add_module("__main__".into(), module);
            }
        }
        let mut frames: Vec<(Owner, bool, RawFrame)> = Vec::new();
        let mut raw = Box::new([RawFrame::EMPTY; MAX_DEPTH]);
        let mut thread = (api.PyInterpreterState_ThreadHead)((api.PyInterpreterState_Get)());
        while !thread.is_null() {
            let count = interpreter.walk(interpreter.innermost_of(thread.cast()), &mut raw, &[]);
            let stack = &raw[..count];
            // All that a forward refers to is released when it returns.
            let forward = stack.iter().rposition(|raw| is_module_call(interpreter, raw));
            let mut is_call = true;
            for (depth, raw) in stack.iter().enumerate() {
                let owner = owner_of(&interpreter.file(raw.code));
                is_call = forward.is_some_and(|forward| depth <= forward) || is_call && owner == Owner::PyTorch;
                frames.push((owner, is_call, *raw));
            }
            thread = (api.PyThreadState_Next)(thread);
        }
        frames.sort_by_key(|(owner, ..)| *owner);
        for (_, is_call, raw) in frames {
            let names = local_names(api, interpreter, raw.code.cast_mut().cast());
            walk.add_frame(raw, is_call, &names);
        }
    }
}

/// Adds the other modules as roots.
unsafe fn add_libraries(walk: &mut Walk, api: &Api) {
    // SAFETY: as for `find`.
    unsafe {
        let modules = (api.PyImport_GetModuleDict)();
        let mut others = Vec::new();
        names::each_entry(api, modules, &mut |name, module| others.push((name, module)));
        for (name, module) in others {
            walk.add_module(name, module);
        }
    }
}

/// Returns true for the frame in which PyTorch calls a module's forward.
fn is_module_call(interpreter: &Interpreter, raw: &RawFrame) -> bool {
    let (file, name) = (interpreter.file(raw.code), interpreter.name(raw.code));
    FrameRole::of(&file, &name, &name).contains(FrameRole::MODULE_CALL)
}

/// Whose code a file is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Program,
    Library,
    /// PyTorch's, or Python's standard library.
    PyTorch,
}

fn owner_of(file: &str) -> Owner {
    let is_installed = file_names::is_installed(file);
    // memlab's agent, and its functions that ask for a search.
    let is_reporter = file.contains("/memlab/compat/_reporter/") || file.ends_with("/memlab/compat/reporter.py");
    let is_asking = file.starts_with("<memlab") || file.ends_with("/memlab/holding.py") || is_reporter;
    if is_asking
        || file.contains("-packages/torch/")
        || !is_installed && file_names::is_library(file)
        || file.starts_with("<frozen")
    {
        Owner::PyTorch
    } else if is_installed {
        Owner::Library
    } else {
        Owner::Program
    }
}

/// Returns true for files of installed packages and of the standard library.
fn is_library(file: &str) -> bool {
    owner_of(file) != Owner::Program || file.starts_with('<')
}

/// Names of a function's local variables in the order of a frame's slots.
unsafe fn local_names(api: &Api, interpreter: &Interpreter, code: Object) -> Vec<String> {
    // SAFETY: as for `find`.
    unsafe {
        let of = |name| names::strings(api, objects::attribute(api, code, name));
        let mut all = of(c"co_varnames");
        let cells = of(c"co_cellvars");
        if interpreter.has_cells_of_arguments_apart() {
            all.extend(cells);
        } else {
            let others: Vec<String> = cells.into_iter().filter(|cell| !all.contains(cell)).collect();
            all.extend(others);
        }
        all.extend(of(c"co_freevars"));
        all
    }
}

/// Returns true if a holder of a dictionary or tuple is its owner, or only lists it.
fn is_owner(walk: &Walk, holder: u32, owner: u32) -> bool {
    holder == owner || matches!(walk.places[holder as usize], Place::Garbage | Place::Native)
}

/// Makes a graph of the nodes of a walk that lead to memory.
struct Builder<'w> {
    walk: &'w Walk<'w>,
    api: &'w Api,
    interpreter: &'w Interpreter,
    kept: Vec<bool>,
    /// For a dictionary of attributes or a tuple of cells that only one object refers to: that object.
    owners: HashMap<u32, u32>,
    references: HashMap<u32, References>,
    sources: Sources,
}

impl<'w> Builder<'w> {
    unsafe fn new(walk: &'w Walk<'w>, interpreter: &'w Interpreter) -> Self {
        let edges = walk.edges.iter().map(|edge| (edge.0, edge.1));
        // A named node of C++ is kept without memory: it holds all that no object leads to.
        let native = (0..).zip(&walk.places).filter(|(_, place)| matches!(place, Place::Native)).map(|(node, _)| node);
        let native = native.filter(|_| !walk.native_sign.is_empty());
        let ends = walk.memory.iter().map(|memory| memory.0).chain(native);
        let kept = leading_to(walk.objects.len(), edges, ends);
        let mut holders: HashMap<u32, Vec<u32>> = HashMap::new();
        for &(from, to, _) in walk.edges.iter().filter(|edge| kept[edge.0 as usize] && kept[edge.1 as usize]) {
            holders.entry(to).or_default().push(from);
        }
        let mut builder = Self {
            walk,
            api: walk.api,
            interpreter,
            kept,
            owners: HashMap::new(),
            references: HashMap::new(),
            sources: Sources::default(),
        };
        for node in 0..walk.objects.len() as u32 {
            if builder.kept[node as usize] {
                // SAFETY: `new` is called by `find`.
                unsafe { builder.name(node, &holders) };
            }
        }
        builder
    }

    /// Finds the names of a node's references.
    unsafe fn name(&mut self, node: u32, holders: &HashMap<u32, Vec<u32>>) {
        let object = self.walk.objects[node as usize];
        // SAFETY: the objects of nodes are alive.
        let found = unsafe {
            match &self.walk.places[node as usize] {
                Place::Module(_) => {
                    let mut found = References::new();
                    names::each_entry(self.api, object, &mut |key, value| {
                        found.insert(value as usize, (EdgeKind::Global, key));
                    });
                    found
                }
                Place::Object(kind) => {
                    let parts = match kind {
                        TypeKind::Function => {
                            [names::attributes(object, *kind), names::closure_cells(self.api, object)]
                        }
                        TypeKind::Class => [objects::class_dictionary(object), ptr::null_mut()],
                        _ => [names::attributes(object, *kind), ptr::null_mut()],
                    };
                    for part in parts {
                        if let Some(&part) = self.walk.nodes.get(&(part as usize)).filter(|_| !part.is_null())
                            && holders
                                .get(&part)
                                .is_some_and(|all| all.iter().all(|holder| is_owner(self.walk, *holder, node)))
                        {
                            self.owners.insert(part, node);
                        }
                    }
                    names::references(self.api, object, *kind)
                }
                _ => return,
            }
        };
        self.references.insert(node, found);
    }

    unsafe fn graph(mut self) -> HeapGraph {
        let mut graph = HeapGraph::new();
        let mut places: HashMap<u32, u32> = HashMap::from([(ROOT, ROOT)]);
        for node in (1..self.walk.objects.len() as u32).filter(|node| self.kept[*node as usize]) {
            if !self.owners.contains_key(&node) {
                places.insert(node, graph.nodes.len() as u32);
                // SAFETY: `graph` is called by `find`.
                graph.nodes.push(unsafe { self.described(node) });
            }
        }
        for &(node, address) in &self.walk.memory {
            if let Some(&place) = places.get(&node) {
                graph.nodes[place as usize].memory.push(address);
            }
        }
        for &(from, to, kind) in &self.walk.edges {
            let owner = self.owners.get(&from).copied().unwrap_or(from);
            let (Some(&new_from), Some(&new_to)) = (places.get(&owner), places.get(&to)) else { continue };
            let (kind, label) = self.named(owner, from, to, kind);
            // SAFETY: as above.
            let line = unsafe { self.line(owner, kind, &label) };
            graph.edges.push(Edge { from: new_from, to: new_to, kind, label, line });
        }
        graph
    }

    /// Kind and label of a reference from a node; `through` is the dictionary or tuple that contains it.
    fn named(&self, node: u32, through: u32, to: u32, kind: EdgeKind) -> (EdgeKind, String) {
        match (kind, &self.walk.places[node as usize]) {
            (EdgeKind::Local, _) => (kind, self.walk.locals.get(&(node, to)).cloned().unwrap_or_default()),
            (EdgeKind::Unnamed | EdgeKind::Global, _) => {
                let object = self.walk.objects[to as usize] as usize;
                let found = self.references.get(&node).and_then(|references| references.get(&object));
                let found = found.or_else(|| self.references.get(&through).and_then(|names| names.get(&object)));
                found.cloned().unwrap_or((kind, String::new()))
            }
            (EdgeKind::Attribute, _) => {
                let name = self.walk.script_names.get(&(node, self.walk.objects[to as usize] as usize));
                (kind, name.cloned().unwrap_or_default())
            }
            _ => (kind, String::new()),
        }
    }

    /// The line that stores a reference; 0 if unknown.
    unsafe fn line(&mut self, node: u32, kind: EdgeKind, label: &str) -> u32 {
        // SAFETY: `graph` is called by `find`.
        unsafe {
            match (&self.walk.places[node as usize], kind) {
                (Place::Frame(number), EdgeKind::Local) => {
                    let code = self.walk.frames[*number].code;
                    let (file, first) = (self.interpreter.file(code), self.interpreter.first_line(code));
                    if is_library(&file) { 0 } else { self.sources.line_of(&file, first, label) }
                }
                (Place::Module(name), EdgeKind::Global) => {
                    let file = names::file_of_module(self.api, name);
                    if is_library(&file) { 0 } else { self.sources.line_of(&file, 0, label) }
                }
                (Place::Object(TypeKind::Object), EdgeKind::Attribute) => {
                    let class = objects::class_of(self.walk.objects[node as usize]);
                    let file = names::file_of_class(self.api, class);
                    if file.is_empty() || is_library(&file) { 0 } else { self.sources.line_of(&file, 0, label) }
                }
                _ => 0,
            }
        }
    }

    unsafe fn described(&self, node: u32) -> Node {
        // SAFETY: as for `line`.
        unsafe {
            match &self.walk.places[node as usize] {
                Place::Root => Node::default(),
                Place::Module(name) => {
                    let file = names::file_of_module(self.api, name);
                    Node { kind: NodeKind::Module, name: name.clone(), file, ..Node::default() }
                }
                place @ (Place::Frame(number) | Place::Call(number)) => {
                    let raw = &self.walk.frames[*number];
                    let kind = if matches!(place, Place::Call(_)) { NodeKind::Call } else { NodeKind::Frame };
                    Node {
                        kind,
                        name: self.interpreter.qualified_name(raw),
                        file: self.interpreter.file(raw.code),
                        line: self.interpreter.line(raw).unwrap_or(0),
                        ..Node::default()
                    }
                }
                Place::Native => Node { kind: NodeKind::Native, name: self.walk.native_sign.into(), ..Node::default() },
                Place::Garbage => Node { kind: NodeKind::Garbage, ..Node::default() },
                Place::Object(kind) => {
                    let object = self.walk.objects[node as usize];
                    let mut described = names::described(self.api, object, *kind);
                    if *kind == TypeKind::Object {
                        let file = names::file_of_class(self.api, objects::class_of(object));
                        described.file = if is_library(&file) { String::new() } else { file };
                    }
                    described
                }
            }
        }
    }
}
