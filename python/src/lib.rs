//! `memlab._native`: the loader, for Python. Says in Python what `memlab-loader` says in Rust, and nothing else.
//!
//! # Layers
//!
//! ```text
//! checkpoint, pipeline, plan, sizes    one file for each part of the loader
//! arena
//! error
//! ```

mod arena;
mod checkpoint;
mod error;
mod pipeline;
mod plan;
mod sizes;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<PyModule>) -> PyResult<()> {
    module.add("PAGE_SIZE", memlab_loader::arena::PAGE_SIZE)?;
    module.add("PIN_GRANULE", memlab_loader::arena::PIN_GRANULE)?;
    module.add_class::<arena::Arena>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<pipeline::Session>()?;
    module.add_function(wrap_pyfunction!(plan::plan, module)?)?;
    module.add_function(wrap_pyfunction!(plan::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::format_size, module)?)?;
    Ok(())
}
