//! The embedded Python agent and the functions it calls back.
//!
//! It runs as a *pending call*: the interpreter calls [`run`] on its main thread between two bytecodes, with the GIL
//! held and no lock of PyTorch's. Everything here therefore may use the C-API; nothing else in memlab does.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::TagCategory;

use parking_lot::Mutex;

use super::walk::{Interpreter, MAX_DEPTH, RawFrame};
use crate::intern::UnnamedLayer;
use crate::lifecycle;
use crate::recorder::Recorder;
use crate::symbols;
use crate::thread::Guard;

const SOURCE: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("agent.py"), "\0").as_bytes()) {
    Ok(source) => source,
    Err(_) => unreachable!(),
};

/// A `PyObject`, opaque.
type Object = *mut c_void;

/// `PyMethodDef`
#[repr(C)]
struct Method {
    name: *const c_char,
    function: unsafe extern "C" fn(Object, Object) -> Object,
    flags: c_int,
    doc: *const c_char,
}

// SAFETY: immutable static strings and functions.
unsafe impl Sync for Method {}

const METH_VARARGS: c_int = 1;

macro_rules! python_api {
    ($($name:ident: $type:ty;)*) => {
        /// The functions of the stable C-API that the agent needs.
        #[allow(non_snake_case)]
        struct Api { $($name: $type),* }
        impl Api {
            /// Looked up once.
            fn get() -> Option<&'static Self> {
                static API: OnceLock<Option<Api>> = OnceLock::new();
                API.get_or_init(Self::find).as_ref()
            }

            fn find() -> Option<Self> {
                // SAFETY: each is the function of that name, with the signature of Python's headers since 3.9.
                unsafe {
                    Some(Self {$(
                        $name: {
                            let name = concat!(stringify!($name), "\0");
                            let found = symbols::in_process(CStr::from_bytes_with_nul_unchecked(name.as_bytes()));
                            if found.is_null() {
                                return None;
                            }
                            std::mem::transmute::<*mut c_void, $type>(found)
                        }
                    ),*})
                }
            }
        }
    };
}

