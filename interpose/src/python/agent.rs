//! The embedded Python agent.
//!
//! It runs as a *pending call*: the interpreter calls [`run`] on its main thread between two bytecodes, with the GIL
//! held and no lock of PyTorch's. Everything here therefore may use the C-API; nothing else in memlab does.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::api::{Api, Object};
use super::native;
use super::program;
use super::stacks::each_stack;
use super::walk::{Interpreter, MAX_DEPTH, RawFrame};
use crate::intern::UnnamedLayer;
use crate::late;
use crate::recorder::Recorder;
use crate::symbols;
use crate::thread::Guard;

/// A Python source of this folder, as C wants it.
macro_rules! source {
    ($file:literal) => {
        match CStr::from_bytes_with_nul(concat!(include_str!($file), "\0").as_bytes()) {
            Ok(source) => source,
            Err(_) => unreachable!(),
        }
    };
}

pub(super) use source;

/// What runs before other sources, in the same namespace.
pub(super) const GUARDS_SOURCE: &CStr = source!("guards.py");
const AGENT_SOURCE: &CStr = source!("agent.py");
const READER_SOURCE: &CStr = source!("reader.py");
const EARLIER_SOURCE: &CStr = source!("earlier.py");

/// `Py_file_input`
const FILE_INPUT: c_int = 257;

/// Puts [`run`] in the interpreter's queue. Needs no GIL; says whether there was room.
pub fn ask_interpreter() -> bool {
    let found = symbols::in_process(c"Py_AddPendingCall");
    if found.is_null() {
        return false;
    }
    // SAFETY: `int Py_AddPendingCall(int (*)(void *), void *)`, callable from any thread without the GIL.
    unsafe {
        let add: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int =
            std::mem::transmute(found);
        add(run, ptr::null_mut()) == 0
    }
}

/// The running agent (a Python object), once it was started; the interpreter's self-check has passed then.
static AGENT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The pending call: on the main thread, with the GIL. What it returns other than 0 is raised in the program.
unsafe extern "C" fn run(_: *mut c_void) -> c_int {
    // Not kept while the agent runs: what the program drops meanwhile, or the garbage collector, is given back on this
    // thread too, and is to be recorded.
    let Some(guard) = Guard::enter() else {
        // Inside a hook on this very thread (a pending call runs where Python does, so hardly ever): asked again later.
        if let Some(recorder) = Recorder::current() {
            recorder.python.scheduled.store(false, Ordering::Release);
        }
        return 0;
    };
    drop(guard);
    let Some(recorder) = Recorder::current() else { return 0 };
    recorder.python.scheduled.store(false, Ordering::Release);
    let (Some(api), Some(interpreter)) = (Api::get(), recorder.python.trusted()) else { return 0 };
    // SAFETY: the GIL is held; the pending exception of the program, if any, is put aside meanwhile.
    unsafe {
        let (mut kind, mut value, mut traceback) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        (api.PyErr_Fetch)(&mut kind, &mut value, &mut traceback);
        crate::quietly(|| untraced(api, || work(api, recorder, interpreter)));
        if kind.is_null() && !(api.PyErr_Occurred)().is_null() {
            // The agent lets nothing of its own through: a signal handler of the program raised while it ran.
            return -1;
        }
        (api.PyErr_Clear)();
        (api.PyErr_Restore)(kind, value, traceback);
    }
    0
}

