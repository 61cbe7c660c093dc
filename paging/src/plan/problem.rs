//! The problem to plan.

use super::outcome::PlanError;

/// A part of the compute of a forward.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Point {
    /// Indices of the units that it needs.
    pub units: Vec<usize>,
    /// Nanoseconds of compute; 0 if unknown.
    pub compute_ns: u64,
}

/// Speed of copies to the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bus {
    /// Bytes per second of one long copy.
    pub bytes_per_second: f64,
    /// Fixed cost of each copy in nanoseconds.
    pub copy_overhead_ns: u64,
    /// Fewest bytes of a unit to copy without a wait between them, if it is copied in pieces.
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

/// Time that the host needs to queue a forward's work.
///
/// If it exceeds the time of the work, the host limits the speed of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Nanoseconds of a forward without copies; 0 if unknown.
    pub forward_ns: u64,
    /// Additional nanoseconds for each unit that is copied.
    pub copy_ns: u64,
}

/// The problem to plan.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Bytes of each unit.
    pub unit_bytes: Vec<u64>,
    /// Points of one forward, in order.
    ///
    /// The next forward begins after the last one.
    pub points: Vec<Point>,
    /// Sets of units that may be needed at the same time outside the points.
    ///
    /// They never overlap either.
    pub together: Vec<Vec<usize>>,
    /// Per unit: true if it must stay on the device.
    pub resident: Vec<bool>,
    /// Bus to the device.
    pub bus: Bus,
    /// Cost of queueing work on the host.
    pub host: Host,
}

impl Problem {
    /// Returns the same problem with compute that takes as long as all copies.
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

/// Target for the device memory of the weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// At most this many bytes, for the fastest forward.
    ///
    /// Among equally fast forwards, one that copies little.
    Budget(u64),
    /// As few bytes as possible for a forward within 2 % of the fastest in the capacity of the device.
    HideTransfers,
    /// The bytes of two units: the smallest ring in which one point's units are copied while the previous ones are used.
    ///
    /// The forward is the fastest one for copies and compute that take equally long. Overlap matters most then, and such a
    /// layout also suits fewer or more inputs.
    Smallest,
}

/// Limit on bytes and nanoseconds.
///
/// Beyond it, sums could overflow.
pub(super) const OVERFLOW_LIMIT: u64 = 1 << 60;

/// Checks that the figures add up without overflow, and that every named unit exists.
pub(super) fn check(problem: &Problem) -> Result<(), PlanError> {
    let invalid = |what: String| Err(PlanError::Invalid(what));
    let units = problem.unit_bytes.len();
    if problem.resident.len() != units {
        return invalid(format!("there are {units} units, and `resident` has {} entries", problem.resident.len()));
    }
    let speed = problem.bus.bytes_per_second;
    if !(speed.is_finite() && speed >= 1.0) {
        return invalid(format!("a bus of {speed} bytes per second makes no sense"));
    }
    let uses = problem.points.iter().map(|point| &point.units).chain(&problem.together).flatten();
    if let Some(unit) = uses.into_iter().find(|&&unit| unit >= units) {
        return invalid(format!("the schedule names unit {unit}, and there are {units}"));
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
        return invalid("the units' bytes, or the forward's nanoseconds, add up to more than 2^60".to_string());
    }
    Ok(())
}