python_api! {
    PyErr_Fetch: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object);
    PyErr_Restore: unsafe extern "C" fn(Object, Object, Object);
    PyErr_Clear: unsafe extern "C" fn();
    PyErr_Occurred: unsafe extern "C" fn() -> Object;
    PyEval_GetFrame: unsafe extern "C" fn() -> Object;
    PyFrame_GetBack: unsafe extern "C" fn(Object) -> Object;
    PyFrame_GetCode: unsafe extern "C" fn(Object) -> Object;
    PyFrame_GetLineNumber: unsafe extern "C" fn(Object) -> c_int;
    PyModule_New: unsafe extern "C" fn(*const c_char) -> Object;
    PyModule_GetDict: unsafe extern "C" fn(Object) -> Object;
    PyObject_SetAttrString: unsafe extern "C" fn(Object, *const c_char, Object) -> c_int;
    PyObject_GetAttrString: unsafe extern "C" fn(Object, *const c_char) -> Object;
    PyObject_CallFunctionObjArgs: unsafe extern "C" fn(Object, ...) -> Object;
    PyCFunction_NewEx: unsafe extern "C" fn(*const Method, Object, Object) -> Object;
    PyLong_AsUnsignedLongLong: unsafe extern "C" fn(Object) -> u64;
    PyArg_ParseTuple: unsafe extern "C" fn(Object, *const c_char, ...) -> c_int;
    Py_CompileString: unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> Object;
    PyEval_EvalCode: unsafe extern "C" fn(Object, Object, Object) -> Object;
    PyEval_GetBuiltins: unsafe extern "C" fn() -> Object;
    PyDict_SetItemString: unsafe extern "C" fn(Object, *const c_char, Object) -> c_int;
    PyDict_GetItemString: unsafe extern "C" fn(Object, *const c_char) -> Object;
    PyImport_GetModuleDict: unsafe extern "C" fn() -> Object;
    PyList_New: unsafe extern "C" fn(isize) -> Object;
    PyList_Append: unsafe extern "C" fn(Object, Object) -> c_int;
    Py_BuildValue: unsafe extern "C" fn(*const c_char, ...) -> Object;
    Py_IncRef: unsafe extern "C" fn(Object);
    Py_DecRef: unsafe extern "C" fn(Object);
    PyInterpreterState_Get: unsafe extern "C" fn() -> Object;
    PyInterpreterState_ThreadHead: unsafe extern "C" fn(Object) -> Object;
    PyThreadState_Next: unsafe extern "C" fn(Object) -> Object;
}

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
        if agent.is_null() {
            if let Err(why) = self_check(api, interpreter) {
                recorder.python.distrust(&recorder.log, &why);
                return;
            }
            agent = start(api);
            if agent.is_null() {
                return;
            }
            AGENT.store(agent, Ordering::Release);
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
        let mut raw = Box::new([RawFrame::EMPTY; MAX_DEPTH]);
        let mut thread = (api.PyInterpreterState_ThreadHead)((api.PyInterpreterState_Get)());
        while !thread.is_null() {
            let count = interpreter.walk(interpreter.innermost_of(thread.cast()), &mut raw, &[]);
            alive.extend(raw[..count].iter().filter_map(|raw| {
                let local = recorder.interner.module_local(raw.code, interpreter.identity(raw.code))?;
                Some(interpreter.local(raw.frame, local) as usize)
            }));
            thread = (api.PyThreadState_Next)(thread);
        }
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

/// Runs the embedded source and makes the agent. Null where there is nothing for it to do (no PyTorch yet).
///
/// SAFETY: the GIL must be held.
unsafe fn start(api: &Api) -> Object {
    // SAFETY: the caller's word. Objects made here live as long as the process, but for the result of the source.
    unsafe {
        let native = (api.PyModule_New)(c"memlab_native".as_ptr());
        let namespace = (api.PyModule_New)(c"memlab_agent".as_ptr());
        let code = (api.Py_CompileString)(SOURCE.as_ptr(), c"<memlab agent>".as_ptr(), FILE_INPUT);
        if native.is_null() || namespace.is_null() || code.is_null() {
            return ptr::null_mut();
        }
        for method in &METHODS {
            let function = (api.PyCFunction_NewEx)(method, ptr::null_mut(), ptr::null_mut());
            (api.PyObject_SetAttrString)(native, method.name, function);
            (api.Py_DecRef)(function);
        }
        let globals = (api.PyModule_GetDict)(namespace);
        (api.PyDict_SetItemString)(globals, c"__builtins__".as_ptr(), (api.PyEval_GetBuiltins)());
        let evaluated = (api.PyEval_EvalCode)(code, globals, globals);
        let start = (api.PyDict_GetItemString)(globals, c"start".as_ptr());
        if evaluated.is_null() || start.is_null() {
            return ptr::null_mut();
        }
        (api.Py_DecRef)(evaluated);
        let agent = (api.PyObject_CallFunctionObjArgs)(start, native, ptr::null_mut::<c_void>());
        let none = (api.Py_BuildValue)(c"".as_ptr());
        (api.Py_DecRef)(none);
        if ptr::eq(agent, none) { ptr::null_mut() } else { agent }
    }
}

/// A forked child starts an agent of its own, for a trace of its own.
pub fn forget_in_child() {
    AGENT.store(ptr::null_mut(), Ordering::Release);
    lifecycle::free_in_child(&DEAD);
}

static METHODS: [Method; 11] = [
    method(c"layer", layer),
    method(c"frame", frame),
    method(c"tag", tag),
    method(c"step", step),
    method(c"forget", forget),
    method(c"when_dead", when_dead),
    method(c"take_dead", take_dead),
    method(c"software", software),
    method(c"warn", warn),
    method(c"run_again", run_again),
    method(c"finish", finish),
];

const fn method(name: &'static CStr, function: unsafe extern "C" fn(Object, Object) -> Object) -> Method {
    Method { name: name.as_ptr(), function, flags: METH_VARARGS, doc: ptr::null() }
}

/// Unpacks a call's arguments into variables and runs `body` with them and the recorder; the call returns None.
macro_rules! native_function {
    ($name:ident, $format:literal, ($($argument:ident: $type:ty = $initial:expr),*), |$recorder:ident| $body:expr) => {
        unsafe extern "C" fn $name(_: Object, arguments: Object) -> Object {
            let Some(api) = Api::get() else { return ptr::null_mut() };
            // SAFETY: called by the interpreter, with the GIL; the variables are of the types the format names.
            unsafe {
                $(let mut $argument: $type = $initial;)*
                if (api.PyArg_ParseTuple)(arguments, $format.as_ptr() $(, &raw mut $argument)*) == 0 {
                    return ptr::null_mut();
                }
                if let Some($recorder) = Recorder::current() {
                    crate::quietly(|| {
                        $body;
                    });
                }
                (api.Py_BuildValue)(c"".as_ptr())
            }
        }
    };
}

/// SAFETY: a NUL-terminated string that outlives the call.
unsafe fn text<'a>(string: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's word.
    if string.is_null() { b"" } else { unsafe { CStr::from_ptr(string) }.to_bytes() }
}

