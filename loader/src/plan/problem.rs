//! What is to be planned.

use super::outcome::PlanError;

/// A stretch of the forward's compute.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Point {
    /// The units that must be there, by index.
    pub units: Vec<usize>,
    /// 0 where nothing is known.
    pub compute_ns: u64,
}

/// How long copies to the device take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bus {
    /// Bytes per second of one long copy.
    pub bytes_per_second: f64,
    /// What each copy costs besides.
    pub copy_overhead_ns: u64,
}

impl Bus {
    /// Nanoseconds of one copy, with what it costs besides the transfer.
    pub fn cost_ns(&self, bytes: u64) -> u64 {
        self.copy_overhead_ns + self.transfer_ns(bytes)
    }

    /// Nanoseconds of the transfer alone.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * 1e9 / self.bytes_per_second).round() as u64
    }
}

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Bytes of each unit.
    pub unit_bytes: Vec<u64>,
    /// One forward, in order. It goes round.
    pub points: Vec<Point>,
    /// Sets of units that may be needed at the same time although no point says so: they never overlap either.
    pub together: Vec<Vec<usize>>,
    /// Per unit: whether it must stay on the device.
    pub resident: Vec<bool>,
    /// The bus to the device.
    pub bus: Bus,
}

impl Problem {
    /// The same with compute that takes as long as all the copies.
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
    /// So many bytes, for the fastest forward; of those as fast, one that copies little.
    Budget(u64),
    /// As few as still give a forward within 2 % of the fastest that the device's capacity allows.
    HideTransfers,
    /// As many as two units take (the smallest ring in which one point's units are copied while those before are used), for
    /// the fastest forward when copies and compute take equally long: there overlapping them is worth most, and a layout
    /// that is good there is good for a forward over fewer inputs or more.
    Smallest,
}

/// More bytes or nanoseconds than this are a mistake, and would overflow.
pub(super) const ABSURD: u64 = 1 << 60;

/// Checks that the figures add up without overflow, and that every unit named exists.
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
    let bytes = problem.unit_bytes.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes)).filter(|&b| b < ABSURD);
    let copies = problem.points.iter().flat_map(|point| &point.units).map(|&unit| {
        let transfer = problem.unit_bytes[unit] as f64 * 1e9 / speed;
        transfer + problem.bus.copy_overhead_ns as f64
    });
    let compute = problem.points.iter().map(|point| point.compute_ns as f64);
    if bytes.is_none() || copies.chain(compute).sum::<f64>() >= ABSURD as f64 {
        return invalid("the units' bytes, or the forward's nanoseconds, add up to more than 2^60".to_string());
    }
    Ok(())
}
