//! A thread in a forward: the boundaries that it reaches, and the units that it holds.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use super::placed::{PlacedUnits, Placement};
use super::reads::TensorReads;
use crate::pipeline::Session;
use crate::reporter::getters::call;

/// Boundaries of a module's calls.
#[pyclass(subclass, frozen, module = "memlab._native")]
pub struct Boundaries {
    #[pyo3(get)]
    enter_key: i64,
    #[pyo3(get)]
    exit_key: i64,
    at_enter: AtomicBool,
    at_exit: AtomicBool,
    needs: Mutex<Vec<u32>>,
}

#[pymethods]
impl Boundaries {
    #[new]
    fn new(enter_key: i64, exit_key: i64) -> Self {
        let (at_enter, at_exit) = (AtomicBool::new(true), AtomicBool::new(true));
        Self { enter_key, exit_key, at_enter, at_exit, needs: Mutex::default() }
    }

    /// Sets the points and the needs of a module.
    ///
    /// `at_enter` and `at_exit` are true if the schedule has a point at the start or the end of a call. `needs` contains the
    /// streamed units with weights that the module itself holds.
    fn watch(&self, at_enter: bool, at_exit: bool, needs: Vec<u32>) {
        self.at_enter.store(at_enter, Ordering::Relaxed);
        self.at_exit.store(at_exit, Ordering::Relaxed);
        *self.needs.lock() = needs;
    }
}

/// Units that a thread holds in a forward.
///
/// Methods of the derived class, `ForwardContext`, handle rare cases.
#[pyclass(subclass, frozen, module = "memlab._native")]
pub struct UnitHolder {
    reads: Py<TensorReads>,
    placed: Py<PlacedUnits>,
    session: Py<Session>,
    /// Units that some thread holds for a view.
    ///
    /// Mostly empty.
    viewed: Py<PyDict>,
    /// Index of the CUDA device.
    device: Option<Py<PyAny>>,
    held: Mutex<Vec<u32>>,
}

#[pymethods]
impl UnitHolder {
    #[new]
    fn new(
        reads: Py<TensorReads>,
        placed: Py<PlacedUnits>,
        session: Py<Session>,
        viewed: Py<PyDict>,
        device: Option<Py<PyAny>>,
    ) -> Self {
        Self { reads, placed, session, viewed, device, held: Mutex::default() }
    }

    /// Starts a call of a module.
    #[pyo3(name = "enter")]
    fn enter_from_python(this: &Bound<Self>, boundaries: &Bound<Boundaries>) -> PyResult<()> {
        Self::enter(this, boundaries.get())
    }

    /// Ends a call of a module.
    #[pyo3(name = "exit")]
    fn exit_from_python(this: &Bound<Self>, boundaries: &Bound<Boundaries>) -> PyResult<()> {
        Self::exit(this, boundaries.get())
    }

    /// Saves bytes that the next step may overwrite, and releases all units.
    fn pause(this: &Bound<Self>) -> PyResult<()> {
        Self::before_release(this, &[])?;
        Self::release_all(this)
    }

    /// Saves bytes that may be overwritten after this.
    ///
    /// A unit with a live view is held until the forward's end.
    fn save(this: &Bound<Self>) -> PyResult<()> {
        Self::before_release(this, &[])
    }

    fn release_all(this: &Bound<Self>) -> PyResult<()> {
        let (holder, py) = (this.get(), this.py());
        let stream = holder.stream(py)?;
        let released = holder.session.bind(py).try_borrow_mut()?.leave(py, stream)?;
        let placement = holder.placed.get().now();
        for unit in released {
            if holder.drop_unit(unit) {
                Self::unit_released(this, &placement, unit)?;
            }
        }
        holder.held.lock().clear();
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.placed)?;
        visit.call(&self.viewed)
    }
}

impl UnitHolder {
    /// Starts a call of a module.
    pub fn enter(this: &Bound<Self>, boundaries: &Boundaries) -> PyResult<()> {
        if boundaries.at_enter.load(Ordering::Relaxed) || !this.get().holds(&boundaries.needs.lock()) {
            return Self::reach(this, boundaries.enter_key);
        }
        Ok(())
    }

