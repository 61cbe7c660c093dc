//! Functions called by the agent: the module `native` of `agent.py`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::{CodeKind, Mesh, SearchReason, Stages, TagCategory};
use memlab_trace::{Record, decode_line};
use parking_lot::Mutex;

use super::compiled;
use super::data_wait;
use super::frame_evaluation;
use super::holders;
use super::stacks::{arguments, is_compiling, is_in_backward, replicas, variables};
use super::step_hook;
use crate::cuda::driver_memory;
use crate::limit::spill;
use crate::recorder::Recorder;
use interpose_base::config::config;
use interpose_base::locks;
use interpose_base::panics;
use interpose_driver::vmm::captures;
use interpose_python::api::{Api, METH_O, METH_VARARGS, Method, Object, text};
use interpose_python::held_signals::{self, HeldSignals};

/// Creates the module.
///
/// Returns null if Python is out of memory.
///
/// # Safety
///
/// The GIL must be held.
pub unsafe fn module(api: &Api) -> Object {
    // SAFETY: the caller holds the GIL; the methods are static.
    unsafe {
        let native = (api.PyModule_New)(c"memlab_native".as_ptr());
        if native.is_null() {
            return native;
        }
        for method in &METHODS {
            let function = (api.PyCFunction_NewEx)(method, ptr::null_mut(), ptr::null_mut());
            (api.PyObject_SetAttrString)(native, method.name, function);
            (api.Py_DecRef)(function);
        }
        native
    }
}

/// Called in a forked child, which has another agent.
pub fn reset_in_child() {
    locks::unlock_in_child(&DEAD_MODULES);
    compiled::reset_in_child();
    held_signals::reset_in_child();
    locks::reset_in_child(&HELD_SIGNALS, None);
}

static METHODS: [Method; 38] = [
    method(c"layer", layer),
    method(c"tensorless", tensorless),
    method(c"frame", frame),
    method(c"is_compiling", is_compiling),
    method(c"compilation_is_watched", compilation_is_watched),
    method(c"compiled_graph", compiled::graph),
    method(c"compiled_wrapper", compiled::wrapper),
    method(c"compiled_origin", compiled::origin),
    method(c"compiled_root", compiled::root),
    method(c"package_node", compiled::package_node),
    method(c"variables", variables),
    method(c"arguments", arguments),
    method(c"replicas", replicas),
    method(c"is_in_backward", is_in_backward),
    method(c"await_backward", await_backward),
    method(c"instances", instances),
    method(c"out_of_memory", out_of_memory),
    method(c"tag", tag),
    method(c"parallel", parallel),
    method(c"step_hook", step_hook),
    method(c"add_step_hook", add_step_hook),
    method(c"measure_data_wait", measure_data_wait),
    method(c"forget", forget),
    method(c"when_dead", when_dead),
    method(c"take_dead", take_dead),
    method(c"software", software),
    method(c"code", code),
    method(c"warn", warn),
    method(c"spilled", spilled),
    method(c"is_capturing", is_capturing),
    method(c"host_has", host_has),
    method(c"run_again", run_again),
    method(c"run_later", run_later),
    method(c"finish", finish),
    method(c"hold_signals", hold_signals),
    method(c"release_signals", release_signals),
    method(c"found_segment", found_segment),
    method(c"found_block", found_block),
];

const fn method(name: &'static CStr, function: unsafe extern "C" fn(Object, Object) -> Object) -> Method {
    Method { name: name.as_ptr(), function, flags: METH_VARARGS, doc: ptr::null() }
}

/// Unpacks a call's arguments into variables; the call returns what `result` makes of them.
macro_rules! native_query {
    ($name:ident, $format:literal, ($($argument:ident: $type:ty = $initial:expr),*), |$api:ident| $result:expr) => {
        /// # Safety
        ///
        /// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
        unsafe extern "C" fn $name(_: Object, arguments: Object) -> Object {
            let Some($api) = Api::get() else { return ptr::null_mut() };
            // SAFETY: called by the interpreter, with the GIL; the variables are of the types the format names.
            unsafe {
                $(let mut $argument: $type = $initial;)*
                if ($api.PyArg_ParseTuple)(arguments, $format.as_ptr() $(, &raw mut $argument)*) == 0 {
                    return ptr::null_mut();
                }
                $result
            }
        }
    };
}

/// Unpacks a call's arguments into variables and runs `body` with them and the recorder; the call returns None.
macro_rules! native_function {
    ($name:ident, $format:literal, ($($argument:ident: $type:ty = $initial:expr),*), |$recorder:ident| $body:expr) => {
        native_query!($name, $format, ($($argument: $type = $initial),*), |api| {
            if let Some($recorder) = Recorder::current() {
                panics::catch(|| {
                    $body;
                });
            }
            (api.Py_BuildValue)(c"".as_ptr())
        });
    };
}

