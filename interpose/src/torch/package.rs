//! PyTorch functions that AOTInductor packages call for memory, and for operations that Inductor does not generate.
//!
//! They are C functions that return an error code and throw nothing.

use std::ffi::{CStr, c_void};
use std::ptr;

use super::hook::{TorchHook, Versions, c_symbol};
use crate::packages;
use crate::recorder::Recorder;
use crate::thread_state::PackageCall;
use interpose_base::panics;
use interpose_base::symbols::{Real, abort_without};
use interpose_python::walk::Interpreter;

const CPU: &CStr = c"libtorch_cpu.so";
const CUDA: &CStr = c"libtorch_cuda.so";
const MISSING: &str = "memory of an AOTInductor package has no node, only the line that calls the package";

/// Signature with room for the arguments of any of these functions.
///
/// They have at most 24, six of them in registers (System V calling convention, x86-64). Arguments that the caller has not
/// passed are not used.
type Function = unsafe extern "C" fn(f64, f64, usize, usize, usize, usize, usize, usize, StackArguments) -> usize;

/// Arguments passed in memory, as they are too large for registers.
#[derive(Clone, Copy)]
#[repr(C)]
struct StackArguments([usize; 18]);

/// Stack frame found by a body.
#[repr(C)]
struct CallFrame {
    /// Return address of the call.
    site: usize,
    /// The same address, where the caller has put it.
    _returns_to: usize,
    arguments: StackArguments,
}

/// Defines the hooks.
///
/// The entry of each passes its return address as one more argument on the stack.
macro_rules! package_hooks {
    ($($hook:ident = $symbol:literal, $library:expr;)*) => {$(
        #[doc = concat!("`", $symbol, "`, called with no lock held, on the thread that runs the package.")]
        ///
        /// # Safety
        ///
        /// Must be called as PyTorch's function.
        #[unsafe(naked)]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C" fn $hook() {
            unsafe extern "C" fn body(
                x: f64, y: f64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, pushed: CallFrame,
            ) -> usize {
                static REAL: Real<Function> = Real::in_library($library, c_symbol!($symbol));
                let Some(real) = REAL.get() else { abort_without($symbol) };
                let _call = Call::enter(pushed.site);
                // SAFETY: PyTorch's function with the arguments it was called with.
                unsafe { real(x, y, a, b, c, d, e, f, pushed.arguments) }
            }
            std::arch::naked_asm!("push qword ptr [rsp]", "call {body}", "add rsp, 8", "ret", body = sym body)
        }
    )*
    /// Every hook in this file.
    pub fn hooks() -> Vec<TorchHook> {
        vec![$(TorchHook {
            symbol: c_symbol!($symbol),
            library: $library,
            address: $hook as *const c_void,
            versions: Versions::since((2, 15)),
            name: $symbol,
            lost: MISSING,
        }),*]
    }};
}

// Functions of 2.15 that take memory and that Inductor calls most. Others are called through the proxy executor, or count at
// the line that calls the package.
package_hooks! {
    empty_strided = "aoti_torch_empty_strided", CPU;
    copy = "aoti_torch_clone", CPU;
    clone_preserve_strides = "aoti_torch_clone_preserve_strides", CPU;
    proxy_executor_call_function = "aoti_torch_proxy_executor_call_function", CPU;
    call_dispatcher = "aoti_torch_call_dispatcher", CPU;
    addmm_out = "aoti_torch_cuda_addmm_out", CUDA;
    baddbmm_out = "aoti_torch_cuda_baddbmm_out", CUDA;
    bmm_out = "aoti_torch_cuda_bmm_out", CUDA;
    mm_out = "aoti_torch_cuda_mm_out", CUDA;
    scaled_mm = "aoti_torch_cuda__scaled_mm", CUDA;
    scaled_mm_out = "aoti_torch_cuda__scaled_mm_out", CUDA;
    grouped_mm = "aoti_torch_cuda__grouped_mm", CUDA;
    convolution = "aoti_torch_cuda_convolution", CUDA;
    cudnn_rnn = "aoti_torch_cuda__cudnn_rnn", CUDA;
    lstm_cell = "aoti_torch_cuda__thnn_fused_lstm_cell", CUDA;
    cudnn_attention = "aoti_torch_cuda__scaled_dot_product_cudnn_attention", CUDA;
    efficient_attention = "aoti_torch_cuda__scaled_dot_product_efficient_attention", CUDA;
    flash_attention = "aoti_torch_cuda__scaled_dot_product_flash_attention", CUDA;
    embedding_bag = "aoti_torch_cuda__embedding_bag", CUDA;
    fft_of_complex = "aoti_torch_cuda__fft_c2c", CUDA;
    fft_of_real = "aoti_torch_cuda__fft_r2c", CUDA;
    adaptive_avg_pool = "aoti_torch_cuda__adaptive_avg_pool2d", CUDA;
    max_pool = "aoti_torch_cuda_max_pool2d_with_indices", CUDA;
    cat = "aoti_torch_cuda_cat", CUDA;
    cumsum = "aoti_torch_cuda_cumsum", CUDA;
    index = "aoti_torch_cuda_index_Tensor", CUDA;
    masked_select = "aoti_torch_cuda_masked_select", CUDA;
    nonzero = "aoti_torch_cuda_nonzero", CUDA;
    repeat_interleave = "aoti_torch_cuda_repeat_interleave_Tensor", CUDA;
    sort = "aoti_torch_cuda_sort", CUDA;
    sort_stable = "aoti_torch_cuda_sort_stable", CUDA;
    topk = "aoti_torch_cuda_topk", CUDA;
}

/// Marks the thread as inside a package's call until dropped.
struct Call(PackageCall);

impl Call {
    /// Enters a call that returns to `site`.
    ///
    /// Calls of other libraries change nothing.
    fn enter(site: usize) -> Self {
        let Some(session) = Recorder::enter_if_recording() else { return Self(PackageCall::NONE) };
        let thread = session.thread;
        let outer = thread.package;
        panics::catch(|| {
            let (frame, has_node) = packages::frame(session.recorder, thread, site);
            if frame != 0 {
                let python = session.recorder.interpreter().map_or(ptr::null(), Interpreter::innermost);
                thread.package = PackageCall { frame, has_node, python };
            }
        });
        Self(outer)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(session) = Recorder::enter_if_recording() {
            session.thread.package = self.0;
        }
    }
}
