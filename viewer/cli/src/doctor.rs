//! Checks this machine for everything that memlab needs.

pub mod check;
mod gpu;
mod host;
mod interpreter;
mod preloads;
mod profiling;

use std::path::Path;

use self::check::Check;
pub use self::gpu::NO_DRIVER;

/// Runs all checks.
///
/// Takes a few seconds at most: a driver or a Python that does not answer is skipped.
pub fn examine() -> Vec<Check> {
    let root = Path::new("/");
    let pythons = interpreter::in_path();
    let cupti = pythons.iter().flat_map(|python| python.cupti.clone()).collect();
    let gpu = gpu::Gpu::probe(cupti);
    let mut checks = vec![preloads::library(), preloads::others(root), host::c_library()];
    checks.extend(gpu.checks(root));
    checks.push(gpu::simulated());
    checks.extend(interpreter::checks(&pythons, gpu.cuda));
    checks.extend([
        gpu.time(root),
        host::output(),
        host::sockets(),
        host::memory(root, gpu.largest()),
        host::shared_memory(root),
    ]);
    checks
}
