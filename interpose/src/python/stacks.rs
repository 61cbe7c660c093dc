//! Reads the stacks of all threads that run Python, for the agent.

use std::ptr;

use crate::recorder::Recorder;
use interpose_base::panics;
use interpose_python::api::{Api, Object};
use interpose_python::walk::{Interpreter, MAX_DEPTH, RawFrame};

/// Passes the frames of each thread that runs Python to `look`, the innermost first.
///
/// # Safety
///
/// The GIL must be held.
pub unsafe fn each_stack(api: &Api, interpreter: &Interpreter, mut look: impl FnMut(&[RawFrame])) {
    let mut raw = Box::new([RawFrame::EMPTY; MAX_DEPTH]);
    // SAFETY: the caller holds the GIL, so frames do not change.
    unsafe {
        let mut thread = (api.PyInterpreterState_ThreadHead)((api.PyInterpreterState_Get)());
        while !thread.is_null() {
            let count = interpreter.walk(interpreter.innermost_of(thread.cast()), &mut raw, &[]);
            look(&raw[..count]);
            thread = (api.PyThreadState_Next)(thread);
        }
    }
}

/// Builds the list that `look` fills from the frames of each thread that runs Python; empty if they cannot be read.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL.
unsafe fn listed(mut look: impl FnMut(&Api, &Interpreter, &[RawFrame], Object)) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: the caller holds the GIL.
    unsafe {
        let list = (api.PyList_New)(0);
        let interpreter = Recorder::current().and_then(|recorder| recorder.python.trusted());
        if let Some(interpreter) = interpreter.filter(|_| !list.is_null()) {
            panics::catch(|| each_stack(api, interpreter, |frames| look(api, interpreter, frames, list)));
        }
        list
    }
}

/// Appends a local variable's value, if it is not null.
///
/// # Safety
///
/// The GIL must be held; the frame must be of a running thread and of a function known to have an object in that
/// variable.
unsafe fn append_local(api: &Api, interpreter: &Interpreter, raw: &RawFrame, number: usize, list: Object) {
    let value = interpreter.local(raw.frame, number) as Object;
    if !value.is_null() {
        // SAFETY: the caller holds the GIL; the frame keeps the object alive.
        unsafe { (api.PyList_Append)(list, value) };
    }
}

/// Lists the variables of the program's running functions, including those shared with closures, outermost first.
///
/// Each entry is (name, address of the value, the value if the variable is the function's first, else None).
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn variables(_: Object, _arguments: Object) -> Object {
    // SAFETY: called by the interpreter, with the GIL.
    unsafe {
        listed(|api, interpreter, frames, list| {
            frames.iter().rev().for_each(|raw| list_variables(api, interpreter, raw, list));
        })
    }
}

/// # Safety
///
/// The GIL must be held, and the frame must be of a running thread.
unsafe fn list_variables(api: &Api, interpreter: &Interpreter, raw: &RawFrame, list: Object) {
    let file = interpreter.file(raw.code);
    if ["/site-packages/", "/dist-packages/", "<memlab agent>"].iter().any(|library| file.contains(library)) {
        return;
    }
    // SAFETY: the caller holds the GIL; a frame keeps its code alive, and the variables that its code names are null or
    // objects.
    unsafe {
        // Variables shared with closures are not among the function's other variables, and come after them.
        let kinds = [c"co_varnames", c"co_cellvars", c"co_freevars"]
            .map(|kind| (api.PyObject_GetAttrString)(raw.code.cast_mut().cast(), kind.as_ptr()));
        if !kinds.contains(&ptr::null_mut()) {
            let mut names = Vec::new();
            for kind in kinds {
                for index in 0..(api.PyObject_Size)(kind).max(0) {
                    let name = (api.PyTuple_GetItem)(kind, index);
                    if kind != kinds[1] || interpreter.has_cells_of_arguments_apart() || !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
            let none = (api.Py_BuildValue)(c"".as_ptr());
            for (index, &name) in names.iter().enumerate() {
                let value = interpreter.local(raw.frame, index) as Object;
                if name.is_null() || value.is_null() {
                    continue;
                }
                let first = if name == names[0] { value } else { none };
                let item = (api.Py_BuildValue)(c"(OKO)".as_ptr(), name, value as u64, first);
                if !item.is_null() {
                    (api.PyList_Append)(list, item);
                    (api.Py_DecRef)(item);
                }
            }
            (api.Py_DecRef)(none);
        }
        kinds.into_iter().filter(|kind| !kind.is_null()).for_each(|kind| (api.Py_DecRef)(kind));
        (api.PyErr_Clear)();
    }
}

/// Lists the arguments of the outermost running modules: their positional arguments as a tuple and their named arguments as
/// a dictionary.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn arguments(_: Object, _arguments: Object) -> Object {
    /// `_wrapped_call_impl(self, *args, **kwargs)`, which calls no function that could change them before the module
    /// returns.
    const CALL: &str = "_wrapped_call_impl";
    const POSITIONAL: usize = 1;
    const NAMED: usize = 2;
    // SAFETY: called by the interpreter, with the GIL; both are parameters of that function.
    unsafe {
        listed(|api, interpreter, frames, list| {
            let is_call = |raw: &&RawFrame| {
                interpreter.name(raw.code) == CALL
                    && interpreter.file(raw.code).ends_with("/torch/nn/modules/module.py")
            };
            if let Some(outermost) = frames.iter().rev().find(is_call) {
                [POSITIONAL, NAMED].iter().for_each(|number| append_local(api, interpreter, outermost, *number, list));
            }
        })
    }
}

/// Lists the modules passed to running calls of `torch.nn.parallel.parallel_apply`, one list per call.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn replicas(_: Object, _arguments: Object) -> Object {
    // SAFETY: called by the interpreter, with the GIL. The first local is read only for this function, where it is an
    // object.
    unsafe {
        listed(|api, interpreter, frames, list| {
            let inside = frames.iter().filter(|raw| is_parallel_apply(interpreter, raw));
            inside.for_each(|raw| append_local(api, interpreter, raw, 0, list));
        })
    }
}