    /// Ends a call of a module.
    pub fn exit(this: &Bound<Self>, boundaries: &Boundaries) -> PyResult<()> {
        if boundaries.at_exit.load(Ordering::Relaxed) { Self::reach(this, boundaries.exit_key) } else { Ok(()) }
    }

    /// Releases units that are no longer needed at the boundary `key`, and loads those that are.
    fn reach(this: &Bound<Self>, key: i64) -> PyResult<()> {
        let (holder, py) = (this.get(), this.py());
        let placement = holder.placed.get().now();
        Self::before_release(this, placement.needed_at(key))?;
        if !holder.viewed.bind(py).is_empty() {
            this.call_method1(intern!(py, "refuse_overlap"), (key,))?;
        }
        let stream = holder.stream(py)?;
        let changed = holder.session.bind(py).try_borrow_mut()?.enter(py, key, stream)?;
        let Some((released, acquired)) = changed else { return Ok(()) };
        for unit in released {
            holder.drop_unit(unit);
            Self::unit_released(this, &placement, unit)?;
        }
        for unit in acquired {
            holder.held().push(unit);
            Self::unit_acquired(this, &placement, unit)?;
        }
        Ok(())
    }

    fn before_release(this: &Bound<Self>, needed: &[u32]) -> PyResult<()> {
        let (holder, py) = (this.get(), this.py());
        let placement = holder.placed.get().now();
        let mut index = 0;
        loop {
            // One at a time, because code in Python may run in between.
            let Some(unit) = holder.held().get(index).copied() else { return Ok(()) };
            index += 1;
            let Some(forms) = placement.unit(unit).filter(|forms| !forms.resident) else { continue };
            if forms.is_written_on_device(py)? {
                this.call_method1(intern!(py, "save_writes"), (unit,))?;
            }
            if forms.is_of_one_thread() && !needed.contains(&unit) && forms.has_views(py)? {
                this.call_method1(intern!(py, "hold_viewed"), (unit,))?;
            }
        }
    }

    /// Makes modules hold a unit's tensors on the device, after the unit was loaded for this thread.
    fn unit_acquired(this: &Bound<Self>, placement: &Placement, unit: u32) -> PyResult<()> {
        let py = this.py();
        let Some(forms) = placement.unit(unit) else { return Ok(()) };
        if forms.is_assigned(py)? {
            this.call_method1(intern!(py, "take_assigned"), (unit,))?;
        }
        if forms.loaded(py)? {
            this.call_method1(intern!(py, "show_lists"), (unit, true))?;
        }
        if !forms.resident && forms.is_written_on_host(py)? {
            this.call_method1(intern!(py, "take_edit"), (unit,))?;
        }
        this.get().placed.get().acquired(py, unit)
    }

    /// Makes modules hold unloaded tensors after this thread has released a unit, if it was the last thread.
    fn unit_released(this: &Bound<Self>, placement: &Placement, unit: u32) -> PyResult<()> {
        let py = this.py();
        let Some(forms) = placement.unit(unit) else { return Ok(()) };
        let taken = match forms.is_assigned(py) {
            Ok(true) => this.call_method1(intern!(py, "take_assigned"), (unit,)).map(drop),
            checked => checked.map(drop),
        };
        if forms.released(py)? {
            this.call_method1(intern!(py, "show_lists"), (unit, false))?;
        }
        taken
    }

    fn held(&self) -> MutexGuard<'_, Vec<u32>> {
        self.held.lock()
    }

    fn holds(&self, units: &[u32]) -> bool {
        let held = self.held();
        units.iter().all(|unit| held.contains(unit))
    }

    /// Drops a unit.
    ///
    /// Returns true if it was held.
    fn drop_unit(&self, unit: u32) -> bool {
        let mut held = self.held();
        let at = held.iter().position(|&other| other == unit);
        at.map(|at| held.remove(at)).is_some()
    }

    /// Returns the calling thread's stream on the device, as CUDA's handle; 0 on the CPU.
    fn stream(&self, py: Python) -> PyResult<u64> {
        let Some(device) = &self.device else { return Ok(0) };
        call(self.reads.get().current_stream(py), device.bind(py))?.extract()
    }
}
