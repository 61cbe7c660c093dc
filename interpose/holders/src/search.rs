//! The graph of what holds memory, with names.

use std::ffi::c_void;
use std::ptr;

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

/// Finds what holds the memory of tensors on GPUs.
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
        let torch = Torch::find(api).ok_or("PyTorch is not loaded, or memlab does not know this version")?;
        calm(api);
        Torch::disable_overrides(api);
        let mut walk = Walk::new(api, interpreter, torch);
        add_roots(&mut walk, api, interpreter);
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

/// Clears a pending exception, and stops the garbage collector: it would run finalizers of the program.
unsafe fn calm(api: &Api) {
    let (mut kind, mut value, mut traceback) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the caller holds the GIL.
    unsafe {
        (api.PyErr_Fetch)(&raw mut kind, &raw mut value, &raw mut traceback);
        let disable = symbols::in_process(c"PyGC_Disable");
        if !disable.is_null() {
            let disable: unsafe extern "C" fn() -> i32 = std::mem::transmute(disable);
            disable();
            return;
        }
        // Before 3.10.
        let module = (api.PyDict_GetItemString)((api.PyImport_GetModuleDict)(), c"gc".as_ptr());
        if !module.is_null() {
            let disable = names::attribute(api, module, c"disable");
            if !disable.is_null() {
                (api.PyObject_CallFunctionObjArgs)(disable, ptr::null_mut::<c_void>());
            }
        }
    }
}

/// Adds the roots; those whose names a person expects come first.
unsafe fn add_roots(walk: &mut Walk, api: &Api, interpreter: &Interpreter) {
    // SAFETY: as for `find`.
    unsafe {
        let modules = (api.PyImport_GetModuleDict)();
        for main in [c"__main__", c"__mp_main__"] {
            let module = (api.PyDict_GetItemString)(modules, main.as_ptr());
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
    // memlab's agent, and its function that asks for a search.
    let is_asking = file.starts_with("<memlab") || file.ends_with("/memlab/holding.py");
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
        let of = |name| names::strings(api, names::attribute(api, code, name));
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