/// Runs `work` unseen by debuggers, coverage and torch.compile.
///
/// SAFETY: the GIL must be held.
unsafe fn untraced(api: &Api, work: impl FnOnce()) {
    // SAFETY: the caller's word; both functions exist from 3.11 on and take the current thread state.
    unsafe {
        let state_of = symbols::in_process(c"PyThreadState_Get");
        let (enter, leave) =
            (symbols::in_process(c"PyThreadState_EnterTracing"), symbols::in_process(c"PyThreadState_LeaveTracing"));
        let tracing = [state_of, enter, leave].iter().all(|function| !function.is_null()).then(|| {
            type OfState = unsafe extern "C" fn(Object);
            let state: unsafe extern "C" fn() -> Object = std::mem::transmute(state_of);
            (
                state(),
                std::mem::transmute::<*mut c_void, OfState>(enter),
                std::mem::transmute::<*mut c_void, OfState>(leave),
            )
        });
        if let Some((state, enter, _)) = tracing {
            enter(state);
        }
        let dynamo = pause_dynamo(api);
        work();
        if let Some((set_eval_frame, before)) = dynamo {
            let (mut kind, mut value, mut traceback) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            (api.PyErr_Fetch)(&mut kind, &mut value, &mut traceback);
            let replaced = (api.PyObject_CallFunctionObjArgs)(set_eval_frame, before, ptr::null_mut::<c_void>());
            for object in [replaced, before, set_eval_frame] {
                if !object.is_null() {
                    (api.Py_DecRef)(object);
                }
            }
            (api.PyErr_Restore)(kind, value, traceback);
        }
        if let Some((state, _, leave)) = tracing {
            leave(state);
        }
    }
}

/// torch.compile would compile the agent's own functions where its frame evaluator is active. Returns the setter and
/// the callback to put back.
///
/// SAFETY: the GIL must be held.
unsafe fn pause_dynamo(api: &Api) -> Option<(Object, Object)> {
    // SAFETY: the caller's word; module and attribute are looked up, and missing in programs that never compile.
    unsafe {
        let modules = (api.PyImport_GetModuleDict)();
        let module = (api.PyDict_GetItemString)(modules, c"torch._C._dynamo.eval_frame".as_ptr());
        if module.is_null() {
            (api.PyErr_Clear)();
            return None;
        }
        let set_eval_frame = (api.PyObject_GetAttrString)(module, c"set_eval_frame".as_ptr());
        if set_eval_frame.is_null() {
            (api.PyErr_Clear)();
            return None;
        }
        let none = (api.Py_BuildValue)(c"".as_ptr());
        let before = (api.PyObject_CallFunctionObjArgs)(set_eval_frame, none, ptr::null_mut::<c_void>());
        (api.Py_DecRef)(none);
        if before.is_null() {
            (api.PyErr_Clear)();
            (api.Py_DecRef)(set_eval_frame);
            return None;
        }
        Some((set_eval_frame, before))
    }
}

/// SAFETY: the GIL must be held.
unsafe fn work(api: &Api, recorder: &'static Recorder, interpreter: &'static Interpreter) {
    // SAFETY: the caller's word.
    unsafe {
        let mut agent = AGENT.load(Ordering::Acquire);
        if agent.is_null()
            && let Err(why) = self_check(api, interpreter)
        {
            recorder.python.distrust(&recorder.log, &why);
            return;
        }
        program::run(api, recorder);
        if !(api.PyErr_Occurred)().is_null() {
            // A signal handler of the program raised: the rest has to wait for another run.
            recorder.python.schedule();
            return;
        }
        if agent.is_null() {
            agent = start(api);
            if agent.is_null() {
                return;
            }
            AGENT.store(agent, Ordering::Release);
        }
        if recorder.python.backward_came.swap(false, Ordering::AcqRel) {
            call(api, agent, c"after_backward");
            if !(api.PyErr_Occurred)().is_null() {
                recorder.python.schedule();
                return;
            }
        }
        let unnamed = recorder.interner.take_unnamed();
        if !recorder.python.unfinished.swap(false, Ordering::AcqRel) && unnamed.is_empty() {
            return;
        }
        let list = describe(api, recorder, interpreter, &unnamed);
        let resolve = (api.PyObject_GetAttrString)(agent, c"resolve".as_ptr());
        if !resolve.is_null() && !list.is_null() {
            let result = (api.PyObject_CallFunctionObjArgs)(resolve, list, ptr::null_mut::<c_void>());
            if result.is_null() {
                recorder.interner.put_back_unnamed(unnamed);
            } else {
                (api.Py_DecRef)(result);
            }
        }
        for object in [resolve, list] {
            if !object.is_null() {
                (api.Py_DecRef)(object);
            }
        }
    }
}

