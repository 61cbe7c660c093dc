//! Candidates for the resident units: spread evenly over the forward, by bytes or in proportion to the compute.

use std::collections::HashSet;

use super::placement::{ALIGNMENT, Pattern, Placer, Shape};
use super::problem::Problem;

/// Number of resident fractions to try.
///
/// Models with fewer units get fewer.
const MAX_LEVELS: usize = 256;
/// Number of steps between a ring for the units of one point and a ring for two.
pub const NARROW_RING_STEPS: usize = 16;
/// Numbers of points whose units the ring may hold.
const DEPTHS: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 12, 16];

/// Facts about units, from which candidates are made.
pub struct UnitFacts<'a> {
    pub problem: &'a Problem,
    pub placer: &'a Placer,
    /// Units that may stay or be streamed, in order of first use.
    pub movable: Vec<usize>,
    /// Units in order of first use, each with the compute since the previous one.
    paced: Vec<(usize, f64)>,
    /// Nanoseconds of a copy, per unit.
    costs: Vec<f64>,
}

impl<'a> UnitFacts<'a> {
    pub fn new(problem: &'a Problem, placer: &'a Placer) -> Self {
        let is_movable = |unit: usize| !problem.resident[unit] && placer.bytes[unit] > 0;
        let movable: Vec<usize> = placer.order.iter().copied().filter(|&unit| is_movable(unit)).collect();
        let mut seen = vec![false; placer.bytes.len()];
        let mut paced = Vec::new();
        let mut compute = 0.0;
        for point in &problem.points {
            for &unit in point.units.iter().filter(|&&unit| is_movable(unit)) {
                if !std::mem::replace(&mut seen[unit], true) {
                    paced.push((unit, compute));
                    compute = 0.0;
                }
            }
            compute += point.compute_ns as f64;
        }
        if let Some(first) = paced.first_mut() {
            first.1 += compute; // The forward is circular.
        }
        let unused = movable.iter().filter(|&&unit| !seen[unit]);
        paced.extend(unused.map(|&unit| (unit, 0.0)));
        let costs = problem.unit_bytes.iter().map(|&bytes| problem.bus.cost_ns(bytes) as f64).collect();
        Self { problem, placer, movable, paced, costs }
    }

    /// Resident selections: per unit, true if it stays.
    pub fn residents(&self) -> Vec<Vec<bool>> {
        let bytes = |unit: usize| self.placer.bytes[unit];
        let total: u64 = self.movable.iter().map(|&unit| bytes(unit)).sum();
        let mean = total / (self.movable.len().max(1) as u64);
        let largest = self.movable.iter().map(|&unit| bytes(unit)).max().unwrap_or(0);
        // A small unit costs little to keep, but an extra copy to stream. A large unit makes the ring large. A ring for
        // units of one size is always full.
        let mut forced: Vec<Vec<bool>> = Vec::new();
        for (small, large) in
            [(0, u64::MAX), (mean / 8, u64::MAX), (0, 2 * mean), (mean / 8, 2 * mean), (largest / 2, u64::MAX)]
        {
            let mut first = vec![false; self.placer.bytes.len()];
            for &unit in &self.movable {
                first[unit] = bytes(unit) < small || bytes(unit) > large;
            }
            if !forced.contains(&first) {
                forced.push(first);
            }
        }
        let levels = self.movable.len().min(MAX_LEVELS);
        let mut all = HashSet::new();
        for first in &forced {
            let forced: u64 = self.movable.iter().filter(|&&unit| first[unit]).map(|&unit| bytes(unit)).sum();
            for level in 0..=levels {
                let share = total as f64 * level as f64 / levels.max(1) as f64;
                if forced as f64 > share {
                    continue;
                }
                let fraction = (share - forced as f64) / (total - forced).max(1) as f64;
                for phase in [0.0, 0.5, 0.999] {
                    all.insert(self.by_bytes(first, fraction, phase));
                }
                all.insert(self.by_compute(first, fraction));
            }
        }
        // Sort, so that every run has the same order.
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable();
        all
    }

    /// Keeps the same fraction of bytes resident in every part of the order.
    fn by_bytes(&self, first: &[bool], fraction: f64, phase: f64) -> Vec<bool> {
        let mut resident = self.problem.resident.clone();
        let mut owed = 0.0;
        let mut begun = false;
        for &unit in &self.movable {
            let bytes = self.placer.bytes[unit] as f64;
            if first[unit] {
                resident[unit] = true;
                continue;
            }
            if !std::mem::replace(&mut begun, true) {
                owed = phase * bytes;
            }
            owed += fraction * bytes;
            if owed >= bytes * (1.0 - 1e-9) {
                resident[unit] = true;
                owed -= bytes;
            }
        }
        resident
    }

    /// Streams a unit when the compute since the last streamed unit covers its copy.
    fn by_compute(&self, first: &[bool], fraction: f64) -> Vec<bool> {
        let mut resident = self.problem.resident.clone();
        let cost = |unit: usize| self.costs[unit];
        let copies: f64 = self.paced.iter().filter(|(unit, _)| !first[*unit]).map(|&(unit, _)| cost(unit)).sum();
        let compute: f64 = self.paced.iter().map(|&(_, compute)| compute).sum();
        let pace = if compute > 0.0 { (1.0 - fraction) * copies / compute } else { 0.0 };
        let mut paid = 0.0;
        for &(unit, compute) in &self.paced {
            paid += compute * pace;
            if first[unit] || paid < cost(unit) * 0.5 {
                resident[unit] = true;
            } else {
                paid -= cost(unit);
            }
        }
        resident
    }

