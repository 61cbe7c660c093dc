//! `memlab._native`: the loader, for Python. Says in Python what `memlab-loader` says in Rust, and nothing else.

mod arena;
mod error;
mod pipeline;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<PyModule>) -> PyResult<()> {
    module.add_class::<arena::Arena>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<pipeline::Session>()?;
    Ok(())
}
