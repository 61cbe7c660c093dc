//! Explains on stderr why NVIDIA's own CUDA runtime, which cannot work on this driver, was loaded.

use std::env;
use std::sync::Once;

/// Prints the cause on stderr, once, if the simulated runtime is not preloaded.
pub fn explain() {
    static ONCE: Once = Once::new();
    let preloaded = env::var("LD_PRELOAD").unwrap_or_default();
    if !preloaded.contains("libsimgpu_cudart.so") {
        ONCE.call_once(|| {
            eprintln!(
                "simgpu: LD_PRELOAD was replaced within `memlab simulate`, so the program uses NVIDIA's CUDA runtime, \
                 which fails without a GPU: append to its value (LD_PRELOAD=LIBRARY:$LD_PRELOAD), or set it before \
                 `memlab simulate`"
            );
        });
    }
}
