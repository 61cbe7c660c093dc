//! Walks from what a program can reach, forward to the memory.
//!
//! Modules, classes and running frames are roots. References to them are left out: what only a root dominates has the same
//! name either way, and the graph that remains is small.

use std::mem;
use std::ptr;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use interpose_python::api::{Api, Object};
use interpose_python::walk::{Interpreter, RawFrame};
use memlab_holders::EdgeKind;

use crate::objects;
use crate::opaque;
use crate::signs;
use crate::torch::Torch;
use crate::types::{TypeKind, Types};

/// Objects beyond this number are not followed: the copy would take too much memory.
pub const MAX_OBJECTS: usize = 8_000_000;

/// The number of nodes after which the clock is read.
const CLOCK_INTERVAL: usize = 128;

/// Time of the processor that this thread has used.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Kind of a node of the walk.
#[derive(Clone, Debug)]
pub enum Place {
    /// The virtual root.
    Root,
    /// The dictionary of a module.
    Module(String),
    /// A frame that runs: an index of [`Walk::frames`].
    Frame(usize),
    /// A frame of PyTorch or Python inside of which no other code runs.
    Call(usize),
    /// Objects that only C holds.
    Native,
    /// Objects that only the garbage collector frees.
    Garbage,
    Object(TypeKind),
}

/// The objects that were reached.
pub struct Walk<'a> {
    pub api: &'a Api,
    interpreter: &'a Interpreter,
    types: Types,
    torch: Torch,
    /// Address of each node's object; null for places that are no object.
    pub objects: Vec<Object>,
    pub places: Vec<Place>,
    /// Node of each object.
    pub nodes: HashMap<usize, u32>,
    roots: HashSet<usize>,
    pub edges: Vec<(u32, u32, EdgeKind)>,
    /// Device memory of nodes.
    pub memory: Vec<(u32, u64)>,
    pub frames: Vec<RawFrame>,
    /// Names of the local variables of each frame, as edges of the frame.
    pub locals: HashMap<(u32, u32), String>,
    /// Names of the tensors of TorchScript modules, by the module's node and the tensor's address.
    pub script_names: HashMap<(u32, usize), String>,
    /// Sign of memory that only C++ holds, as the name of its node; may be empty.
    pub native_sign: &'static str,
    waiting: Vec<u32>,
    buffer: Vec<Object>,
    /// Time of the thread's processor at which the walk stops.
    deadline: Option<Duration>,
    /// Nodes that were followed.
    followed: usize,
    is_late: bool,
}

impl<'a> Walk<'a> {
    /// # Safety
    ///
    /// The GIL must be held, and must stay held as long as the walk is used.
    pub unsafe fn new(api: &'a Api, interpreter: &'a Interpreter, torch: Torch) -> Self {
        Self {
            api,
            interpreter,
            types: Types::new(torch.tensor, torch.function_base),
            // SAFETY: the caller holds the GIL.
            native_sign: unsafe { signs::of(api) },
            torch,
            objects: vec![ptr::null_mut()],
            places: vec![Place::Root],
            nodes: HashMap::new(),
            roots: HashSet::new(),
            edges: Vec::new(),
            memory: Vec::new(),
            frames: Vec::new(),
            locals: HashMap::new(),
            script_names: HashMap::new(),
            waiting: Vec::new(),
            buffer: Vec::new(),
            deadline: None,
            followed: 0,
            is_late: false,
        }
    }

    fn add(&mut self, object: Object, place: Place) -> u32 {
        let node = self.objects.len() as u32;
        self.objects.push(object);
        self.places.push(place);
        if !object.is_null() {
            self.nodes.insert(object as usize, node);
        }
        node
    }

    fn add_root(&mut self, object: Object, place: Place) -> u32 {
        let node = self.add(object, place);
        if !object.is_null() {
            self.roots.insert(object as usize);
        }
        self.edges.push((0, node, EdgeKind::Unnamed));
        node
    }

    /// Adds a module's dictionary as a root.
    ///
    /// # Safety
    ///
    /// The GIL must be held; so for the functions below. Objects must be alive.
    pub unsafe fn add_module(&mut self, name: String, module: Object) {
        // SAFETY: a live module has its dictionary.
        unsafe {
            if self.kind_of(module) != TypeKind::Module {
                self.arrive(0, module, EdgeKind::Global);
                return;
            }
            let dictionary = (self.api.PyModule_GetDict)(module);
            if !dictionary.is_null() && !self.nodes.contains_key(&(dictionary as usize)) {
                let node = self.add_root(dictionary, Place::Module(name));
                self.waiting.push(node);
            }
        }
    }

