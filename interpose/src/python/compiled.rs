//! Facts from the agent about programs compiled by `torch.compile`, and the resulting origins of lines in Inductor's
//! wrappers.

use std::ffi::{c_char, c_uint};
use std::ptr;
use std::sync::{Arc, LazyLock};

use hashbrown::HashMap;
use memlab_inductor::{Definitions, Graph, Kind, Module, Origin, Origins, Wrapper, origins};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::recorder::Recorder;
use interpose_base::locks;
use interpose_base::panics;
use interpose_python::api::{Api, Object, text};

/// Maximum number of graphs kept; a program that compiles more is compiling in a loop.
const MAX_GRAPHS: usize = 4096;

/// Maximum size of a file that is read, in bytes.
///
/// Wrappers of large models have a few MiB.
const MAX_SOURCE: u64 = 64 << 20;

#[derive(Default)]
struct Compiled {
    graphs: Vec<Arc<Graph>>,
    /// Origins of each wrapper's lines, one entry per graph from which it was generated.
    wrappers: HashMap<String, Vec<Origins>>,
    /// Functions in the program's files.
    definitions: HashMap<String, Definitions>,
}

static COMPILED: LazyLock<Mutex<Compiled>> = LazyLock::new(Mutex::default);

/// Called in a forked child, where the functions compiled before still run.
pub fn reset_in_child() {
    locks::unlock_in_child(&COMPILED);
}

/// Graphs from which a wrapper was generated, and Inductor's records about its lines.
#[derive(Deserialize)]
struct WrapperOrigin {
    /// Each graph's number, with the paths of all wrappers generated from it.
    graphs: Vec<(usize, Vec<String>)>,
    /// First line of a section, and its index into `traces`.
    lines: Vec<(u32, Option<usize>)>,
    traces: Vec<String>,
}

/// Adds a graph of TorchDynamo; returns its number.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn graph(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL; the variable is of the type the format names.
    unsafe {
        let mut json: *const c_char = ptr::null();
        if (api.PyArg_ParseTuple)(arguments, c"s".as_ptr(), &raw mut json) == 0 {
            return ptr::null_mut();
        }
        let number = panics::catch(|| {
            let graph = Graph::parse(text(json)).unwrap_or_else(|error| {
                if let Some(recorder) = Recorder::current() {
                    recorder.warn(&format!("a compiled graph cannot be read, so its lines are unknown ({error})"));
                }
                Graph::default()
            });
            let mut compiled = COMPILED.lock();
            if compiled.graphs.len() < MAX_GRAPHS {
                compiled.graphs.push(Arc::new(graph));
            }
            compiled.graphs.len() as c_uint - 1
        });
        (api.Py_BuildValue)(c"I".as_ptr(), number.unwrap_or(c_uint::MAX))
    }
}

/// Reads a wrapper the first time a frame of it is met.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn wrapper(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL; the variables are of the types the format names.
    unsafe {
        let (mut path, mut json): (*const c_char, *const c_char) = (ptr::null(), ptr::null());
        if (api.PyArg_ParseTuple)(arguments, c"ss".as_ptr(), &raw mut path, &raw mut json) == 0 {
            return ptr::null_mut();
        }
        panics::catch(|| {
            let path = String::from_utf8_lossy(text(path)).into_owned();
            let Ok(made) = serde_json::from_slice(text(json)) else { return };
            let mut compiled = COMPILED.lock();
            let found = origins_by_graph(&compiled.graphs, &path, &made);
            compiled.wrappers.insert(path, found);
        });
        (api.Py_BuildValue)(c"".as_ptr())
    }
}

fn origins_by_graph(graphs: &[Arc<Graph>], path: &str, made: &WrapperOrigin) -> Vec<Origins> {
    let Some(wrapper) = read(path) else { return Vec::new() };
    let trace = |trace: &Option<usize>| trace.and_then(|trace| made.traces.get(trace).map(String::as_str));
    let traces: Vec<(u32, Option<&str>)> = made.lines.iter().map(|(line, known)| (*line, trace(known))).collect();
    (made.graphs.iter())
        .filter_map(|(number, wrappers)| {
            let graph = graphs.get(*number)?;
            let others = || wrappers.iter().filter(|other| *other != path);
            let forward = (wrapper.kind() == Kind::Backward)
                .then(|| others().filter_map(|other| read(other)).find(|other| other.kind() == Kind::Forward));
            Some(origins(graph, forward.flatten().as_ref(), &wrapper, &traces))
        })
        .collect()
}

fn read(path: &str) -> Option<Wrapper> {
    Some(Wrapper::parse(&source(path)?))
}

