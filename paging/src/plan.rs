//! Plans which weights stay on the device, and where in the ring the others go, for the fastest forward that the memory
//! allows.
//!
//! No forward is faster than `max(compute, host, streamed bytes / bus bandwidth)`. The choice of resident units decides how
//! close it comes. If they are spread evenly over the forward, the bus is never idle and the compute never waits. If they
//! are the first units, the bus is idle first and the compute waits later. [`simulate()`] predicts the time of a layout, and
//! [`Search`] searches for one.

mod candidates;
mod evaluate;
mod outcome;
pub mod placement;
mod problem;
mod refine;
pub mod simulate;
mod solve;

use crate::range::ByteRange;

pub use evaluate::Choice;
pub use outcome::{Plan, PlanError};
pub use placement::{ALIGNMENT, Pattern, Placer, Shape};
pub use problem::{Bus, Goal, Host, Point, Problem};
use problem::{OVERFLOW_LIMIT, check};
pub use simulate::{PointTime, Program, SteadyState};
pub use solve::Search;

/// Chooses which units stay on the device and where the others go.
///
/// `capacity` is the largest number of bytes available on the device.
///
/// # Errors
///
/// If the problem contradicts itself, or the smallest layout does not fit.
pub fn plan(problem: &Problem, goal: Goal, capacity: u64) -> Result<Plan, PlanError> {
    check(problem)?;
    let limit = match goal {
        Goal::Budget(budget) => budget.min(capacity),
        Goal::HideTransfers | Goal::Smallest => capacity,
    };
    let mut search = Search::new(problem);
    search.must_fit(limit)?;
    let unknown = problem.points.iter().all(|point| point.compute_ns == 0);
    let choice = match goal {
        Goal::Budget(_) => {
            search.everything(limit).or_else(|| search.fastest(limit).map(|best| search.most_resident(limit, best)))
        }
        Goal::HideTransfers if !unknown => search.smallest_that_hides(capacity),
        Goal::Smallest if !unknown => Search::new(&problem.balanced()).fastest_in_the_least(capacity),
        // Without known compute times, the planner cannot know what hides the copies.
        Goal::HideTransfers | Goal::Smallest => search.least(capacity),
    };
    // If memory is too small for loading ahead, or units are hard to place, the smallest layout still fits.
    let choice = choice.unwrap_or_else(|| search.smallest());
    Ok(search.plan_of(&choice))
}

/// Returns the start and end of each point's compute in steady state with this layout, counted from the end of the previous
/// forward.
///
/// # Errors
///
/// If the figures contradict each other, or units needed at the same point overlap.
pub fn simulate(
    unit_bytes: &[u64],
    points: &[Point],
    placements: &[Option<ByteRange>],
    bus: &Bus,
) -> Result<Vec<PointTime>, PlanError> {
    if placements.len() != unit_bytes.len() {
        let (given, units) = (placements.len(), unit_bytes.len());
        return Err(PlanError::Invalid(format!("there are {units} units, and places for {given}")));
    }
    let problem = Problem {
        unit_bytes: unit_bytes.to_vec(),
        points: points.to_vec(),
        together: Vec::new(),
        resident: vec![false; unit_bytes.len()],
        bus: *bus,
        host: Host::default(),
    };
    check(&problem)?;
    if let Some(placement) = placements
        .iter()
        .flatten()
        .find(|placement| placement.start > OVERFLOW_LIMIT || placement.length > OVERFLOW_LIMIT)
    {
        return Err(PlanError::Invalid(format!(
            "a place at {} of {} bytes makes no sense",
            placement.start, placement.length
        )));
    }
    let placements: Vec<ByteRange> = placements.iter().map(|placement| placement.unwrap_or_default()).collect();
    for (number, point) in points.iter().enumerate() {
        for (index, &unit) in point.units.iter().enumerate() {
            let mut others = point.units[..index].iter().filter(|&&other| other != unit);
            if let Some(other) = others.find(|&&other| placements[other].overlaps(placements[unit])) {
                let what =
                    format!("units {other} and {unit} are both needed at point {number}, and their places overlap");
                return Err(PlanError::Invalid(what));
            }
        }
    }
    let mut program = Program::default();
    program.compile(unit_bytes, points, &placements, bus);
    program.run();
    Ok(program.times().collect())
}
