//! The embedded Python agent.
//!
//! It runs as a *pending call*: the interpreter calls [`run`] on its main thread between two bytecodes, with the GIL held
//! and no PyTorch lock. Everything here may therefore use the C-API; no other part of memlab does.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::embedded::{GUARDS_SOURCE, none, run_sources, source, started};
use super::frame_evaluation;
use super::holders;
use super::native;
use super::program;
use super::stacks::each_stack;
use crate::intern::UnnamedLayer;
use crate::recorder::Recorder;
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;
use interpose_base::symbols;
use interpose_python::api::{Api, Object};
use interpose_python::held_signals::HeldSignals;
use interpose_python::running_agent::{self, call, untraced};
use interpose_python::walk::{Interpreter, MAX_DEPTH, RawFrame};

const THROTTLE_SOURCE: &CStr = source!("throttle.py");
const PARALLEL_SOURCE: &CStr = source!("parallel.py");
const TAGS_SOURCE: &CStr = source!("tags.py");
const GRAPHS_SOURCE: &CStr = source!("graphs.py");
const COMPILED_SOURCE: &CStr = source!("compiled.py");
const FIT_COSTS_SOURCE: &CStr = source!("fit_costs.py");
const FIT_GRADIENTS_SOURCE: &CStr = source!("fit_gradients.py");
const FIT_LOSS_SOURCE: &CStr = source!("fit_loss.py");
const FIT_STATE_SOURCE: &CStr = source!("fit_state.py");
const FIT_SNAPSHOT_SOURCE: &CStr = source!("fit_snapshot.py");
const FIT_RECOMPUTE_SOURCE: &CStr = source!("fit_recompute.py");
const FIT_SOURCE: &CStr = source!("fit.py");
const SPILL_SOURCE: &CStr = source!("spill.py");
const AGENT_SOURCE: &CStr = source!("agent.py");
const READER_SOURCE: &CStr = source!("reader.py");
const EARLIER_SOURCE: &CStr = source!("earlier.py");

/// True if PyTorch had used CUDA when memlab was loaded.
static FOUND_RUNNING: AtomicBool = AtomicBool::new(false);

/// Makes the agent query PyTorch for the memory that it allocated before memlab was loaded.
pub fn request_earlier_memory() {
    FOUND_RUNNING.store(true, Ordering::Relaxed);
}

/// Returns true while the interpreter ends. Objects that it destroys then may run Python, and so pending calls.
fn is_finalizing() -> bool {
    static FUNCTION: OnceLock<Option<unsafe extern "C" fn() -> c_int>> = OnceLock::new();
    let function = FUNCTION.get_or_init(|| {
        // The second since 3.13.
        let found = [c"_Py_IsFinalizing", c"Py_IsFinalizing"].map(symbols::in_process);
        let found = found.into_iter().find(|found| !found.is_null())?;
        // SAFETY: both functions take nothing and return an int.
        Some(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(found) })
    });
    // SAFETY: the function reads a variable of the interpreter.
    function.is_some_and(|function| unsafe { function() } != 0)
}

/// The pending call: runs on the main thread, with the GIL.
///
/// A result other than 0 raises in the program.
///
/// # Safety
///
/// Must be called by the interpreter as a pending call: with the GIL, between two bytecodes.
pub unsafe extern "C" fn run(_: *mut c_void) -> c_int {
    // Not kept while the agent runs: memory that the program or the garbage collector frees in the meantime, also on this
    // thread, must be recorded.
    let Some(guard) = RecursionGuard::enter() else {
        // Inside a hook on this same thread (rare: a pending call runs between bytecodes): schedule it again.
        if let Some(recorder) = Recorder::current() {
            recorder.python.scheduled.store(false, Ordering::Release);
        }
        return 0;
    };
    drop(guard);
    if is_finalizing() {
        return 0; // The interpreter has no modules any more: a request for them would end the process.
    }
    let Some(recorder) = Recorder::current() else { return 0 };
    recorder.python.scheduled.store(false, Ordering::Release);
    let (Some(api), Some(interpreter)) = (Api::get(), recorder.python.trusted()) else { return 0 };
    let _held = HeldSignals::hold();
    // SAFETY: the GIL is held.
    if unsafe { (api.PyErr_CheckSignals)() } != 0 {
        // A signal came just before: its handler has raised in the program.
        recorder.python.run_again();
        return -1;
    }
    // SAFETY: the GIL is held; a pending exception of the program is saved and restored.
    unsafe {
        let (mut kind, mut value, mut traceback) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        (api.PyErr_Fetch)(&mut kind, &mut value, &mut traceback);
        panics::catch(|| untraced(api, || work(api, recorder, interpreter)));
        if kind.is_null() && !(api.PyErr_Occurred)().is_null() {
            // The agent catches all its exceptions: this one comes from a signal handler of the program.
            return -1;
        }
        (api.PyErr_Clear)();
        (api.PyErr_Restore)(kind, value, traceback);
    }
    0
}

