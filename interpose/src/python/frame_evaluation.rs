//! Detects that the program begins to run compiled functions.
//!
//! TorchDynamo replaces the interpreter's evaluation of frames when a compiled function is called, before it compiles. At
//! that time the agent can register its hook. Earlier, TorchDynamo may not be imported, and importing it takes seconds.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::recorder::Recorder;
use interpose_base::got_patch::{self, Replacements};
use interpose_base::panics;
use interpose_base::symbols;

const SYMBOL: &std::ffi::CStr = c"_PyInterpreterState_SetEvalFrameFunc";

type SetEvalFrame = unsafe extern "C" fn(*mut c_void, *mut c_void);

static REAL: OnceLock<SetEvalFrame> = OnceLock::new();

/// True if the agent has its hook, or needs none.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Makes the agent run when a compiled function is called, from now on.
pub fn watch() {
    let real = symbols::in_process(SYMBOL);
    if real.is_null() {
        return;
    }
    // SAFETY: `void _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState *, _PyFrameEvalFunction)`, since 3.9.
    let _ = REAL.set(unsafe { std::mem::transmute::<*mut c_void, SetEvalFrame>(real) });
    IS_INSTALLED.store(false, Ordering::Release);
    let mut replacements = Replacements::default();
    replacements.insert(SYMBOL.to_bytes(), set_eval_frame as *const c_void);
    got_patch::patch_object("libtorch_python.so", &replacements);
}

/// Stops watching: the agent has its hook.
pub fn forget() {
    IS_INSTALLED.store(true, Ordering::Release);
}

/// # Safety
///
/// As for the real function: with the GIL.
unsafe extern "C" fn set_eval_frame(interpreter: *mut c_void, function: *mut c_void) {
    if !IS_INSTALLED.load(Ordering::Relaxed) {
        panics::catch(|| {
            if let Some(recorder) = Recorder::current() {
                recorder.python.run_again();
            }
        });
    }
    if let Some(real) = REAL.get() {
        // SAFETY: the real function, with the caller's arguments.
        unsafe { real(interpreter, function) }
    }
}