/// Calls a method of the agent's that takes nothing.
///
/// SAFETY: the GIL must be held.
unsafe fn call(api: &Api, agent: Object, method: &CStr) {
    // SAFETY: the caller's word.
    unsafe {
        let method = (api.PyObject_GetAttrString)(agent, method.as_ptr());
        if method.is_null() {
            return;
        }
        let result = (api.PyObject_CallFunctionObjArgs)(method, ptr::null_mut::<c_void>());
        for object in [method, result] {
            if !object.is_null() {
                (api.Py_DecRef)(object);
            }
        }
    }
}

/// Compares a raw walk of this thread's stack with what the C-API says of it. The innermost line is left out: it is
/// only written back by the interpreter when it calls.
///
/// SAFETY: the GIL must be held.
unsafe fn self_check(api: &Api, interpreter: &Interpreter) -> Result<(), String> {
    let mut raw = Box::new([RawFrame::EMPTY; MAX_DEPTH]);
    let count = interpreter.walk(interpreter.innermost(), &mut raw, &[]);
    // SAFETY: the caller's word; every new reference is dropped.
    unsafe {
        let mut frame = (api.PyEval_GetFrame)();
        if !frame.is_null() {
            (api.Py_IncRef)(frame);
        }
        let mut outcome = Ok(());
        let mut depth = 0;
        while !frame.is_null() {
            let code = (api.PyFrame_GetCode)(frame);
            let same = raw[..count].get(depth).is_some_and(|raw| {
                let line = || interpreter.line(raw).map_or(-1, |line| line as c_int);
                ptr::eq(raw.code, code.cast()) && (depth == 0 || line() == (api.PyFrame_GetLineNumber)(frame).max(-1))
            });
            (api.Py_DecRef)(code);
            if !same && depth < MAX_DEPTH && outcome.is_ok() {
                outcome = Err(format!("reading Python's stack went wrong at frame {depth}"));
            }
            let back = (api.PyFrame_GetBack)(frame);
            (api.Py_DecRef)(frame);
            frame = back;
            depth += 1;
        }
        if outcome.is_ok() && count != depth.min(MAX_DEPTH) {
            outcome = Err(format!("reading Python's stack gave {count} frames of {depth}"));
        }
        outcome
    }
}

/// The list the agent is given: (layer, parent, module or None, address, generated frame or 0, line, class). A module is
/// alive for certain if a live frame of some thread calls it; frames stand still while the GIL is held.
///
/// SAFETY: the GIL must be held.
unsafe fn describe(api: &Api, recorder: &Recorder, interpreter: &Interpreter, unnamed: &[UnnamedLayer]) -> Object {
    // SAFETY: the caller's word.
    unsafe {
        let mut alive = HashSet::new();
        each_stack(api, interpreter, |frames| {
            alive.extend(frames.iter().filter_map(|raw| {
                let local = recorder.interner.module_local(raw.code, interpreter.identity(raw.code))?;
                Some(interpreter.local(raw.frame, local) as usize)
            }));
        });
        let list = (api.PyList_New)(0);
        let none = (api.Py_BuildValue)(c"".as_ptr());
        for layer in unnamed {
            let module = if alive.contains(&layer.module) { layer.module as Object } else { none };
            let (id, parent, address) = (layer.id, layer.parent, layer.module as u64);
            let (frame, line) = (layer.generated, layer.line);
            let class = CString::new(recorder.interner.class_of(id)).unwrap_or_default();
            let class = class.as_ptr();
            let item = (api.Py_BuildValue)(c"(IIOKIIs)".as_ptr(), id, parent, module, address, frame, line, class);
            if !item.is_null() {
                (api.PyList_Append)(list, item);
                (api.Py_DecRef)(item);
            }
        }
        (api.Py_DecRef)(none);
        list
    }
}

