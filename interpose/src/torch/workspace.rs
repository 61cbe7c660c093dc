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
            let outer = mark(true);
            let result = match REAL.get() {
                // SAFETY: PyTorch's own function with the arguments it was called with.
                Some(real) => unsafe { real(first, second) },
                None => std::ptr::null_mut(),
            };
            mark(outer);
            result
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

/// Sets the thread's mark, returns what it was. An exception that passes leaves it set until the next such call ends:
/// out of memory while fetching a workspace, after which programs rarely go on.
fn mark(inside: bool) -> bool {
    match Recorder::enter() {
        Some(session) => std::mem::replace(&mut session.thread.workspace, inside),
        None => false,
    }
}
