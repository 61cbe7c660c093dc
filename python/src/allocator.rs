//! A model of PyTorch's caching allocator.

use std::path::PathBuf;

use memlab_predict::allocator::{Allocator, BlockState, Card, OutOfMemory, PoolKey, Request, Requests, Settings};
use memlab_predict::plan::Recording;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// (kind, id, bytes, stream, pool)
type Requested = (&'static str, u32, u64, u64, (u64, u64));

/// Requests to PyTorch's allocator in a recorded run, after the version of PyTorch.
#[pyfunction]
pub fn recorded_requests(py: Python, path: PathBuf) -> PyResult<((u32, u32), Vec<Requested>)> {
    let recording = py.detach(|| Recording::read(&path)).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let Requests { places, requests, .. } = recording.requests();
    let requests = requests.into_iter().filter_map(|request| {
        let without_size = |kind, id| Some((kind, id, 0, 0, (0, 0)));
        match request {
            Request::Allocate { id, place, size } => {
                let PoolKey { stream, pool } = places[usize::from(place)];
                Some(("alloc", id, size, stream, pool))
            }
            Request::Free { id } => without_size("free", id),
            Request::FreeRequested { id } => without_size("free_requested", id),
            Request::FreeCompleted { id } => without_size("free_completed", id),
            Request::EmptyCache => without_size("empty_cache", 0),
            // Recordings contain no others.
            Request::ReleasePool { .. } | Request::Outside { .. } => None,
        }
    });
    Ok((recording.torch_version(), requests.collect()))
}

/// Allocator of one card.
#[pyclass(frozen, name = "AllocatorModel", module = "memlab._native")]
pub struct AllocatorModel {
    allocator: parking_lot::Mutex<Allocator>,
}

/// Failure of a request: (bytes requested, bytes of the segment, allocated, reserved).
type Failure = (u64, u64, u64, u64);

#[pymethods]
impl AllocatorModel {
    /// Creates the allocator of a card.
    ///
    /// `settings`: as in `PYTORCH_ALLOC_CONF`.
    /// `available`: bytes of the card's `total` that segments may take; `None`: no limit. `torch`: the version of PyTorch,
    /// (2, 11) for 2.11; `None`: the newest.
    #[new]
    #[pyo3(signature = (settings, total, available, torch = None))]
    fn new(
        settings: &str,
        total: Option<u64>,
        available: Option<u64>,
        torch: Option<(u32, u32)>,
    ) -> PyResult<AllocatorModel> {
        let settings = Settings::parse(settings).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let card = Card {
            total: total.unwrap_or(Card::UNLIMITED.total),
            available: available.unwrap_or(Card::UNLIMITED.available),
            ..Card::UNLIMITED
        };
        let settings = torch.map_or(settings.clone(), |version| settings.for_torch(version));
        Ok(AllocatorModel { allocator: parking_lot::Mutex::new(Allocator::new(settings, card)) })
    }

    /// Registers a stream of a pool.
    ///
    /// Returns its number for requests.
    fn place(&self, stream: u64, pool: (u64, u64)) -> u16 {
        self.allocator.lock().place(PoolKey { stream, pool })
    }

    /// Executes requests, (kind, id, bytes, place), up to the first failure, or all with `keep_going`.
    ///
    /// Returns the indices and causes of the failures and, with `timeline`, (allocated, reserved) after each request.
    #[allow(clippy::type_complexity)] // Python sees tuples.
    fn apply(
        &self,
        py: Python,
        requests: Vec<(String, u32, i64, u16)>,
        keep_going: bool,
        timeline: bool,
    ) -> PyResult<(Vec<(usize, Failure)>, Vec<(u64, u64)>)> {
        let requests = requests.into_iter().map(request).collect::<PyResult<Vec<Request>>>()?;
        Ok(py.detach(|| {
            let mut allocator = self.allocator.lock();
            let (mut failed, mut figures) = (Vec::new(), Vec::new());
            for (index, request) in requests.into_iter().enumerate() {
                if let Err(OutOfMemory { size, segment, allocated, reserved }) = allocator.apply(request) {
                    failed.push((index, (size, segment, allocated, reserved)));
                    if !keep_going {
                        break;
                    }
                }
                if timeline {
                    let counters = allocator.counters();
                    figures.push((counters.allocated.current, counters.reserved.current));
                }
            }
            (failed, figures)
        }))
    }

    /// Counters, named as in `torch.cuda.memory_stats()`.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = *self.allocator.lock().counters();
        let found = PyDict::new(py);
        for (name, counter) in [
            ("allocated_bytes", counters.allocated),
            ("active_bytes", counters.active),
            ("requested_bytes", counters.requested),
            ("reserved_bytes", counters.reserved),
            ("inactive_split_bytes", counters.inactive_split),
        ] {
            found.set_item(format!("{name}.all.current"), counter.current)?;
            found.set_item(format!("{name}.all.peak"), counter.peak)?;
        }
        found.set_item("num_alloc_retries", counters.retries)?;
        found.set_item("num_device_alloc", counters.device_allocations)?;
        found.set_item("num_device_free", counters.device_frees)?;
        Ok(found)
    }

    /// All segments by address: (address, stream, pool, is small, is expandable, blocks as (bytes, bytes requested, state)).
    #[allow(clippy::type_complexity)] // Python sees tuples.
    fn segments(&self) -> Vec<(u64, u64, (u64, u64), bool, bool, Vec<(u64, u64, &'static str)>)> {
        let segments = self.allocator.lock().segments();
        let named = segments.into_iter().map(|segment| {
            let blocks =
                segment.blocks.iter().map(|block| (block.size, block.requested, name_of(block.state))).collect();
            let PoolKey { stream, pool } = segment.place;
            (segment.address, stream, pool, segment.is_small, segment.is_expandable, blocks)
        });
        named.collect()
    }
}

/// Name of a state in `torch.cuda.memory_snapshot()`.
fn name_of(state: BlockState) -> &'static str {
    match state {
        BlockState::Free => "inactive",
        BlockState::Allocated => "active_allocated",
        BlockState::Pending => "active_pending_free",
    }
}

fn request((kind, id, bytes, place): (String, u32, i64, u16)) -> PyResult<Request> {
    let negative = || PyValueError::new_err(format!("a request for {bytes} bytes"));
    Ok(match kind.as_str() {
        "alloc" => Request::Allocate { id, place, size: u64::try_from(bytes).map_err(|_| negative())? },
        "free" => Request::Free { id },
        "free_requested" => Request::FreeRequested { id },
        "free_completed" => Request::FreeCompleted { id },
        "empty_cache" => Request::EmptyCache,
        "release_pool" => Request::ReleasePool { place },
        "outside" => Request::Outside { change: bytes },
        _ => return Err(PyValueError::new_err(format!("'{kind}' is not a kind of request"))),
    })
}