    /// Adds a running frame as a root, with its local variables.
    ///
    /// # Safety
    ///
    /// As for [`add_module`](Self::add_module); the frame must be of a live thread.
    pub unsafe fn add_frame(&mut self, raw: RawFrame, is_call: bool, names: &[String]) {
        let (number, address) = (self.frames.len(), raw.frame.cast_mut().cast());
        self.frames.push(raw);
        let frame = self.add_root(address, if is_call { Place::Call(number) } else { Place::Frame(number) });
        for (index, name) in names.iter().enumerate() {
            let value: Object = self.interpreter.slot(raw.frame, index).cast_mut().cast();
            if value.is_null() {
                continue;
            }
            // SAFETY: a slot is null or contains an object that the frame holds.
            unsafe { self.arrive(frame, value, EdgeKind::Local) };
            if let Some(&node) = self.nodes.get(&(value as usize)) {
                self.locals.entry((frame, node)).or_insert_with(|| name.clone());
            }
        }
    }

    unsafe fn kind_of(&mut self, object: Object) -> TypeKind {
        // SAFETY: the caller passes a live object.
        unsafe { self.types.of(self.api, objects::class_of(object)).kind }
    }

    /// Notes that a node refers to an object.
    unsafe fn arrive(&mut self, from: u32, object: Object, kind: EdgeKind) {
        if object.is_null() || self.roots.contains(&(object as usize)) {
            return;
        }
        if let Some(&node) = self.nodes.get(&(object as usize)) {
            self.edges.push((from, node, kind));
            return;
        }
        // SAFETY: the caller passes a live object.
        unsafe {
            let info = self.types.of(self.api, objects::class_of(object));
            let type_kind = info.kind;
            let leads_nowhere = info.traverse.is_none() && !type_kind.is_opaque();
            let is_static = !type_kind.is_opaque() && info.is_gc.is_some_and(|is_gc| is_gc(object) == 0);
            match type_kind {
                _ if leads_nowhere || is_static => {}
                TypeKind::Module => {
                    self.add_module("a module".into(), object);
                }
                TypeKind::Class => {
                    let node = self.add_root(object, Place::Object(TypeKind::Class));
                    self.waiting.push(node);
                }
                _ => {
                    let node = self.add(object, Place::Object(type_kind));
                    self.edges.push((from, node, kind));
                    self.waiting.push(node);
                }
            }
        }
    }

    /// Follows all references of the nodes that wait.
    ///
    /// # Safety
    ///
    /// As for [`add_module`](Self::add_module).
    pub unsafe fn follow(&mut self) {
        while let Some(node) = self.waiting.pop() {
            if self.is_cut() || self.is_late() {
                self.waiting.push(node);
                return;
            }
            // SAFETY: the objects of nodes are alive: nothing in this process frees any.
            unsafe { self.follow_node(node) };
        }
    }

    /// Makes the walk stop when it has used this time of the processor, so that a busy machine changes no answer.
    pub fn stop_after(&mut self, limit: Duration) {
        self.deadline = Some(thread_time() + limit);
    }

    /// Takes the nodes that wait to be followed.
    pub fn take_waiting(&mut self) -> Vec<u32> {
        mem::take(&mut self.waiting)
    }

    /// Adds nodes to those that wait to be followed.
    pub fn add_waiting(&mut self, nodes: Vec<u32>) {
        self.waiting.extend(nodes);
    }

    /// Returns the number of objects that were reached and not looked at, because time was up.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if time is up. The clock is read at some nodes only.
    fn is_late(&mut self) -> bool {
        self.followed += 1;
        if let Some(deadline) = self.deadline
            && self.followed.is_multiple_of(CLOCK_INTERVAL)
        {
            self.is_late |= thread_time() >= deadline;
        }
        self.is_late
    }

    /// Returns true if the walk stopped, because the program has too many objects.
    pub fn is_cut(&self) -> bool {
        self.objects.len() > MAX_OBJECTS
    }

    unsafe fn follow_node(&mut self, node: u32) {
        let object = self.objects[node as usize];
        let mut parts = Vec::new();
        // SAFETY: as for `follow`.
        unsafe {
            let info = self.types.of(self.api, objects::class_of(object)).clone();
            match info.kind {
                TypeKind::Tensor => {
                    if let Some(address) = self.torch.memory(self.api, object) {
                        self.memory.push((node, address));
                    }
                    self.torch.each_part(self.api, object, &mut |part, kind| parts.push((part, kind)));
                }
                TypeKind::Autograd | TypeKind::Context => {
                    self.torch.each_saved(self.api, object, &info, &mut |part, kind| parts.push((part, kind)));
                }
                TypeKind::Array => opaque::each_element(object, &mut |part| parts.push((part, EdgeKind::Item))),
                TypeKind::Script => opaque::each_script_tensor(self.api, object, &mut |name, part| {
                    self.script_names.insert((node, part as usize), name);
                    parts.push((part, EdgeKind::Attribute));
                }),
                _ => {}
            }
            for (part, kind) in parts {
                self.arrive(node, part, kind);
            }
            if let Some(traverse) = info.traverse {
                let mut referents = mem::take(&mut self.buffer);
                objects::each_referent(object, traverse, &mut |referent| referents.push(referent));
                for &referent in &referents {
                    self.arrive(node, referent, EdgeKind::Unnamed);
                }
                referents.clear();
                self.buffer = referents;
            }
        }
    }