/// # Safety
///
/// The GIL must be held.
unsafe fn work(api: &'static Api, recorder: &'static Recorder, interpreter: &'static Interpreter) {
    // SAFETY: the caller holds the GIL.
    unsafe {
        let mut agent = running_agent::get();
        if agent.is_null()
            && let Err(why) = self_check(api, interpreter)
        {
            recorder.python.distrust(&recorder.log, &why);
            return;
        }
        program::run(api, recorder);
        if !(api.PyErr_Occurred)().is_null() {
            // A signal handler of the program raised: the rest waits for another run.
            recorder.python.schedule();
            return;
        }
        if agent.is_null() {
            agent = start(api);
            if agent.is_null() {
                return;
            }
            running_agent::set(agent);
        }
        holders::search_if_wanted(api, recorder, interpreter);
        if recorder.python.backward_came.swap(false, Ordering::AcqRel) {
            call(api, agent, c"after_backward");
            if !(api.PyErr_Occurred)().is_null() {
                recorder.python.schedule();
                return;
            }
        }
        if recorder.python.asked.swap(false, Ordering::AcqRel) {
            call(api, agent, c"asked");
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

/// Compares a raw walk of this thread's stack with the C-API's result.
///
/// Omits the innermost line: the interpreter stores it only when it calls.
///
/// # Safety
///
/// The GIL must be held.
unsafe fn self_check(api: &Api, interpreter: &Interpreter) -> Result<(), String> {
    let mut raw = Box::new([RawFrame::EMPTY; MAX_DEPTH]);
    let count = interpreter.walk(interpreter.innermost(), &mut raw, &[]);
    // SAFETY: the caller holds the GIL; every new reference is dropped.
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
                outcome = Err(format!("reading Python's stack failed at frame {depth}"));
            }
            let back = (api.PyFrame_GetBack)(frame);
            (api.Py_DecRef)(frame);
            frame = back;
            depth += 1;
        }
        if outcome.is_ok() && count != depth.min(MAX_DEPTH) {
            outcome = Err(format!("reading Python's stack returned {count} of {depth} frames"));
        }
        outcome
    }
}

/// Builds the list for the agent: (layer, parent, module or None, address, generated frame or 0, line, class, wrapper).
///
/// A module is certainly alive if a live frame of some thread calls it. Frames do not change while the GIL is held.
///
/// # Safety
///
/// The GIL must be held.
unsafe fn describe(api: &Api, recorder: &Recorder, interpreter: &Interpreter, unnamed: &[UnnamedLayer]) -> Object {
    // SAFETY: the caller holds the GIL.
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
            let wrapper = recorder.interner.wrapper_place(frame).map(|place| place.file).unwrap_or_default();
            let wrapper = CString::new(wrapper).unwrap_or_default();
            let format = c"(IIOKIIss)".as_ptr();
            let item = (api.Py_BuildValue)(format, id, parent, module, address, frame, line, class, wrapper.as_ptr());
            if !item.is_null() {
                (api.PyList_Append)(list, item);
                (api.Py_DecRef)(item);
            }
        }
        (api.Py_DecRef)(none);
        list
    }
}

/// Creates the agent.
///
/// Returns null if it has no work yet (PyTorch is not loaded).
///
/// # Safety
///
/// The GIL must be held.
unsafe fn start(api: &Api) -> Object {
    // SAFETY: the caller holds the GIL. Objects created here live as long as the process.
    unsafe {
        let native = native::module(api);
        let reader = run_sources(api, &[READER_SOURCE], c"memlab_reader");
        if native.is_null() || reader.is_null() {
            return ptr::null_mut();
        }
        (api.PyObject_SetAttrString)(native, c"reader".as_ptr(), reader);
        frame_evaluation::watch();
        let running = FOUND_RUNNING.load(Ordering::Relaxed);
        let earlier = if running { run_sources(api, &[EARLIER_SOURCE], c"memlab_earlier") } else { none(api) };
        if earlier.is_null() {
            return ptr::null_mut();
        }
        (api.PyObject_SetAttrString)(native, c"earlier".as_ptr(), earlier);
        let sources = [
            GUARDS_SOURCE,
            THROTTLE_SOURCE,
            PARALLEL_SOURCE,
            TAGS_SOURCE,
            GRAPHS_SOURCE,
            COMPILED_SOURCE,
            FIT_LOSS_SOURCE,
            FIT_STATE_SOURCE,
            FIT_GRADIENTS_SOURCE,
            FIT_COSTS_SOURCE,
            FIT_SNAPSHOT_SOURCE,
            FIT_RECOMPUTE_SOURCE,
            FIT_SOURCE,
            SPILL_SOURCE,
            AGENT_SOURCE,
        ];
        started(api, &sources, c"memlab_agent", native)
    }
}

/// Called in a forked child, which starts another agent for its trace.
pub fn reset_in_child() {
    running_agent::set(ptr::null_mut());
    program::reset_in_child();
    holders::reset_in_child();
    native::reset_in_child();
}
