//! The placement of each streamed unit in the ring.
//!
//! It is fixed, so that addresses of weights never change. Loading a unit evicts the units that overlap its placement.

use super::problem::Problem;
use crate::range::ByteRange;

/// Alignment of PyTorch's allocator.
///
/// Placements and sizes are multiples of it.
pub const ALIGNMENT: u64 = 512;

/// Layout pattern of the ring.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pattern {
    /// One after the other.
    ///
    /// Starts again at 0 when the next unit does not fit.
    Sequential,
    /// Alternately at the start and at the end of the ring: the smallest ring in which neighbours never overlap.
    TwoEnded,
}

/// Shape of a ring: its layout pattern and size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shape {
    /// Layout pattern.
    pub pattern: Pattern,
    /// Bytes of the ring.
    pub ring: u64,
    /// Position in the order of first use at which the layout starts.
    ///
    /// The units before and after it may overlap.
    pub seam: usize,
}

/// Lays out any selection of the units.
pub struct Placer {
    /// Bytes of each unit, a multiple of [`ALIGNMENT`].
    pub bytes: Vec<u64>,
    /// Units in order of first use.
    ///
    /// Units that no point uses come last.
    pub order: Vec<usize>,
    /// Per unit: a number shared by the units first used at the same point.
    pub group: Vec<usize>,
    /// Per unit: the units needed at the same time.
    together: Vec<Vec<usize>>,
    /// Units that no point and no set needs.
    unused: Vec<usize>,
}

impl Placer {
    /// Creates a placer for the units of a problem.
    pub fn new(problem: &Problem) -> Self {
        let units = problem.unit_bytes.len();
        let bytes: Vec<u64> = problem.unit_bytes.iter().map(|bytes| bytes.next_multiple_of(ALIGNMENT)).collect();
        let mut order = Vec::with_capacity(units);
        let mut group = vec![usize::MAX; units];
        let sets = problem.points.iter().map(|point| &point.units).chain(&problem.together);
        let mut together = vec![Vec::new(); units];
        for (number, set) in sets.enumerate() {
            for &unit in set {
                if group[unit] == usize::MAX {
                    group[unit] = number;
                    order.push(unit);
                }
                together[unit].extend(set.iter().filter(|&&other| other != unit));
            }
        }
        for set in &mut together {
            set.sort_unstable();
            set.dedup();
        }
        let sets = problem.points.len() + problem.together.len();
        let unused: Vec<usize> = (0..units).filter(|&unit| group[unit] == usize::MAX).collect();
        for &unit in &unused {
            group[unit] = sets + unit;
            order.push(unit);
        }
        Self { bytes, order, group, together, unused }
    }

    /// Returns the size of the smallest ring that fits each unit and each set needed together, and the point that needs that
    /// size.
    pub fn least_ring(&self, problem: &Problem, streamed: &[bool]) -> (u64, Option<usize>) {
        let sets = problem.points.iter().map(|point| &point.units).chain(&problem.together);
        let of_sets = sets.enumerate().map(|(point, set)| (self.sum(set.iter().copied(), streamed), Some(point)));
        let alone = self.unused.iter().map(|&unit| (self.sum([unit].into_iter(), streamed), None));
        let points = problem.points.len();
        let most = of_sets.chain(alone).max_by_key(|&(bytes, point)| (bytes, point.map(std::cmp::Reverse)));
        most.map_or((0, None), |(bytes, point)| (bytes, point.filter(|&point| point < points)))
    }

    fn sum(&self, units: impl Iterator<Item = usize>, streamed: &[bool]) -> u64 {
        units.filter(|&unit| streamed[unit]).map(|unit| self.bytes[unit]).sum()
    }

    /// Writes the placement of each streamed unit, and an empty placement for the others.
    ///
    /// Returns the bytes of the ring in use, or `None` if no layout was found in which units needed together do not overlap.
    pub fn place(&self, shape: Shape, streamed: &[bool], placements: &mut Vec<ByteRange>) -> Option<u64> {
        let used = match shape.pattern {
            Pattern::Sequential => self
                .sequential(shape, false, streamed, placements)
                .or_else(|| self.sequential(shape, true, streamed, placements))
                .or_else(|| self.first_fit(shape.ring, streamed, placements)),
            Pattern::TwoEnded => self.two_ended(shape, streamed, placements),
        };
        debug_assert!(used.is_none_or(|used| used <= shape.ring));
        used
    }

