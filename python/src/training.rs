//! Steps that `memlab.InfinityBatch` reports to the recording.
//!
//! Has no effect if libmemlab.so is not in the process.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use pyo3::prelude::*;

use crate::library::Library;
use memlab_protocol::c_api::Trained;

/// Number of optimizer steps that have ended in the recording; None if libmemlab.so is not in the process.
#[pyfunction]
pub fn steps_recorded() -> Option<u64> {
    Library::get_if_loaded().map(Library::steps)
}

/// Adds a training step to the recording.
#[pyfunction]
#[pyo3(signature = (step, *, epoch, batch, phase, samples, seconds, loss, way, pieces, offloaded_nbytes))]
#[expect(clippy::too_many_arguments, reason = "one per entry of the record")]
pub fn step_trained(
    step: u64,
    epoch: u64,
    batch: u64,
    phase: Option<&str>,
    samples: u64,
    seconds: f64,
    loss: Option<f64>,
    way: Option<&str>,
    pieces: u64,
    offloaded_nbytes: u64,
) {
    let Some(library) = Library::get_if_loaded() else { return };
    let [way, phase] = [way, phase].map(|text| CString::new(text?.split('\0').next()?).ok());
    let address = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    let (way_text, phase_text): (*const c_char, *const c_char) = (address(&way), address(&phase));
    let trained = Trained {
        step,
        epoch,
        batch,
        samples,
        duration_ns: (seconds * 1e9) as u64,
        pieces,
        offloaded_bytes: offloaded_nbytes,
        loss: loss.unwrap_or_default(),
        has_loss: c_int::from(loss.is_some()),
        way: way_text,
        phase: phase_text,
    };
    // SAFETY: the texts are null, or live until here.
    unsafe { library.trained(&trained) };
}
