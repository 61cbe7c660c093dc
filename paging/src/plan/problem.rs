//! The problem to plan.

use super::outcome::PlanError;

/// A part of the compute of a forward.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Point {
    /// The units that it needs, by index.
    pub units: Vec<usize>,
    /// Nanoseconds of compute; 0 if not known.
    pub compute_ns: u64,
}

/// The speed of copies to the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bus {
    /// Bytes per second of one long copy.
    pub bytes_per_second: f64,
    /// Fixed nanoseconds of each copy.
    pub copy_overhead_ns: u64,
    /// The fewest bytes of a unit that are copied without a wait between them, if it is copied in pieces.
    pub least_piece: u64,
}

impl Bus {
    /// Nanoseconds of one copy.
    pub fn cost_ns(&self, bytes: u64) -> u64 {
        self.copy_overhead_ns + self.transfer_ns(bytes)
    }

    /// Nanoseconds of one copy without its fixed cost.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * 1e9 / self.bytes_per_second).round() as u64
    }
}

/// What the host takes to ask for a forward's work. Where that is longer than the work, the device is as slow as the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Nanoseconds of a forward without copies; 0 if not known.
    pub forward_ns: u64,
    /// Nanoseconds more for each unit that is copied.
    pub copy_ns: u64,
}

/// The problem to plan.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Bytes of each unit.
    pub unit_bytes: Vec<u64>,
    /// The points of one forward, in order; after the last one the next forward begins.
    pub points: Vec<Point>,
    /// Sets of units that may be needed at the same time outside the points. They never overlap either.
    pub together: Vec<Vec<usize>>,
    /// Per unit: whether it must stay on the device.
    pub resident: Vec<bool>,
    /// The bus to the device.
    pub bus: Bus,
    /// The host.
    pub host: Host,
}

impl Problem {
    /// The same problem with compute that takes as long as all copies.
    pub(super) fn balanced(&self) -> Self {
        let of = |point: &Point| point.units.iter().map(|&unit| self.bus.cost_ns(self.unit_bytes[unit])).sum::<u64>();
        let copies: u64 = self.points.iter().map(of).sum();
        let compute: u64 = self.points.iter().map(|point| point.compute_ns).sum();
        let mut balanced = self.clone();
        for point in &mut balanced.points {
            point.compute_ns = (point.compute_ns as f64 * copies as f64 / compute as f64).round() as u64;
        }
        balanced
    }
}

/// How much device memory the weights may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// At most so many bytes, for the fastest forward; of equally fast ones, one that copies little.
    Budget(u64),
    /// As few bytes as possible for a forward within 2 % of the fastest in the capacity of the device.
    HideTransfers,
    /// As many bytes as two units take (the smallest ring in which the units of one point are copied while those before are
    /// used), for the fastest forward when copies and compute take equally long. Overlap matters most there, and such a layout
    /// is good for fewer or more inputs too.
    Smallest,
}

/// A limit on bytes and nanoseconds: beyond it sums could overflow.
pub(super) const OVERFLOW_LIMIT: u64 = 1 << 60;

/// Checks that the figures add up without overflow, and that every unit named exists.
pub(super) fn check(problem: &Problem) -> Result<(), PlanError> {
    let invalid = |what: String| Err(PlanError::Invalid(what));
    let units = problem.unit_bytes.len();
    if problem.resident.len() != units {
        return invalid(format!("{units} units, but `resident` has {} entries", problem.resident.len()));
    }
    let speed = problem.bus.bytes_per_second;
    if !(speed.is_finite() && speed >= 1.0) {
        return invalid(format!("a bus of {speed} bytes per second is not possible"));
    }
    let uses = problem.points.iter().map(|point| &point.units).chain(&problem.together).flatten();
    if let Some(unit) = uses.into_iter().find(|&&unit| unit >= units) {
        return invalid(format!("the schedule names unit {unit} of {units}"));
    }
    let bytes =
        problem.unit_bytes.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes)).filter(|&b| b < OVERFLOW_LIMIT);
    let copies = problem.points.iter().flat_map(|point| &point.units).map(|&unit| {
        let transfer = problem.unit_bytes[unit] as f64 * 1e9 / speed;
        transfer + problem.bus.copy_overhead_ns as f64
    });
    let compute = problem.points.iter().map(|point| point.compute_ns as f64);
    let uses = problem.points.iter().map(|point| point.units.len()).sum::<usize>();
    let asked = problem.host.forward_ns as f64 + problem.host.copy_ns as f64 * uses as f64;
    if bytes.is_none() || copies.chain(compute).sum::<f64>() + asked >= OVERFLOW_LIMIT as f64 {
        return invalid("the units' bytes, or the forward's nanoseconds, exceed 2^60 in total".to_string());
    }
    Ok(())
}