/// An optimizer has stepped on this thread.
///
/// SAFETY: the GIL must be held.
pub unsafe fn after_step(api: &Api, optimizer: Object) {
    let Some(recorder) = Recorder::current() else { return };
    recorder.step(Recorder::enter_if_recording().map_or(0, |session| session.thread.id));
    let agent = AGENT.load(Ordering::Acquire);
    if agent.is_null() || optimizer.is_null() {
        return;
    }
    // SAFETY: the caller's word; the agent lives for ever.
    unsafe {
        untraced(api, || {
            let function = (api.PyObject_GetAttrString)(agent, c"after_step".as_ptr());
            if function.is_null() {
                return;
            }
            let result = (api.PyObject_CallFunctionObjArgs)(function, optimizer, ptr::null_mut::<c_void>());
            for object in [function, result] {
                if !object.is_null() {
                    (api.Py_DecRef)(object);
                }
            }
        });
    }
}

/// Makes the agent. Null where there is nothing for it to do (no PyTorch yet).
///
/// SAFETY: the GIL must be held.
unsafe fn start(api: &Api) -> Object {
    // SAFETY: the caller's word. Objects made here live as long as the process.
    unsafe {
        let native = native::module(api);
        let reader = run_sources(api, &[READER_SOURCE], c"memlab_reader");
        if native.is_null() || reader.is_null() {
            return ptr::null_mut();
        }
        (api.PyObject_SetAttrString)(native, c"reader".as_ptr(), reader);
        let running = late::found_running();
        let earlier = if running { run_sources(api, &[EARLIER_SOURCE], c"memlab_earlier") } else { none(api) };
        if earlier.is_null() {
            return ptr::null_mut();
        }
        (api.PyObject_SetAttrString)(native, c"earlier".as_ptr(), earlier);
        started(api, AGENT_SOURCE, c"memlab_agent", native)
    }
}

/// What the function `start` of a source makes; null if that is nothing.
///
/// SAFETY: the GIL must be held, and `native` be the module of that name.
pub(super) unsafe fn started(api: &Api, source: &CStr, name: &CStr, native: Object) -> Object {
    // SAFETY: the caller's word. Objects made here live as long as the process.
    unsafe {
        let module = run_sources(api, &[GUARDS_SOURCE, source], name);
        if module.is_null() {
            return ptr::null_mut();
        }
        let start = (api.PyObject_GetAttrString)(module, c"start".as_ptr());
        if start.is_null() {
            return ptr::null_mut();
        }
        let made = (api.PyObject_CallFunctionObjArgs)(start, native, ptr::null_mut::<c_void>());
        if ptr::eq(made, none(api)) { ptr::null_mut() } else { made }
    }
}

/// Python's `None`, which lives as long as the interpreter: no reference is held.
///
/// SAFETY: the GIL must be held.
unsafe fn none(api: &Api) -> Object {
    // SAFETY: the caller's word.
    unsafe {
        let none = (api.Py_BuildValue)(c"".as_ptr());
        (api.Py_DecRef)(none);
        none
    }
}

/// A module with what the sources define, which the program does not come across. Null where Python refuses.
///
/// SAFETY: the GIL must be held.
unsafe fn run_sources(api: &Api, sources: &[&CStr], name: &CStr) -> Object {
    // SAFETY: the caller's word.
    unsafe {
        let module = (api.PyModule_New)(name.as_ptr());
        if module.is_null() {
            return ptr::null_mut();
        }
        let globals = (api.PyModule_GetDict)(module);
        (api.PyDict_SetItemString)(globals, c"__builtins__".as_ptr(), (api.PyEval_GetBuiltins)());
        for source in sources {
            let code = (api.Py_CompileString)(source.as_ptr(), c"<memlab agent>".as_ptr(), FILE_INPUT);
            if code.is_null() {
                return ptr::null_mut();
            }
            let evaluated = (api.PyEval_EvalCode)(code, globals, globals);
            (api.Py_DecRef)(code);
            if evaluated.is_null() {
                return ptr::null_mut();
            }
            (api.Py_DecRef)(evaluated);
        }
        module
    }
}

/// A forked child starts an agent of its own, for a trace of its own.
pub fn forget_in_child() {
    AGENT.store(ptr::null_mut(), Ordering::Release);
    program::forget_in_child();
    native::forget_in_child();
}