impl Compiled {
    fn qualified_name(&mut self, file: &str, line: u32, function: &str) -> Option<String> {
        let definitions = self.definitions.entry_ref(file).or_insert_with(|| definitions(file));
        definitions.qualified_name(line, function)
    }
}

/// Parses the functions of a file: TorchDynamo names functions without their classes.
fn definitions(path: &str) -> Definitions {
    Definitions::parse(&source(path).unwrap_or_default())
}

fn source(path: &str) -> Option<String> {
    let is_read = std::fs::metadata(path).ok()?.len() <= MAX_SOURCE;
    is_read.then(|| std::fs::read(path).ok()).flatten().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the qualified name of a function that a trace names as written in its definition.
pub fn qualified_name(file: &str, line: u32, function: &str) -> Option<String> {
    COMPILED.lock().qualified_name(file, line, function)
}

/// Defines a wrapper's frame again with the lines that it represents.
///
/// Returns the modules around them, the outermost first, as a list of (path, class, address or 0); None if unknown.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn origin(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL; the variable is of the type the format names.
    unsafe {
        let mut frame: c_uint = 0;
        if (api.PyArg_ParseTuple)(arguments, c"I".as_ptr(), &raw mut frame) == 0 {
            return ptr::null_mut();
        }
        let modules = panics::catch(|| {
            let recorder = Recorder::current()?;
            let place = recorder.interner.wrapper_place(frame)?;
            let mut compiled = COMPILED.lock();
            let mut origin = common(compiled.wrappers.get(&place.file)?, place.line)?;
            for frame in &mut origin.frames {
                if let Some(name) = compiled.qualified_name(&frame.file, frame.line, &frame.function) {
                    frame.function = name;
                }
            }
            drop(compiled);
            if !origin.frames.is_empty() {
                recorder.interner.define_wrapper(&recorder.log, frame, &origin.frames);
            }
            Some(origin.modules)
        });
        let Some(Some(modules)) = modules else { return (api.Py_BuildValue)(c"".as_ptr()) };
        let list = (api.PyList_New)(0);
        for Module { path, class, address } in modules {
            let (path, class) = (terminated(path), terminated(class));
            let item = (api.Py_BuildValue)(c"(ssK)".as_ptr(), path.as_ptr(), class.as_ptr(), address);
            if !item.is_null() {
                (api.PyList_Append)(list, item);
                (api.Py_DecRef)(item);
            }
        }
        list
    }
}

/// Returns the origin of a line on which all graphs agree.
///
/// Two functions with the same operations can share a wrapper; they differ in their lines.
fn common(found: &[Origins], line: u32) -> Option<Origin> {
    let mut origins = found.iter().map(|origins| origins.at(line));
    let mut common = origins.next()??.clone();
    for other in origins {
        let other = other.filter(|other| **other == common)?;
        for (module, same) in common.modules.iter_mut().zip(&other.modules) {
            if module.address != same.address {
                module.address = 0; // The modules belong to two models.
            }
        }
    }
    Some(common)
}

fn terminated(text: String) -> std::ffi::CString {
    std::ffi::CString::new(text).unwrap_or_default()
}

/// Returns the node that a line of an AOTInductor package computes, by its frame; None for Python frames.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn package_node(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL; the variable is of the type the format names.
    unsafe {
        let mut frame: c_uint = 0;
        if (api.PyArg_ParseTuple)(arguments, c"I".as_ptr(), &raw mut frame) == 0 {
            return ptr::null_mut();
        }
        let node = panics::catch(|| {
            let place = Recorder::current()?.interner.wrapper_place(frame)?;
            place.file.ends_with(".so").then(|| terminated(place.function))
        });
        match node.flatten() {
            Some(node) => (api.Py_BuildValue)(c"s".as_ptr(), node.as_ptr()),
            None => (api.Py_BuildValue)(c"".as_ptr()),
        }
    }
}

/// Defines a layer for an outermost module that compiled code runs without calling it; returns its id.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn root(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL; the variables are of the types the format names.
    unsafe {
        let (mut class, mut variable): (*const c_char, *const c_char) = (ptr::null(), ptr::null());
        if (api.PyArg_ParseTuple)(arguments, c"ss".as_ptr(), &raw mut class, &raw mut variable) == 0 {
            return ptr::null_mut();
        }
        let layer = panics::catch(|| {
            let recorder = Recorder::current()?;
            Some(recorder.interner.add_compiled_root(&recorder.log, text(class), text(variable)))
        });
        (api.Py_BuildValue)(c"I".as_ptr(), layer.flatten().unwrap_or(0))
    }
}
