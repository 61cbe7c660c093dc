//! Which weights stay on the GPU, and where in the ring the others go, so that a forward takes the least time that the
//! memory allows.
//!
//! The limit is `max(compute, streamed bytes / bus bandwidth)`. Reaching it is a matter of which units stay: evenly spread
//! over the forward's time, the bus is never idle and the compute never waits; the same bytes as a leading part leave the
//! bus idle at first and the compute waiting after. [`simulate`] predicts a layout's time, [`solve`] searches.

mod choices;
pub mod place;
mod refine;
pub mod simulate;
mod solve;

use std::fmt;

pub use place::{ALIGNMENT, Pattern, Place, Placer, Shape};
pub use simulate::{Program, Steady};
pub use solve::{Choice, Search};

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
    pub bytes_per_second: f64,
    /// What each copy costs besides.
    pub copy_overhead_ns: u64,
}

impl Bus {
    pub fn cost_ns(&self, bytes: u64) -> u64 {
        self.copy_overhead_ns + self.transfer_ns(bytes)
    }

    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * 1e9 / self.bytes_per_second).round() as u64
    }
}

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct Problem {
    pub unit_bytes: Vec<u64>,
    /// One forward, in order. It goes round.
    pub points: Vec<Point>,
    /// Sets of units that may be needed at the same time although no point says so: they never overlap either.
    pub together: Vec<Vec<usize>>,
    /// Per unit: whether it must stay on the device.
    pub resident: Vec<bool>,
    pub bus: Bus,
}

impl Problem {
    /// The same with compute that takes as long as all the copies.
    fn balanced(&self) -> Self {
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
pub enum Wanted {
    /// So many bytes, for the fastest forward; of those as fast, one that copies little.
    Budget(u64),
    /// As few as still give a forward within 2 % of the fastest that the device's capacity allows.
    Hide,
    /// As many as two units take (the smallest ring in which one point's units are copied while those before are used), for
    /// the fastest forward when copies and compute take equally long: there overlapping them is worth most, and a layout
    /// that is good there is good for a forward over fewer inputs or more.
    Least,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub resident: Vec<bool>,
    /// Per unit its place in the ring, `None` if it is resident.
    pub places: Vec<Option<Place>>,
    pub ring_bytes: u64,
    pub resident_bytes: u64,
    /// Time per forward in steady state.
    pub predicted_ns: u64,
    /// No schedule of these copies is faster.
    pub floor_ns: u64,
    pub compute_ns: u64,
    /// Bytes copied per forward.
    pub streamed_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanError {
    /// What was asked makes no sense.
    Invalid(String),
    TooSmall {
        limit: u64,
        needed: u64,
        resident: u64,
        /// The point that needs that much, if one does by itself.
        point: Option<usize>,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => f.write_str(what),
            Self::TooSmall { limit, needed, resident, point } => {
                write!(
                    f,
                    "the weights need at least {needed} bytes of device memory, and {limit} bytes are allowed: "
                )?;
                match point {
                    Some(point) => write!(f, "point {point} of the forward needs {} bytes at once", needed - resident)?,
                    None => write!(f, "what is needed at once takes {} bytes", needed - resident)?,
                }
                if *resident > 0 {
                    write!(f, ", beside {resident} bytes that must stay on the device")?;
                }
                write!(f, ". Raise the budget, or split the model into smaller units")
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// More bytes or nanoseconds than this are a mistake, and would overflow.
const ABSURD: u64 = 1 << 60;

/// Chooses what stays on the device and where the rest goes. `capacity`: bytes that the device can give at most.
pub fn plan(problem: &Problem, wanted: Wanted, capacity: u64) -> Result<Plan, PlanError> {
    check(problem)?;
    let limit = match wanted {
        Wanted::Budget(budget) => budget.min(capacity),
        Wanted::Hide | Wanted::Least => capacity,
    };
    let mut search = Search::new(problem);
    search.must_fit(limit)?;
    let unknown = problem.points.iter().all(|point| point.compute_ns == 0);
    let choice = match wanted {
        Wanted::Budget(_) => {
            search.everything(limit).or_else(|| search.fastest(limit).map(|best| search.most_resident(limit, best)))
        }
        Wanted::Hide if !unknown => search.smallest_that_hides(capacity),
        Wanted::Least if !unknown => Search::new(&problem.balanced()).fastest_in_the_least(capacity),
        // As long as nothing is known about the compute there is no saying what hides.
        Wanted::Hide | Wanted::Least => search.least(capacity),
    };
    // Too little for loading ahead, or units that are hard to place: the smallest layout fits.
    let choice = choice.unwrap_or_else(|| search.smallest());
    Ok(search.plan_of(&choice))
}

/// When each point's compute starts and ends in steady state with this layout, counted from the end of the forward before.
pub fn simulate(
    unit_bytes: &[u64],
    points: &[Point],
    places: &[Option<Place>],
    bus: &Bus,
) -> Result<Vec<(u64, u64)>, PlanError> {
    if places.len() != unit_bytes.len() {
        let (places, units) = (places.len(), unit_bytes.len());
        return Err(PlanError::Invalid(format!("there are {units} units, and places for {places}")));
    }
    let problem = Problem {
        unit_bytes: unit_bytes.to_vec(),
        points: points.to_vec(),
        together: Vec::new(),
        resident: vec![false; unit_bytes.len()],
        bus: *bus,
    };
    check(&problem)?;
    if let Some(place) = places.iter().flatten().find(|place| place.offset > ABSURD || place.bytes > ABSURD) {
        return Err(PlanError::Invalid(format!("a place at {} of {} bytes makes no sense", place.offset, place.bytes)));
    }
    let places: Vec<Place> = places.iter().map(|place| place.unwrap_or_default()).collect();
    for (number, point) in points.iter().enumerate() {
        for (index, &unit) in point.units.iter().enumerate() {
            let mut others = point.units[..index].iter().filter(|&&other| other != unit);
            if let Some(other) = others.find(|&&other| places[other].overlaps(places[unit])) {
                let what =
                    format!("units {other} and {unit} are both needed at point {number}, and their places overlap");
                return Err(PlanError::Invalid(what));
            }
        }
    }
    let mut program = Program::default();
    program.compile(unit_bytes, points, &places, bus);
    program.run();
    Ok(program.times().collect())
}

fn check(problem: &Problem) -> Result<(), PlanError> {
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
