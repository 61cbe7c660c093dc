//! Workspaces that PyTorch allocates for libraries: blocks allocated inside these functions are cuBLAS's scratch space.

use std::ffi::{CStr, c_void};

use super::hook::{TorchHook, Versions, c_symbol};
use crate::recorder::Recorder;
use interpose_base::symbols::{Real, abort_without};

/// Signature of these functions on x86-64: two integer arguments (one may be the hidden pointer to a returned `DataPtr`) and
/// a returned pointer.
type Fetch = unsafe extern "C-unwind" fn(usize, usize) -> *mut c_void;

const LIBRARY: &CStr = c"libtorch_cuda.so";
const MISSING: &str = "cuBLAS workspaces count as memory of the line that first uses them (activations, gradients)";

macro_rules! workspace_hooks {
    ($($hook:ident = $symbol:literal, $name:literal, $versions:expr;)*) => {$(
        /// # Safety
        ///
        /// Must be called as PyTorch calls its function.
        #[doc = concat!("`", $name, "`, called with no lock held, on the thread that runs the operation.")]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $hook(first: usize, second: usize) -> *mut c_void {
            static REAL: Real<Fetch> = Real::in_library(LIBRARY, c_symbol!($symbol));
            let Some(real) = REAL.get() else { abort_without($symbol) };
            let _marked = RestoreMark(mark(true));
            // SAFETY: PyTorch's function with the arguments it was called with.
            unsafe { real(first, second) }
        }
    )*
    /// Every hook in this file.
    pub fn hooks() -> Vec<TorchHook> {
        vec![$(TorchHook {
            symbol: c_symbol!($symbol),
            library: LIBRARY,
            address: $hook as *const c_void,
            versions: $versions,
            name: $name,
            lost: MISSING,
        }),*]
    }};
}

// As in the libraries of 2.1, 2.4, 2.6, 2.8, 2.11 and 2.15, each called through the linker's table. In the versions between,
// names may have been added or removed earlier or later. Up to 2.11 the function that returns the handle allocates its
// workspace. Up to 2.8 the workspace of cuBLASLt is allocated where it is used and freed at once, so it counts as temporary.
workspace_hooks! {
    cublas_handle_until_2_11 = "_ZN2at4cuda24getCurrentCUDABlasHandleEv",
        "at::cuda::getCurrentCUDABlasHandle()", Versions::between((2, 1), (2, 11));
    cublas_handle = "_ZN2at4cuda24getCurrentCUDABlasHandleEb",
        "at::cuda::getCurrentCUDABlasHandle(bool)", Versions::since((2, 15));
    cublas_lt_workspace_of_2_11 = "_ZN2at4cuda22getCUDABlasLtWorkspaceEv",
        "at::cuda::getCUDABlasLtWorkspace()", Versions::between((2, 11), (2, 11));
    cublas_lt_workspace = "_ZN2at4cuda22getCUDABlasLtWorkspaceEm",
        "at::cuda::getCUDABlasLtWorkspace(size_t)", Versions::since((2, 15));
    allocate_cublas_workspace = "_ZN2at4cuda25allocateCUDABlasWorkspaceEm",
        "at::cuda::allocateCUDABlasWorkspace(size_t)", Versions::since((2, 15));
}

/// Restores the thread's mark, even when the function throws.
struct RestoreMark(bool);

impl Drop for RestoreMark {
    fn drop(&mut self) {
        mark(self.0);
    }
}

/// Sets the thread's mark; returns the previous one.
fn mark(inside: bool) -> bool {
    match Recorder::enter_if_recording() {
        Some(session) => std::mem::replace(&mut session.thread.workspace, inside),
        None => false,
    }
}