    fn in_order(&self, seam: usize, streamed: &[bool]) -> impl Iterator<Item = usize> {
        let seam = seam.min(self.order.len());
        let units = self.order[seam..].iter().chain(&self.order[..seam]).copied();
        units.filter(|&unit| streamed[unit] && self.bytes[unit] > 0)
    }

    fn sequential(&self, shape: Shape, whole: bool, streamed: &[bool], placements: &mut Vec<ByteRange>) -> Option<u64> {
        clear(placements, self.bytes.len());
        let (mut next, mut used, mut group) = (0, 0, usize::MAX);
        for unit in self.in_order(shape.seam, streamed) {
            if whole && self.group[unit] != group {
                group = self.group[unit];
                if next + self.rest_of_group(unit, streamed) > shape.ring {
                    next = 0;
                }
            }
            let mut placement = ByteRange { start: next, length: self.bytes[unit] };
            let mut wrapped = false;
            loop {
                if placement.end() > shape.ring {
                    if wrapped {
                        return None;
                    }
                    wrapped = true;
                    placement.start = 0;
                } else if let Some(behind) = self.conflict(unit, placement, placements) {
                    placement.start = behind;
                } else {
                    break;
                }
            }
            placements[unit] = placement;
            next = placement.end();
            used = used.max(next);
        }
        Some(used)
    }

    fn two_ended(&self, shape: Shape, streamed: &[bool], placements: &mut Vec<ByteRange>) -> Option<u64> {
        clear(placements, self.bytes.len());
        let (mut group, mut at_end, mut next, mut used) = (usize::MAX, true, 0, 0);
        for unit in self.in_order(shape.seam, streamed) {
            if self.group[unit] != group {
                group = self.group[unit];
                at_end = !at_end;
                next = if at_end { shape.ring.checked_sub(self.rest_of_group(unit, streamed))? } else { 0 };
            }
            let placement = ByteRange { start: next, length: self.bytes[unit] };
            if placement.end() > shape.ring || self.conflict(unit, placement, placements).is_some() {
                return None;
            }
            placements[unit] = placement;
            next = placement.end();
            used = used.max(next);
        }
        Some(used)
    }

    /// Places the largest units first, each as low as possible.
    ///
    /// This is the last resort: such a ring leaves little room for loading ahead.
    fn first_fit(&self, ring: u64, streamed: &[bool], placements: &mut Vec<ByteRange>) -> Option<u64> {
        clear(placements, self.bytes.len());
        let mut units: Vec<usize> = self.in_order(0, streamed).collect();
        units.sort_by_key(|&unit| std::cmp::Reverse((self.bytes[unit], self.together[unit].len())));
        let mut used = 0;
        for unit in units {
            let mut placement = ByteRange { start: 0, length: self.bytes[unit] };
            while let Some(behind) = self.conflict(unit, placement, placements) {
                placement.start = behind;
            }
            if placement.end() > ring {
                return None;
            }
            placements[unit] = placement;
            used = used.max(placement.end());
        }
        Some(used)
    }

    /// Bytes of the streamed units first used together with this one.
    fn rest_of_group(&self, unit: usize, streamed: &[bool]) -> u64 {
        let others = self.together[unit].iter().filter(|&&other| self.group[other] == self.group[unit]);
        self.bytes[unit] + self.sum(others.copied(), streamed)
    }

    /// Returns the end of a unit that is needed together with this one and overlaps the placement.
    fn conflict(&self, unit: usize, placement: ByteRange, placements: &[ByteRange]) -> Option<u64> {
        let others = self.together[unit].iter().map(|&other| placements[other]);
        others.filter(|other| other.overlaps(placement)).map(ByteRange::end).max()
    }
}

fn clear(placements: &mut Vec<ByteRange>, units: usize) {
    placements.clear();
    placements.resize(units, ByteRange::default());
}