fn is_parallel_apply(interpreter: &Interpreter, raw: &RawFrame) -> bool {
    interpreter.name(raw.code) == "parallel_apply"
        && interpreter.file(raw.code).ends_with("torch/nn/parallel/parallel_apply.py")
}

/// Returns true if a backward may be in progress, or begin while the agent runs.
///
/// Its threads write gradients without the GIL.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn is_in_backward(_: Object, _arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    let mut may_be = true;
    // SAFETY: called by the interpreter, with the GIL.
    unsafe {
        if let Some(interpreter) = Recorder::current().and_then(|recorder| recorder.python.trusted()) {
            panics::catch(|| {
                let mut threads = 0;
                may_be = false;
                each_stack(api, interpreter, |frames| {
                    threads += i32::from(!frames.is_empty());
                    may_be |= has_backward(interpreter, frames);
                });
                may_be |= threads > 1;
            });
        }
        (api.Py_BuildValue)(c"i".as_ptr(), i32::from(may_be))
    }
}

/// Returns true if a thread is in TorchDynamo's function that calls hooks after a compilation.
///
/// Not written in Python: frames that Python code inspects stay alive with their variables, until the garbage collector
/// finds them.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
pub unsafe extern "C" fn is_compiling(_: Object, _arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    let mut may_be = true;
    // SAFETY: called by the interpreter, with the GIL.
    unsafe {
        if let Some(interpreter) = Recorder::current().and_then(|recorder| recorder.python.trusted()) {
            panics::catch(|| {
                may_be = false;
                each_stack(api, interpreter, |frames| {
                    may_be |= frames.len() == MAX_DEPTH
                        || frames.iter().any(|raw| {
                            interpreter.name(raw.code) == "_compile_inner"
                                && interpreter.file(raw.code).ends_with("torch/_dynamo/convert_frame.py")
                        });
                });
            });
        }
        (api.Py_BuildValue)(c"i".as_ptr(), i32::from(may_be))
    }
}

/// Returns true if the thread interrupted by the agent is inside autograd's engine.
///
/// If the interrupted function is the one that calls the engine, the engine has returned.
fn has_backward(interpreter: &Interpreter, frames: &[RawFrame]) -> bool {
    let agents = frames.iter().take_while(|raw| interpreter.file(raw.code) == "<memlab agent>").count();
    let returned = frames[agents..].iter().take_while(|raw| calls_engine(interpreter, raw)).count();
    // The outer frames of a very deep stack are not known.
    frames.len() == MAX_DEPTH || frames[agents + returned..].iter().any(|raw| calls_engine(interpreter, raw))
}

fn calls_engine(interpreter: &Interpreter, raw: &RawFrame) -> bool {
    match interpreter.name(raw.code).as_str() {
        "backward" | "grad" => interpreter.file(raw.code).ends_with("torch/autograd/__init__.py"),
        "_engine_run_backward" => interpreter.file(raw.code).ends_with("torch/autograd/graph.py"),
        _ => false,
    }
}