native_function!(
    layer,
    c"Iss",
    (id: c_uint = 0, name: *const c_char = ptr::null(), class: *const c_char = ptr::null()),
    |recorder| recorder.interner.name_layer(&recorder.log, id, text(name), text(class))
);

native_function!(
    frame,
    c"IsIs",
    (
        id: c_uint = 0,
        file: *const c_char = ptr::null(),
        line: c_uint = 0,
        function: *const c_char = ptr::null()
    ),
    |recorder| {
        let mut buffer = LineBuffer::<4096>::new();
        recorder.log.append(encode::frame(&mut buffer, id, text(file), Some(line), text(function)));
    }
);

native_function!(
    tag,
    c"iKiKIs",
    (
        device: c_int = 0,
        address: u64 = 0,
        category: c_int = 0,
        bytes: u64 = 0,
        root: c_uint = 0,
        name: *const c_char = ptr::null()
    ),
    |recorder| {
        let category = match category {
            0 => TagCategory::Parameter,
            1 => TagCategory::Gradient,
            2 => TagCategory::OptimizerState,
            _ => TagCategory::Buffer,
        };
        let mut line = LineBuffer::<1024>::new();
        let time = recorder.now();
        recorder.log.append(encode::tag(&mut line, time, device, address, category, bytes, root, text(name)));
    }
);

native_function!(step, c"", (), |recorder| {
    let thread = Recorder::enter_if_recording().map_or(0, |session| session.thread.id);
    recorder.step(thread)
});

/// `METH_O`
const METH_O: c_int = 8;

/// Called by the interpreter when a module dies; `address` is an int. A function in Python would not do: what a signal
/// handler raised in it would be lost.
unsafe extern "C" fn died(address: Object, _reference: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called with the GIL and the int it was made with.
    unsafe {
        let address = (api.PyLong_AsUnsignedLongLong)(address);
        if let Some(recorder) = Recorder::current() {
            crate::quietly(|| {
                recorder.forget_module(address as usize);
                DEAD.lock().push(address);
            });
        }
        (api.Py_BuildValue)(c"".as_ptr())
    }
}

static DIED: Method = Method { name: c"died".as_ptr(), function: died, flags: METH_O, doc: ptr::null() };

/// Addresses of modules that died since the agent last asked.
static DEAD: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// The function to call when the module at an address dies.
unsafe extern "C" fn when_dead(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL; the method is static and the new function owns the int.
    unsafe {
        let mut address = 0u64;
        if (api.PyArg_ParseTuple)(arguments, c"K".as_ptr(), &raw mut address) == 0 {
            return ptr::null_mut();
        }
        let bound = (api.Py_BuildValue)(c"K".as_ptr(), address);
        let function = (api.PyCFunction_NewEx)(&DIED, bound, ptr::null_mut());
        (api.Py_DecRef)(bound);
        function
    }
}

/// The addresses of modules that died since the last call, as a list.
unsafe extern "C" fn take_dead(_: Object, _arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    let dead = std::mem::take(&mut *DEAD.lock());
    // SAFETY: called by the interpreter, with the GIL.
    unsafe {
        let list = (api.PyList_New)(0);
        for address in dead {
            let number = (api.Py_BuildValue)(c"K".as_ptr(), address);
            (api.PyList_Append)(list, number);
            (api.Py_DecRef)(number);
        }
        list
    }
}

native_function!(forget, c"K", (address: u64 = 0), |recorder| recorder.forget_module(address as usize));

native_function!(
    software,
    c"sss",
    (name: *const c_char = ptr::null(), version: *const c_char = ptr::null(), root: *const c_char = ptr::null()),
    |recorder| {
        let mut line = LineBuffer::<4096>::new();
        recorder.log.append(encode::software(&mut line, text(name), text(version), text(root)));
    }
);

native_function!(warn, c"s", (what: *const c_char = ptr::null()), |recorder| {
    recorder.warn(&String::from_utf8_lossy(text(what)))
});

native_function!(run_again, c"", (), |recorder| {
    recorder.python.unfinished.store(true, Ordering::Release);
    recorder.python.schedule()
});

native_function!(finish, c"", (), |recorder| recorder.finish());
