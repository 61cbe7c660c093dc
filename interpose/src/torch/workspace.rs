//! Workspaces PyTorch allocates for libraries: what is handed out inside these functions is scratch space of cuBLAS.

use std::ffi::c_void;

use crate::recorder::Recorder;
use crate::symbols::Real;

/// Two integer arguments (one may be the hidden pointer to a returned `DataPtr`) and a pointer back: the shape all these
/// functions fit on x86-64.
type Fetch = unsafe extern "C-unwind" fn(usize, usize) -> *mut c_void;

macro_rules! workspace_hooks {
    ($($hook:ident = $symbol:literal;)*) => {$(
        #[doc = concat!("`", $symbol, "`, called with no lock held, on the thread that runs the operation.")]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $hook(first: usize, second: usize) -> *mut c_void {
            static REAL: Real<Fetch> = Real::in_library(
                c"libtorch_cuda.so",
                // SAFETY: the literal ends in the NUL added here and has no other.
                unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(concat!($symbol, "\0").as_bytes()) },
            );
            let Some(real) = REAL.get() else { crate::symbols::impossible($symbol) };
            let _marked = Marked(mark(true));
            // SAFETY: PyTorch's own function with the arguments it was called with.
            unsafe { real(first, second) }
        }
    )*
    /// Symbol and address of every hook in this file.
    pub fn hooks() -> Vec<(&'static str, *const c_void)> {
        vec![$(($symbol, $hook as *const c_void)),*]
    }};
}

workspace_hooks! {
    allocate_cublas_workspace = "_ZN2at4cuda25allocateCUDABlasWorkspaceEm";
    cublas_handle = "_ZN2at4cuda24getCurrentCUDABlasHandleEb";
    cublas_handle_before_2_9 = "_ZN2at4cuda26getCurrentCUDABlasHandleEv";
    cublas_lt_workspace = "_ZN2at4cuda22getCUDABlasLtWorkspaceEm";
}

/// Puts the thread's mark back, also when the function throws.
struct Marked(bool);

impl Drop for Marked {
    fn drop(&mut self) {
        mark(self.0);
    }
}

/// Sets the thread's mark, returns what it was.
fn mark(inside: bool) -> bool {
    match Recorder::enter_if_recording() {
        Some(session) => std::mem::replace(&mut session.thread.workspace, inside),
        None => false,
    }
}