native_function!(
    layer,
    c"Isss|I",
    (
        id: c_uint = 0,
        name: *const c_char = ptr::null(),
        class: *const c_char = ptr::null(),
        variable: *const c_char = ptr::null(),
        outermost: c_uint = 0
    ),
    |recorder| recorder.interner.name_layer(&recorder.log, id, text(name), text(class), text(variable), outermost)
);

native_function!(tensorless, c"I", (id: c_uint = 0), |recorder| recorder.interner.is_tensorless(id));

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
        let (file, function) = (String::from_utf8_lossy(text(file)), String::from_utf8_lossy(text(function)));
        let qualified = compiled::qualified_name(&file, line, &function).unwrap_or_else(|| function.into_owned());
        recorder.log.append(encode::frame(&mut buffer, id, &*file, Some(line), &*qualified));
        recorder.interner.sources.met(&file, Some(line));
    }
);

native_function!(
    tag,
    c"iKiKIss",
    (
        device: c_int = 0,
        address: u64 = 0,
        category: c_int = 0,
        bytes: u64 = 0,
        root: c_uint = 0,
        name: *const c_char = ptr::null(),
        shard: *const c_char = ptr::null()
    ),
    |recorder| {
        let category = match category {
            0 => TagCategory::Parameter,
            1 => TagCategory::Gradient,
            2 => TagCategory::OptimizerState,
            3 => TagCategory::Buffer,
            _ => TagCategory::Input,
        };
        let mut line = LineBuffer::<1536>::new();
        let (time, name, shard) = (recorder.elapsed_ns(), text(name), text(shard));
        recorder.log.append(encode::tag(&mut line, time, device, address, category, bytes, root, name, shard));
    }
);

native_function!(measure_data_wait, c"O", (class: Object = ptr::null_mut()), |_recorder| {
    if let Some(api) = Api::get().filter(|_| config().time) {
        data_wait::measure(api, class);
    }
});

native_function!(parallel, c"s", (json: *const c_char = ptr::null()), |recorder| {
    let mut line = LineBuffer::<4096>::new();
    match decode_line(text(json)) {
        Ok(Record::Mesh(Mesh { mesh })) => {
            let dimensions: Vec<_> =
                mesh.iter().map(|of| (of.name.as_bytes(), of.coordinate, of.size)).collect();
            recorder.log.append(encode::mesh(&mut line, &dimensions));
        }
        Ok(Record::Stages(Stages { stages, of })) => recorder.log.append(encode::stages(&mut line, &stages, of)),
        _ => {}
    }
});

/// Returns the function that PyTorch must call after each optimizer's step: the same object at every call.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
unsafe extern "C" fn step_hook(_: Object, _arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL.
    unsafe {
        let hook = step_hook::get(api);
        if !hook.is_null() {
            (api.Py_IncRef)(hook);
        }
        hook
    }
}

/// Adds the hook to PyTorch's dictionary under a key, unless a thread runs the code that calls the dictionary's values.
///
/// Returns true if the hook is in the dictionary.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
unsafe extern "C" fn add_step_hook(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    let (mut hooks, mut key, mut code) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: called by the interpreter, with the GIL; the variables are of the types the format names.
    unsafe {
        if (api.PyArg_ParseTuple)(arguments, c"OOO".as_ptr(), &raw mut hooks, &raw mut key, &raw mut code) == 0 {
            return ptr::null_mut();
        }
        let added = panics::catch(|| step_hook::add(api, hooks, key, code)).unwrap_or(false);
        if !(api.PyErr_Occurred)().is_null() {
            return ptr::null_mut();
        }
        (api.Py_BuildValue)(c"i".as_ptr(), c_int::from(added))
    }
}

/// Called by PyTorch before it raises an out-of-memory error, without its allocator's lock.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
unsafe extern "C" fn out_of_memory(_: Object, _arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL.
    unsafe {
        if let Some(recorder) = Recorder::current()
            && let Some(interpreter) = recorder.python.trusted()
        {
            panics::catch(|| holders::search(api, recorder, interpreter, SearchReason::OutOfMemory));
        }
        (api.Py_BuildValue)(c"".as_ptr())
    }
}

/// Returns all objects of a class or of a subclass that the garbage collector tracks, as a list.
///
/// Not written in Python: there, other threads would run while all objects are held. They may drop objects that C++ owns,
/// and PyTorch then reports on stderr that such a tensor is still held.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
unsafe extern "C" fn instances(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL, which no function called here releases.
    unsafe {
        let (mut class, mut all) = (ptr::null_mut(), ptr::null_mut());
        if (api.PyArg_ParseTuple)(arguments, c"OO".as_ptr(), &raw mut class, &raw mut all) == 0 {
            return ptr::null_mut();
        }
        // Created first: creating a list may start the garbage collector.
        let found = (api.PyList_New)(0);
        let objects = (api.PyObject_CallFunctionObjArgs)(all, ptr::null_mut::<c_void>());
        let interpreter = Recorder::current().and_then(|recorder| recorder.python.trusted());
        if let Some(interpreter) = interpreter.filter(|_| !found.is_null() && !objects.is_null()) {
            for index in 0..(api.PyList_Size)(objects) {
                let object = (api.PyList_GetItem)(objects, index);
                let kind = interpreter.class(object.cast_const().cast()).cast_mut().cast();
                if (api.PyType_IsSubtype)(kind, class) != 0 {
                    (api.PyList_Append)(found, object);
                }
            }
        }
        if !objects.is_null() {
            (api.Py_DecRef)(objects);
        }
        found
    }
}

