//! The planner.

use memlab_paging::plan as planner;
use memlab_paging::plan::{Bus, Goal, Host, PlanError, Point, Problem};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Chooses which units stay on the device and where the others go in the ring.
///
/// `unit_bytes`: bytes per unit. `schedule`: per point of a forward the units needed and the compute in ns (0: unknown).
/// `least_piece`: the fewest bytes of a unit to copy without a wait. `resident`: units that must stay. `budget`: device
/// bytes for resident units and ring; `None`: the fewest that hide the transfers; `minimum`: two units. `capacity`: the most
/// bytes available on the device. `together`: sets of units that may be needed at the same time outside the points.
/// `host_ns`, `host_copy_ns`: host time to queue a forward without copies, and each copy; 0: unknown.
#[pyfunction]
#[pyo3(signature = (unit_bytes, schedule, resident, bytes_per_second, copy_overhead_ns, least_piece, budget, minimum, capacity, together = vec![], host_ns = 0, host_copy_ns = 0))]
#[allow(clippy::too_many_arguments)] // Python names them.
pub fn plan<'py>(
    py: Python<'py>,
    unit_bytes: Vec<u64>,
    schedule: Vec<(Vec<usize>, u64)>,
    resident: Vec<bool>,
    bytes_per_second: f64,
    copy_overhead_ns: u64,
    least_piece: u64,
    budget: Option<u64>,
    minimum: bool,
    capacity: u64,
    together: Vec<Vec<usize>>,
    host_ns: u64,
    host_copy_ns: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let bus = Bus { bytes_per_second, copy_overhead_ns, least_piece };
    let host = Host { forward_ns: host_ns, copy_ns: host_copy_ns };
    let problem = Problem { unit_bytes, points: points(schedule), together, resident, bus, host };
    // "Two units" with a smaller budget: as much of them as fits.
    let (goal, capacity) = match (budget, minimum) {
        (budget, true) => (Goal::Smallest, budget.map_or(capacity, |budget| budget.min(capacity))),
        (Some(budget), false) => (Goal::Budget(budget), capacity),
        (None, false) => (Goal::HideTransfers, capacity),
    };
    let plan = py.detach(|| planner::plan(&problem, goal, capacity)).map_err(raised)?;
    let places: Vec<Option<(u64, u64)>> =
        plan.placements.iter().map(|placement| placement.map(|range| (range.start, range.length))).collect();
    let dict = PyDict::new(py);
    dict.set_item("resident", plan.resident)?;
    dict.set_item("places", places)?;
    dict.set_item("ring_bytes", plan.ring_bytes)?;
    dict.set_item("resident_bytes", plan.resident_bytes)?;
    dict.set_item("predicted_ns", plan.predicted_ns)?;
    dict.set_item("floor_ns", plan.floor_ns)?;
    dict.set_item("compute_ns", plan.compute_ns)?;
    dict.set_item("streamed_bytes", plan.streamed_bytes)?;
    Ok(dict)
}

fn points(schedule: Vec<(Vec<usize>, u64)>) -> Vec<Point> {
    schedule.into_iter().map(|(units, compute_ns)| Point { units, compute_ns }).collect()
}

fn raised(error: PlanError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