    /// Adds what the roots do not reach: what C holds, and garbage.
    ///
    /// # Safety
    ///
    /// As for [`add_module`](Self::add_module).
    pub unsafe fn add_unreached(&mut self) {
        // SAFETY: as the caller promises.
        unsafe {
            let unreached = self.unreached();
            let mut is_relevant = false;
            for &object in unreached.keys() {
                let kind = self.kind_of(object as Object);
                is_relevant |= matches!(kind, TypeKind::Tensor | TypeKind::Context | TypeKind::Autograd);
            }
            if !is_relevant {
                if !self.native_sign.is_empty() {
                    self.add_root(ptr::null_mut(), Place::Native);
                }
                return;
            }
            let reached = self.objects.len() as u32;
            let native = self.add_root(ptr::null_mut(), Place::Native);
            let mut doubtful = Vec::new();
            for (&address, &held) in &unreached {
                let object = address as Object;
                match held {
                    0 => {}
                    // PyTorch's C++ adds one to a tensor or custom function that a node of an autograd graph holds.
                    1 if matches!(self.kind_of(object), TypeKind::Tensor | TypeKind::Context) => doubtful.push(object),
                    _ => self.arrive(native, object, EdgeKind::Unnamed),
                }
            }
            self.follow();
            // Objects that the roots reach have names. C mostly refers to them for the time of a call, such as from the
            // stacks of frames.
            self.edges.retain(|edge| edge.0 < native || edge.1 >= reached);
            // The rest may be garbage. Its own references decide.
            let garbage = self.add(ptr::null_mut(), Place::Garbage);
            let first = self.objects.len() as u32;
            for &address in unreached.keys() {
                if !self.nodes.contains_key(&address) {
                    self.arrive(garbage, address as Object, EdgeKind::Unnamed);
                }
            }
            self.follow();
            let explained: HashSet<u32> =
                self.edges.iter().filter(|edge| edge.2 != EdgeKind::Unnamed).map(|edge| edge.1).collect();
            for object in doubtful {
                if let Some(&node) = self.nodes.get(&(object as usize)).filter(|node| !explained.contains(*node)) {
                    self.edges.push((native, node, EdgeKind::Unnamed));
                }
            }
            self.edges.push((0, garbage, EdgeKind::Unnamed));
            self.keep_garbage_apart(garbage, first);
        }
    }

    /// Removes references of the garbage node to what C holds after all.
    fn keep_garbage_apart(&mut self, garbage: u32, first: u32) {
        let mut next: HashMap<u32, Vec<u32>> = HashMap::new();
        for &(from, to, _) in self.edges.iter().filter(|edge| edge.0 != garbage && edge.1 >= first) {
            next.entry(from).or_default().push(to);
        }
        let mut held: HashSet<u32> = HashSet::new();
        // Objects to which the nodes before `first` refer are held.
        let mut waiting: Vec<u32> =
            next.iter().filter(|(from, _)| **from < first).flat_map(|(_, to)| to.iter().copied()).collect();
        while let Some(node) = waiting.pop() {
            if held.insert(node) {
                waiting.extend(next.get(&node).into_iter().flatten());
            }
        }
        self.edges.retain(|edge| edge.0 != garbage || !held.contains(&edge.1));
    }

    /// The objects that the collector tracks and that no root reaches, with the number of references to each that none of
    /// them has.
    unsafe fn unreached(&mut self) -> HashMap<usize, u32> {
        let mut held = HashMap::new();
        // SAFETY: as for `add_unreached`.
        unsafe {
            let all = tracked(self.api);
            if all.is_null() {
                return held;
            }
            for index in 0..(self.api.PyList_Size)(all) {
                let object = (self.api.PyList_GetItem)(all, index);
                let address = object as usize;
                if self.nodes.contains_key(&address) || self.roots.contains(&address) || ptr::eq(object, all) {
                    continue;
                }
                if !matches!(self.kind_of(object), TypeKind::Class | TypeKind::Module) {
                    held.insert(address, objects::references(object).saturating_sub(1));
                }
            }
            let addresses: Vec<usize> = held.keys().copied().collect();
            for address in addresses {
                let object = address as Object;
                let Some(traverse) = self.types.of(self.api, objects::class_of(object)).traverse else { continue };
                objects::each_referent(object, traverse, &mut |referent| {
                    if let Some(count) = held.get_mut(&(referent as usize)) {
                        *count = count.saturating_sub(1);
                    }
                });
            }
        }
        held
    }
}

/// All objects that the collector tracks, as a list; null if it cannot be had.
unsafe fn tracked(api: &Api) -> Object {
    // SAFETY: the caller holds the GIL.
    unsafe { objects::call(api, objects::module(api, c"gc"), c"get_objects", ptr::null_mut()) }
}
