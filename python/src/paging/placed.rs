//! Units with a place in device memory, and the module entries that show them.

use std::sync::atomic::{AtomicIsize, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use pyo3::{PyTraverseError, PyVisit};
use rustc_hash::FxHashMap;

use super::reads::TensorReads;
use crate::reporter::getters::references;

/// An entry of a dictionary that forwards see.
struct Entry {
    container: Py<PyDict>,
    key: Py<PyString>,
    on_device: Py<PyAny>,
    unloaded: Py<PyAny>,
    /// The `PagedTensor`, if this is a buffer.
    ///
    /// Forwards may assign other tensors.
    buffer: Option<Py<PyAny>>,
}

impl Entry {
    /// Returns true if a forward has assigned something else in place of a buffer.
    fn is_assigned(&self, py: Python) -> PyResult<bool> {
        let Some(paged) = &self.buffer else { return Ok(false) };
        let Some(now) = self.container.bind(py).get_item(&self.key)? else { return Ok(false) };
        let known = now.is(&self.unloaded) || now.is(&self.on_device);
        Ok(!known && !now.is(paged.getattr(py, intern!(py, "tensor"))?))
    }
}

type EntryArguments = (Py<PyDict>, Py<PyString>, Py<PyAny>, Py<PyAny>, Option<Py<PyAny>>);

/// Native part of a `PlacedUnit`.
#[pyclass(frozen, module = "memlab._native")]
pub struct UnitForms {
    reads: Py<TensorReads>,
    #[pyo3(get)]
    pub resident: bool,
    entries: Vec<Entry>,
    has_buffers: bool,
    /// True if lists of modules hold its tensors too.
    has_lists: bool,
    /// `PagedTensor`s.
    paged: Vec<Py<PyAny>>,
    on_device: Vec<Py<PyAny>>,
    /// Versions of the tensors.
    ///
    /// An operation that writes to a tensor changes its version.
    versions: Vec<AtomicU64>,
    /// Keys of its weights' storages on the device.
    storages: Vec<Py<PyAny>>,
    /// Number of tensors that use each storage, without views that other code created.
    own_use_counts: Vec<AtomicU64>,
    /// Number of references to each tensor on the device, besides those of modules and of the program.
    own_references: Vec<AtomicIsize>,
    /// Tensors on the device that the program holds while the unit is not loaded: their index, and a tensor over their
    /// place.
    ///
    /// Meanwhile they show the weight on the host, because other weights use the place.
    moved_to_host: Mutex<Vec<(usize, Py<PyAny>)>>,
    /// Number of threads that have it loaded.
    ///
    /// It changes together with the entries while the GIL is held.
    threads: AtomicU32,
}

#[pymethods]
impl UnitForms {
    #[new]
    fn new(
        reads: Bound<TensorReads>,
        resident: bool,
        entries: Vec<EntryArguments>,
        has_lists: bool,
        paged: Vec<Py<PyAny>>,
        on_device: Vec<Py<PyAny>>,
        storages: Vec<Py<PyAny>>,
    ) -> PyResult<Self> {
        let versions = reads.get().versions(reads.py(), &on_device)?.into_iter().map(AtomicU64::new).collect();
        let entries: Vec<_> = entries
            .into_iter()
            .map(|(container, key, on_device, unloaded, buffer)| Entry { container, key, on_device, unloaded, buffer })
            .collect();
        Ok(Self {
            reads: reads.unbind(),
            resident,
            has_buffers: entries.iter().any(|entry| entry.buffer.is_some()),
            entries,
            has_lists,
            paged,
            own_references: on_device.iter().map(|_| AtomicIsize::new(isize::MAX)).collect(),
            on_device,
            versions,
            moved_to_host: Mutex::default(),
            own_use_counts: storages.iter().map(|_| AtomicU64::new(u64::MAX)).collect(),
            storages,
            threads: AtomicU32::new(0),
        })
    }

    /// Records the present users of its memory, and the references to its tensors, as the model's.
    ///
    /// No thread may have it loaded.
    fn note_own_uses(&self, py: Python) -> PyResult<()> {
        for (tensor, own) in self.on_device.iter().zip(&self.own_references) {
            own.store(references(tensor.bind(py)), Ordering::Relaxed);
        }
        for (storage, own) in self.storages.iter().zip(&self.own_use_counts) {
            own.store(self.reads.get().use_count(py, storage)?, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns true if tensors besides those that modules hold use its memory.
    pub fn has_views(&self, py: Python) -> PyResult<bool> {
        for (storage, own) in self.storages.iter().zip(&self.own_use_counts) {
            if self.reads.get().use_count(py, storage)? > own.load(Ordering::Relaxed) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Versions of its tensors on the device at the last check for writes.
    #[getter]
    fn on_device_versions(&self) -> Vec<u64> {
        self.versions.iter().map(|version| version.load(Ordering::Relaxed)).collect()
    }

    #[setter]
    fn set_on_device_versions(&self, versions: Vec<u64>) {
        self.versions.iter().zip(versions).for_each(|(known, version)| known.store(version, Ordering::Relaxed));
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for entry in &self.entries {
            visit.call(&entry.container)?;
            visit.call(&entry.on_device)?;
            visit.call(&entry.unloaded)?;
        }
        let moved = self.moved_to_host.try_lock();
        moved.iter().flat_map(|moved| moved.iter()).try_for_each(|(_, place)| visit.call(place))?;
        self.paged.iter().chain(&self.on_device).try_for_each(|object| visit.call(object))
    }
}

impl UnitForms {
    /// Returns true if it was written to on the device.
    pub fn is_written_on_device(&self, py: Python) -> PyResult<bool> {
        for (tensor, known) in self.on_device.iter().zip(&self.versions) {
            if self.reads.get().version(tensor.bind(py))? != known.load(Ordering::Relaxed) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if the model's own tensors were written, or given other memory, since their content was known.
    pub fn is_written_on_host(&self, py: Python) -> PyResult<bool> {
        let reads = self.reads.get();
        for paged in &self.paged {
            let paged = paged.bind(py);
            let tensor = paged.getattr(intern!(py, "tensor"))?;
            if reads.version(&tensor)? != paged.getattr(intern!(py, "version"))?.extract::<u64>()?
                || reads.address(&tensor)? != paged.getattr(intern!(py, "address"))?.extract::<u64>()?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if a forward has assigned other tensors in place of its buffers.
    pub fn is_assigned(&self, py: Python) -> PyResult<bool> {
        if self.has_buffers {
            for entry in &self.entries {
                if entry.is_assigned(py)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns true if only one thread has it loaded.
    pub fn is_of_one_thread(&self) -> bool {
        self.threads.load(Ordering::Relaxed) == 1
    }

    /// Makes modules hold one form of its tensors.
    fn show(&self, py: Python, form: impl Fn(&Entry) -> &Py<PyAny>) -> PyResult<()> {
        // Objects that the model's code has put there may run code when they are dropped, so they are dropped last. (The
        // forms live on.)
        let mut replaced = Vec::new();
        for entry in &self.entries {
            let container = entry.container.bind(py);
            let now = container.get_item(&entry.key)?;
            container.set_item(&entry.key, form(entry))?;
            replaced.extend(now.filter(|now| !now.is(&entry.on_device) && !now.is(&entry.unloaded)));
        }
        drop(replaced);
        Ok(())
    }

    /// Counts one more thread that has it loaded, and makes modules hold its tensors on the device.
    ///
    /// Returns true if lists are still to be changed.
    pub fn loaded(&self, py: Python) -> PyResult<bool> {
        if self.threads.fetch_add(1, Ordering::Relaxed) > 0 || self.resident {
            return Ok(false);
        }
        self.return_to_device(py)?;
        self.show(py, |entry| &entry.on_device)?;
        Ok(self.has_lists)
    }

    /// Counts one thread less, and makes modules hold unloaded tensors if it was the last.
    ///
    /// Returns true if lists are still to be changed.
    pub fn released(&self, py: Python) -> PyResult<bool> {
        if self.threads.fetch_sub(1, Ordering::Relaxed) > 1 || self.resident {
            return Ok(false);
        }
        self.show(py, |entry| &entry.unloaded)?;
        self.move_held_to_host(py)?;
        Ok(self.has_lists)
    }

    /// Makes tensors that the program holds in variables show the weight on the host, because other weights use their place.
    fn move_held_to_host(&self, py: Python) -> PyResult<()> {
        for (index, (tensor, own)) in self.on_device.iter().zip(&self.own_references).enumerate() {
            if references(tensor.bind(py)) <= own.load(Ordering::Relaxed) {
                continue;
            }
            let Some(entry) = self.entries.iter().find(|entry| entry.on_device.is(tensor)) else { continue };
            let place = tensor.getattr(py, intern!(py, "data"))?;
            tensor.setattr(py, intern!(py, "data"), &entry.unloaded)?;
            self.moved_to_host.lock().push((index, place));
        }
        Ok(())
    }

    /// Makes held tensors show their place again, after their weight was copied into it.
    fn return_to_device(&self, py: Python) -> PyResult<()> {
        let moved = std::mem::take(&mut *self.moved_to_host.lock());
        for (index, place) in moved {
            self.on_device[index].setattr(py, intern!(py, "data"), place)?;
        }
        Ok(())
    }
}

/// Units of the present placement.
#[derive(Default)]
pub struct Placement {
    pub units: Vec<Py<UnitForms>>,
    /// Units that may be needed from a boundary on, by key.
    needed_at: FxHashMap<i64, Vec<u32>>,
}

impl Placement {
    pub fn unit(&self, unit: u32) -> Option<&UnitForms> {
        self.units.get(unit as usize).map(Py::get)
    }

    pub fn needed_at(&self, key: i64) -> &[u32] {
        self.needed_at.get(&key).map_or(&[], Vec::as_slice)
    }
}

/// Units that a `DevicePool` has placed.
///
/// One object for all placements.
#[pyclass(frozen, module = "memlab._native")]
#[derive(Default)]
pub struct PlacedUnits {
    placement: RwLock<Arc<Placement>>,
    observer: OnceLock<Py<PyAny>>,
}

#[pymethods]
impl PlacedUnits {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Replaces the placement, or removes it.
    fn place(&self, units: Vec<Py<UnitForms>>, needed_at: FxHashMap<i64, Vec<u32>>) {
        let before = std::mem::replace(&mut *self.placement.write(), Arc::new(Placement { units, needed_at }));
        drop(before);
    }

    /// Sets a function to call with each unit that a thread has acquired.
    ///
    /// For tests.
    fn observe(&self, observer: Py<PyAny>) {
        let _ = self.observer.set(observer);
    }

    /// Returns the units that may be needed from a boundary on.
    fn needed_at(&self, key: i64) -> Vec<u32> {
        self.now().needed_at(key).to_vec()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.observer.get())?;
        let Some(placement) = self.placement.try_read() else { return Ok(()) };
        placement.units.iter().try_for_each(|unit| visit.call(unit))
    }
}

impl PlacedUnits {
    pub fn now(&self) -> Arc<Placement> {
        Arc::clone(&self.placement.read())
    }

    /// Calls the observer, if one is set.
    pub fn acquired(&self, py: Python, unit: u32) -> PyResult<()> {
        self.observer.get().map_or(Ok(()), |observer| observer.call1(py, (unit,)).map(drop))
    }
}
