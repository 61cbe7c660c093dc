//! Simulates the pipeline's copies and compute for a layout, in the time of one forward.
//!
//! The pipeline copies units in the order of use, one after another, and large ones in [pieces](crate::pieces). A copy waits
//! until the compute of the last point that uses the overwritten bytes is done: `end_copy(c) = max(end_copy(c - 1),
//! end(freed_by(c))) + cost(c)` and `start(j) = max(end(j - 1), end_copy(last copy for j)); end(j) = start(j) + compute(j)`.
//! Copies of the next forward begin while this one computes.

use super::problem::{Bus, Point};
use crate::pieces::{Piece, divide};
use crate::range::ByteRange;

/// Largest number of simulated forwards.
///
/// In all but contrived cases, the times repeat sooner.
const MAX_FORWARDS: usize = 256;

/// Copy of a unit, or of a piece of it.
struct Copy {
    /// Index of the point that needs it.
    point: usize,
    /// Point after which it may start, plus the number of points.
    ///
    /// Points of the previous forward are below that number.
    freed_by: usize,
    cost: i64,
}

/// Unit in a part of the ring, and the last point that used it.
#[derive(Clone, Copy)]
struct Occupant {
    placement: ByteRange,
    unit: usize,
    point: usize,
}

/// Copies of one forward in steady state, with buffers for the simulation.
#[derive(Default)]
pub struct Program {
    copies: Vec<Copy>,
    compute: Vec<i64>,
    copied_units: u64,
    /// Bytes copied per forward.
    pub copied_bytes: u64,
    occupants: Vec<Occupant>,
    overwritten: Vec<Piece<usize>>,
    /// End of each point: first those of the previous forward, then those of this one.
    ends: Vec<i64>,
    starts: Vec<i64>,
    earlier: [(i64, Vec<i64>); 2],
}

/// Start and end of the compute of one point, relative to the end of the previous forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PointTime {
    /// Start in nanoseconds.
    pub start_ns: u64,
    /// End in nanoseconds.
    pub end_ns: u64,
}

/// A forward in steady state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SteadyState {
    /// Nanoseconds per forward.
    pub period_ns: u64,
    /// True if the times repeat exactly.
    pub settled: bool,
}

impl Program {
    /// Determines the copies of each forward.
    ///
    /// A unit without bytes in the ring (resident or empty) is never copied.
    pub fn compile(&mut self, unit_bytes: &[u64], points: &[Point], placements: &[ByteRange], bus: &Bus) {
        self.compute.clear();
        self.compute.extend(points.iter().map(|point| point.compute_ns as i64));
        self.copies.clear();
        (self.copied_units, self.copied_bytes) = (0, 0);
        self.occupants.clear();
        // The first round fills the ring as a forward leaves it.
        for forward in 0..2 {
            let mut near = 0;
            for (number, point) in points.iter().enumerate() {
                for &unit in point.units.iter().filter(|&&unit| placements[unit].length > 0) {
                    let copied = self.occupy(unit, placements[unit], forward * points.len() + number, &mut near);
                    if copied && forward == 1 {
                        self.copy(number, unit_bytes[unit], placements[unit], bus);
                    }
                }
            }
        }
    }

    /// Adds the copies of a unit, over the contents of its placement that `occupy` found.
    fn copy(&mut self, point: usize, bytes: u64, placement: ByteRange, bus: &Bus) {
        divide(placement, bus.least_piece, &mut self.overwritten);
        // A placement may be slightly larger than its unit.
        let end = placement.start + bytes;
        let costs = self.overwritten.iter().map(|piece| {
            let copied = piece.range.end().min(end).saturating_sub(piece.range.start);
            Copy { point, freed_by: piece.freed, cost: bus.cost_ns(copied) as i64 }
        });
        self.copies.extend(costs);
        self.copied_units += 1;
        self.copied_bytes += bytes;
    }