    /// All selections, for models with few units.
    pub fn all_residents(&self) -> Vec<Vec<bool>> {
        let selection = |mask: usize| {
            let mut resident = self.problem.resident.clone();
            self.movable.iter().enumerate().for_each(|(bit, &unit)| resident[unit] = mask >> bit & 1 == 1);
            resident
        };
        (0..1 << self.movable.len()).map(selection).collect()
    }
}

/// Rings that one selection of streamed units may have.
pub struct Rings {
    /// Streamed bytes of each point that has any, in order.
    sizes: Vec<u64>,
    /// Smallest ring.
    pub least: u64,
    /// Ring that holds all of them.
    pub all: u64,
    /// True if the compute is unknown: units are always loaded ahead.
    ahead: bool,
    /// True if units are copied in pieces, which makes narrow rings useful.
    pub in_pieces: bool,
}

impl Rings {
    pub fn new(facts: &UnitFacts, streamed: &[bool]) -> Self {
        let of_point = |units: &Vec<usize>| -> u64 {
            units.iter().filter(|&&unit| streamed[unit]).map(|&unit| facts.placer.bytes[unit]).sum()
        };
        let sizes =
            facts.problem.points.iter().map(|point| of_point(&point.units)).filter(|&bytes| bytes > 0).collect();
        let all = facts.movable.iter().filter(|&&unit| streamed[unit]).map(|&unit| facts.placer.bytes[unit]).sum();
        let ahead = facts.problem.points.iter().all(|point| point.compute_ns == 0);
        let least = facts.placer.least_ring(facts.problem, streamed).0;
        let largest = facts.movable.iter().filter(|&&unit| streamed[unit]).map(|&unit| facts.placer.bytes[unit]).max();
        // A copy while its neighbour is in use needs a host that runs ahead of the device.
        let in_pieces = !ahead
            && facts.problem.host.forward_ns == 0
            && largest.is_some_and(|largest| largest / 2 >= facts.problem.bus.least_piece);
        Self { sizes, least, all, ahead, in_pieces }
    }

    /// Ring shapes worth trying.
    pub fn shapes(&self) -> Vec<Shape> {
        let mut shapes = Vec::new();
        for depth in DEPTHS.into_iter().skip(usize::from(self.ahead)) {
            let shape = self.shape(Pattern::Sequential, depth);
            if shape.ring >= self.all {
                break;
            }
            if shapes.last().is_none_or(|last: &Shape| last.ring < shape.ring) {
                shapes.push(shape);
            }
            if depth == 2 {
                shapes.extend(self.narrow());
                shapes.push(Shape { pattern: Pattern::TwoEnded, ..shape });
            }
        }
        shapes
    }

    /// Rings too small for two neighbours: the second is copied in pieces, and the last piece waits for the first neighbour.
    fn narrow(&self) -> impl Iterator<Item = Shape> {
        (1..if self.in_pieces { NARROW_RING_STEPS } else { 1 }).map(|step| self.narrower(step))
    }

    /// Narrow ring of a step.
    ///
    /// At [`NARROW_RING_STEPS`], the ring for two points.
    pub fn narrower(&self, step: usize) -> Shape {
        let two = self.shape(Pattern::TwoEnded, 2);
        let more = (two.ring - self.least) * step as u64 / NARROW_RING_STEPS as u64;
        Shape { ring: (self.least + more).next_multiple_of(ALIGNMENT).min(two.ring), ..two }
    }

    /// Every size that holds some sequence of units exactly.
    pub fn all_shapes(&self) -> Vec<Shape> {
        let count = self.sizes.len();
        let mut rings = vec![self.least];
        for begin in 0..count {
            let mut ring = 0;
            for row in 0..count {
                ring += self.sizes[(begin + row) % count];
                rings.push(ring);
            }
        }
        let two = self.shape(Pattern::TwoEnded, 2);
        let enough = if self.ahead { two.ring } else { self.least };
        rings.sort_unstable();
        rings.dedup();
        rings.retain(|&ring| ring >= enough && ring < self.all);
        let shapes = rings.into_iter().map(|ring| Shape { pattern: Pattern::Sequential, ring, seam: 0 });
        shapes.chain(self.narrow().chain([two]).filter(|two| two.ring < self.all)).collect()
    }

    /// Ring that holds the units of any `depth` consecutive points.
    pub fn shape(&self, pattern: Pattern, depth: usize) -> Shape {
        let sizes = &self.sizes;
        let depth = depth.min(sizes.len());
        let mut window: u64 = sizes[..depth].iter().sum();
        let mut most = window;
        // Without wrap-around, because the layout starts again there.
        for behind in depth..sizes.len() {
            window = window + sizes[behind] - sizes[behind - depth];
            most = most.max(window);
        }
        Shape { pattern, ring: most.max(self.least), seam: 0 }
    }

    /// Number of points whose units such a ring holds.
    pub fn depth(&self, shape: Shape) -> usize {
        (1..self.sizes.len()).find(|&depth| self.shape(shape.pattern, depth).ring >= shape.ring).unwrap_or(1)
    }
}