/// Called by the interpreter when a module dies; `address` is an int.
///
/// Not written in Python: an exception that a signal handler raised in it would be lost.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, with the int with which it was created.
unsafe extern "C" fn died(address: Object, _reference: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called with the GIL and the int with which it was created.
    unsafe {
        let address = (api.PyLong_AsUnsignedLongLong)(address);
        if let Some(recorder) = Recorder::current() {
            panics::catch(|| {
                recorder.forget_module(address as usize);
                DEAD_MODULES.lock().push(address);
            });
        }
        (api.Py_BuildValue)(c"".as_ptr())
    }
}

static DIED_METHOD: Method = Method { name: c"died".as_ptr(), function: died, flags: METH_O, doc: ptr::null() };

/// Addresses of modules that died since the agent last asked.
static DEAD_MODULES: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Returns the function to call when the module at an address dies.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
unsafe extern "C" fn when_dead(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL; the method is static and the new function owns the int.
    unsafe {
        let mut address = 0u64;
        if (api.PyArg_ParseTuple)(arguments, c"K".as_ptr(), &raw mut address) == 0 {
            return ptr::null_mut();
        }
        let bound = (api.Py_BuildValue)(c"K".as_ptr(), address);
        let function = (api.PyCFunction_NewEx)(&DIED_METHOD, bound, ptr::null_mut());
        (api.Py_DecRef)(bound);
        function
    }
}

/// Takes the addresses of modules that died since the last call, as a list.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL, as a function of a module with positional arguments.
unsafe extern "C" fn take_dead(_: Object, _arguments: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    let dead = std::mem::take(&mut *DEAD_MODULES.lock());
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

native_function!(
    code,
    c"ss",
    (kind: *const c_char = ptr::null(), root: *const c_char = ptr::null()),
    |recorder| {
        let kind = if text(kind) == b"program" { CodeKind::Program } else { CodeKind::Generated };
        recorder.log.append(encode::code_root(&mut LineBuffer::<4096>::new(), kind, text(root)));
    }
);

native_function!(warn, c"s", (what: *const c_char = ptr::null()), |recorder| {
    recorder.warn(&String::from_utf8_lossy(text(what)))
});

// The bytes of a device that lie in host memory: those that may come back now, and the most since the last call.
native_query!(spilled, c"i", (device: c_int = 0), |api| {
    let (now, most) = panics::catch(|| spill::take_most(device)).unwrap_or((0, 0));
    (api.Py_BuildValue)(c"KK".as_ptr(), now, most)
});

// True if any thread captures a graph.
native_query!(is_capturing, c"", (), |api| {
    let is_any = panics::catch(captures::is_any).unwrap_or(false);
    (api.Py_BuildValue)(c"i".as_ptr(), c_int::from(is_any))
});

// True if the machine has room for that many bytes more of host memory.
native_query!(host_has, c"K", (bytes: u64 = 0), |api| {
    let has = panics::catch(|| spill::machine_has(bytes)).flatten().is_some();
    (api.Py_BuildValue)(c"i".as_ptr(), c_int::from(has))
});

native_function!(run_again, c"", (), |recorder| recorder.python.run_again());

native_function!(run_later, c"", (), |recorder| recorder.python.run_later());

native_function!(await_backward, c"d", (seconds: f64 = 0.0), |recorder| {
    recorder.python.await_backward(recorder.elapsed_ns(), seconds)
});

native_function!(compilation_is_watched, c"", (), |_recorder| frame_evaluation::forget());

/// Signals held while the agent runs outside of a pending call.
static HELD_SIGNALS: Mutex<Option<HeldSignals>> = Mutex::new(None);

native_function!(hold_signals, c"", (), |_recorder| *HELD_SIGNALS.lock() = Some(HeldSignals::hold()));

native_function!(release_signals, c"", (), |_recorder| *HELD_SIGNALS.lock() = None);

native_function!(finish, c"", (), |recorder| recorder.stop_events());

native_function!(found_segment, c"iKK", (device: c_int = 0, address: u64 = 0, bytes: u64 = 0), |_recorder| {
    driver_memory::found_segment(device, address, bytes)
});

native_function!(found_block, c"iKK", (device: c_int = 0, address: u64 = 0, bytes: u64 = 0), |_recorder| {
    if let Some(session) = Recorder::enter_if_recording() {
        session.block_found(device, address, bytes)
    }
});