    /// Uses a unit at a point.
    ///
    /// Returns true if it has to be copied. `overwritten` then contains the units in its place, each with the last point
    /// that used it.
    fn occupy(&mut self, unit: usize, placement: ByteRange, point: usize, near: &mut usize) -> bool {
        let occupants = &mut self.occupants;
        // Units are mostly in order, so the one after the last is tried before a search.
        let first = match occupants.get(*near) {
            Some(occupant)
                if occupant.placement.end() <= placement.start && self_or_after(occupants, *near + 1, placement) =>
            {
                *near + 1
            }
            _ => occupants.partition_point(|occupant| occupant.placement.end() <= placement.start),
        };
        *near = first;
        let mut last = first;
        self.overwritten.clear();
        while let Some(occupant) = occupants.get(last).filter(|occupant| occupant.placement.start < placement.end()) {
            let range = occupant.placement.intersection(placement);
            self.overwritten.push(Piece { range, freed: occupant.point });
            last += 1;
        }
        if last == first + 1 && occupants[first].unit == unit && occupants[first].placement == placement {
            occupants[first].point = point;
            return false;
        }
        // The parts outside the placement keep their units.
        let before = occupants[first..last].first().filter(|occupant| occupant.placement.start < placement.start).map(
            |occupant| {
                let length = placement.start - occupant.placement.start;
                Occupant { placement: ByteRange { start: occupant.placement.start, length }, ..*occupant }
            },
        );
        let after = occupants[first..last].last().filter(|occupant| occupant.placement.end() > placement.end()).map(
            |occupant| {
                let length = occupant.placement.end() - placement.end();
                Occupant { placement: ByteRange { start: placement.end(), length }, ..*occupant }
            },
        );
        *near += usize::from(before.is_some());
        let now = Occupant { placement, unit, point };
        if last == first + 1 && before.is_none() && after.is_none() {
            occupants[first] = now;
        } else {
            occupants.splice(first..last, before.into_iter().chain([now]).chain(after));
        }
        true
    }

    /// Simulates forwards, from an idle bus and an empty ring, until the times repeat.
    pub fn run(&mut self) -> SteadyState {
        let points = self.compute.len();
        self.ends.clear();
        self.ends.resize(2 * points, 0);
        self.starts.clear();
        self.starts.resize(points, 0);
        for (_, ends) in &mut self.earlier {
            ends.clear();
        }
        let (mut bus, mut earlier_period) = (0, 0);
        let mut period = 0;
        let mut settled = false;
        for _ in 0..MAX_FORWARDS {
            let (ended, bus_free) = self.forward(bus);
            (earlier_period, period) = (period, ended);
            // Times are relative to the end of the previous forward.
            bus = bus_free - ended;
            for point in 0..points {
                self.ends[point] = self.ends[points + point] - ended;
            }
            let ends = &self.ends[..points];
            if self.earlier[1].0 == bus && self.earlier[1].1 == ends {
                return SteadyState { period_ns: period as u64, settled: true };
            }
            if self.earlier[0].0 == bus && self.earlier[0].1 == ends {
                settled = true; // Two forwards alternate.
                break;
            }
            self.earlier.swap(0, 1);
            let (then, buffer) = &mut self.earlier[1];
            *then = bus;
            buffer.clear();
            buffer.extend_from_slice(ends);
        }
        SteadyState { period_ns: (period + earlier_period).unsigned_abs().div_ceil(2), settled }
    }

    /// Simulates one forward.
    ///
    /// Returns the time when its last point ends and the time when the bus is free, relative to the end of the previous
    /// forward.
    fn forward(&mut self, mut bus: i64) -> (i64, i64) {
        let points = self.compute.len();
        let mut copies = self.copies.iter().peekable();
        let mut ended = 0;
        for point in 0..points {
            while let Some(copy) = copies.next_if(|copy| copy.point == point) {
                bus = bus.max(self.ends[copy.freed_by]) + copy.cost;
                ended = ended.max(bus);
            }
            self.starts[point] = ended;
            ended += self.compute[point];
            self.ends[points + point] = ended;
        }
        (ended, bus)
    }

    /// Stretches the compute evenly to `asked_ns`, if that is longer: the host needs that time to queue it.
    pub fn stretch(&mut self, asked_ns: u64) {
        let compute: i64 = self.compute.iter().sum();
        if compute == 0 || asked_ns as i64 <= compute {
            return;
        }
        let (mut before, mut asked_before) = (0, 0);
        for ns in &mut self.compute {
            before += *ns;
            let asked = (i128::from(before) * i128::from(asked_ns) / i128::from(compute)) as i64;
            *ns = asked - asked_before;
            asked_before = asked;
        }
    }

    /// Units that a forward copies, counted once per copy.
    pub fn copied_units(&self) -> u64 {
        self.copied_units
    }

    /// Times of each point in the last forward.
    pub fn times(&self) -> impl Iterator<Item = PointTime> {
        let time =
            |(&start, &compute): (&i64, &i64)| PointTime { start_ns: start as u64, end_ns: (start + compute) as u64 };
        self.starts.iter().zip(&self.compute).map(time)
    }
}

/// Returns true if all parts from `index` on end after the start of the placement.
fn self_or_after(occupants: &[Occupant], index: usize, placement: ByteRange) -> bool {
    occupants.get(index).is_none_or(|occupant| occupant.placement.end() > placement.start)
}
