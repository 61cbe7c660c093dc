//! `Pipeline` and `Session`.

use std::collections::HashMap;

use memlab_paging::pipeline::{self, Configuration};
use memlab_paging::{ByteRange, Error, Result, Stream, WeightRange};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::arena::Arena;
use crate::error::raised;

/// Copies weights from an arena to a device in the order of the forward pass, ahead of the compute.
///
/// Without a `device`, a thread copies to host memory, with at most `bytes_per_second`.
#[pyclass(frozen, module = "memlab._native")]
pub struct Pipeline {
    /// `None` once it is being dropped.
    inner: Option<pipeline::Pipeline>,
}

impl Pipeline {
    fn get(&self) -> PyResult<&pipeline::Pipeline> {
        self.inner.as_ref().ok_or_else(|| PyRuntimeError::new_err("the pipeline is closed"))
    }
}

#[pymethods]
impl Pipeline {
    #[new]
    #[pyo3(signature = (arena, device, bytes_per_second = None))]
    fn new(py: Python, arena: &Arena, device: Option<i32>, bytes_per_second: Option<f64>) -> PyResult<Self> {
        let arena = arena.inner.clone();
        let inner = py.detach(|| pipeline::Pipeline::new(arena, device, bytes_per_second)).map_err(raised)?;
        Ok(Self { inner: Some(inner) })
    }

    /// Measures the bytes per second of copies from the arena to `address`.
    ///
    /// Overwrites the bytes there.
    fn bandwidth(&self, py: Python, address: u64, nbytes: u64, stream: u64) -> PyResult<f64> {
        let inner = self.get()?;
        // SAFETY: the caller, the rest of the package, has the memory from a tensor that lives.
        py.detach(|| unsafe { inner.measure_bandwidth(address, nbytes, Stream(stream)) }).map_err(raised)
    }

    /// Reconfigures the pipeline.
    ///
    /// Waits for `stream` and earlier copies, then loads the units that stay.
    #[allow(clippy::too_many_arguments)]
    fn configure(
        &self,
        py: Python,
        units: Vec<Vec<(u64, u64, u64)>>,
        places: Vec<Option<(u64, u64)>>,
        schedule: Vec<(i64, Vec<u32>)>,
        fallback: HashMap<i64, Vec<u32>>,
        lookahead: Option<usize>,
        least_piece: u64,
        stream: u64,
    ) -> PyResult<()> {
        let inner = self.get()?;
        let range =
            |(start, device_address, length)| WeightRange { arena: ByteRange { start, length }, device_address };
        let configuration = Configuration {
            units: units.into_iter().map(|ranges| ranges.into_iter().map(range).collect()).collect(),
            placements: places
                .into_iter()
                .map(|place| place.map(|(start, length)| ByteRange { start, length }))
                .collect(),
            schedule,
            fallback: fallback.into_iter().collect(),
            lookahead,
            least_piece,
        };
        // SAFETY: the caller, the rest of the package, keeps the tensors whose addresses these are.
        py.detach(|| unsafe { inner.configure(configuration, Stream(stream)) }).map_err(raised)
    }

    /// Creates a session for one thread.
    fn session(&self, py: Python) -> PyResult<Session> {
        let inner = self.get()?;
        Ok(Session { inner: py.detach(|| inner.session()) })
    }

    /// Copies a unit again if it is on the device, because its weights were changed in the arena.
    fn reload(&self, py: Python, unit: u32, stream: u64) -> PyResult<()> {
        let inner = self.get()?;
        py.detach(|| inner.reload(unit, Stream(stream))).map_err(raised)
    }

    /// Turns timing on or off for forwards that begin from now on.
    fn timed(&self, py: Python, on: bool) -> PyResult<()> {
        let inner = self.get()?;
        py.detach(|| inner.set_timed(on));
        Ok(())
    }

    /// Returns true if a forward was captured into a graph.
    fn captured(&self, py: Python) -> PyResult<bool> {
        let inner = self.get()?;
        Ok(py.detach(|| inner.was_captured()))
    }

    /// Nanoseconds of compute of each point in the last timed forward; 0 for points it did not reach.
    fn timings(&self, py: Python) -> PyResult<Vec<u64>> {
        let inner = self.get()?;
        py.detach(|| inner.timings()).map_err(raised)
    }

    /// Counts since the pipeline was created.
    fn counters(&self, py: Python) -> PyResult<HashMap<&'static str, u64>> {
        let inner = self.get()?;
        let counters = py.detach(|| inner.counters());
        Ok(HashMap::from([
            ("forwards", counters.forwards),
            ("copies", counters.copies),
            ("copied_bytes", counters.copied_bytes),
            ("on_demand", counters.on_demand),
            ("out_of_order", counters.out_of_order),
            ("reloads", counters.reloads),
            ("waits", counters.waits),
            ("waited_ns", counters.waited.as_nanos() as u64),
        ]))
    }

    /// Waits for all copies.
    fn synchronize(&self, py: Python) -> PyResult<()> {
        let inner = self.get()?;
        py.detach(|| inner.synchronize()).map_err(raised)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Waits for copies in progress. At the interpreter's end no GIL can be released.
        let inner = self.inner.take();
        let _ = Python::try_attach(|py| py.detach(|| drop(inner)));
    }
}

/// Position of one thread in the schedule.
///
/// Each thread has its own session.
#[pyclass(module = "memlab._native")]
pub struct Session {
    inner: pipeline::Session,
}

#[pymethods]
impl Session {
    /// Moves the thread to a point.
    ///
    /// Returns (units released, units acquired), or `None` if nothing changed. Later work on `stream` may use the acquired
    /// units, and must not use the released ones.
    pub fn enter(&mut self, py: Python, key: i64, stream: u64) -> PyResult<Option<(Vec<u32>, Vec<u32>)>> {
        let inner = &mut self.inner;
        if inner.may_stall() {
            return py.detach(|| enter(inner, key, stream, &mut pipeline::no_lock_held)).map_err(raised);
        }
        let mut interrupted = None;
        let entered = enter(inner, key, stream, &mut |wait| {
            while !py.detach(&mut *wait) {
                if let Err(signal) = py.check_signals() {
                    interrupted = Some(signal);
                    return Err(Error::Failed("interrupted".into()));
                }
            }
            Ok(())
        });
        entered.map_err(|error| interrupted.unwrap_or_else(|| raised(error)))
    }

    /// Ends the outermost forward, with or without an error.
    ///
    /// Releases all units, and loads the first units of the next forward.
    pub fn leave(&mut self, py: Python, stream: u64) -> PyResult<Vec<u32>> {
        let inner = &mut self.inner;
        let may_stall = inner.may_stall();
        let mut leave = || Ok(inner.leave(Stream(stream))?.to_vec());
        let left: Result<_> = if may_stall { py.detach(leave) } else { leave() };
        left.map_err(raised)
    }
}

fn enter(
    session: &mut pipeline::Session,
    key: i64,
    stream: u64,
    unlocked: pipeline::Unlocked,
) -> Result<Option<(Vec<u32>, Vec<u32>)>> {
    let change = session.enter(key, Stream(stream), unlocked)?;
    Ok(change.map(|change| (change.released.to_vec(), change.acquired.to_vec())))
}
