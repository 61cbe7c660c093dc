//! Where in the ring each streamed unit lies. A unit has one place for good, so that the addresses of its weights never
//! change; loading it evicts whatever overlaps that place.

use super::Problem;

/// What places and sizes are multiples of: the alignment that PyTorch's allocator gives.
pub const ALIGNMENT: u64 = 512;

/// Bytes of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    pub offset: u64,
    pub bytes: u64,
}

impl Place {
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// How the ring is laid out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pattern {
    /// One after the other, from 0 again when the next does not fit in what is left.
    Sequential,
    /// By turns at the ring's beginning and at its end: the smallest ring in which neighbours never overlap.
    TwoEnded,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shape {
    pub pattern: Pattern,
    pub ring: u64,
    /// Where in the order of first use the layout begins: there, the unit before and the unit after may share bytes.
    pub seam: usize,
}

/// Lays out any selection of the units.
pub struct Placer {
    /// Per unit, a multiple of [`ALIGNMENT`].
    pub bytes: Vec<u64>,
    /// Units in order of first use; those that no point uses come last.
    pub order: Vec<usize>,
    /// Per unit: a number shared by those first used at the same point.
    pub group: Vec<usize>,
    /// Per unit: those that must be there at the same time.
    together: Vec<Vec<usize>>,
    /// Units that are in no set of them.
    unused: Vec<usize>,
}

impl Placer {
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

    /// The smallest ring for these units: each set that is needed together, and each unit, must fit.
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

    /// Writes each streamed unit's place; the others get an empty one. Returns the bytes of the ring that are used, or `None`
    /// where no layout was found in which units needed together do not overlap.
    pub fn place(&self, shape: Shape, streamed: &[bool], places: &mut Vec<Place>) -> Option<u64> {
        let used = match shape.pattern {
            Pattern::Sequential => self
                .sequential(shape, false, streamed, places)
                .or_else(|| self.sequential(shape, true, streamed, places))
                .or_else(|| self.first_fit(shape.ring, streamed, places)),
            Pattern::TwoEnded => self.two_ended(shape, streamed, places),
        };
        debug_assert!(used.is_none_or(|used| used <= shape.ring));
        used
    }

    fn in_order(&self, seam: usize, streamed: &[bool]) -> impl Iterator<Item = usize> {
        let seam = seam.min(self.order.len());
        let units = self.order[seam..].iter().chain(&self.order[..seam]).copied();
        units.filter(|&unit| streamed[unit] && self.bytes[unit] > 0)
    }

    fn sequential(&self, shape: Shape, whole: bool, streamed: &[bool], places: &mut Vec<Place>) -> Option<u64> {
        clear(places, self.bytes.len());
        let (mut next, mut used, mut group) = (0, 0, usize::MAX);
        for unit in self.in_order(shape.seam, streamed) {
            if whole && self.group[unit] != group {
                group = self.group[unit];
                if next + self.rest_of_group(unit, streamed) > shape.ring {
                    next = 0;
                }
            }
            let mut place = Place { offset: next, bytes: self.bytes[unit] };
            let mut wrapped = false;
            loop {
                if place.end() > shape.ring {
                    if wrapped {
                        return None;
                    }
                    wrapped = true;
                    place.offset = 0;
                } else if let Some(behind) = self.conflict(unit, place, places) {
                    place.offset = behind;
                } else {
                    break;
                }
            }
            places[unit] = place;
            next = place.end();
            used = used.max(next);
        }
        Some(used)
    }

    fn two_ended(&self, shape: Shape, streamed: &[bool], places: &mut Vec<Place>) -> Option<u64> {
        clear(places, self.bytes.len());
        let (mut group, mut at_end, mut next, mut used) = (usize::MAX, true, 0, 0);
        for unit in self.in_order(shape.seam, streamed) {
            if self.group[unit] != group {
                group = self.group[unit];
                at_end = !at_end;
                next = if at_end { shape.ring.checked_sub(self.rest_of_group(unit, streamed))? } else { 0 };
            }
            let place = Place { offset: next, bytes: self.bytes[unit] };
            if place.end() > shape.ring || self.conflict(unit, place, places).is_some() {
                return None;
            }
            places[unit] = place;
            next = place.end();
            used = used.max(next);
        }
        Some(used)
    }

    /// The last resort: the largest first, each as low as it can lie. Little is loaded ahead in such a ring.
    fn first_fit(&self, ring: u64, streamed: &[bool], places: &mut Vec<Place>) -> Option<u64> {
        clear(places, self.bytes.len());
        let mut units: Vec<usize> = self.in_order(0, streamed).collect();
        units.sort_by_key(|&unit| std::cmp::Reverse((self.bytes[unit], self.together[unit].len())));
        let mut used = 0;
        for unit in units {
            let mut place = Place { offset: 0, bytes: self.bytes[unit] };
            while let Some(behind) = self.conflict(unit, place, places) {
                place.offset = behind;
            }
            if place.end() > ring {
                return None;
            }
            places[unit] = place;
            used = used.max(place.end());
        }
        Some(used)
    }

    /// Bytes of the streamed units first used together with this one.
    fn rest_of_group(&self, unit: usize, streamed: &[bool]) -> u64 {
        let others = self.together[unit].iter().filter(|&&other| self.group[other] == self.group[unit]);
        self.bytes[unit] + self.sum(others.copied(), streamed)
    }

    /// Where a unit that must be there together with this one, and overlaps the place, ends.
    fn conflict(&self, unit: usize, place: Place, places: &[Place]) -> Option<u64> {
        let others = self.together[unit].iter().map(|&other| places[other]);
        others.filter(|other| other.overlaps(place)).map(Place::end).max()
    }
}

fn clear(places: &mut Vec<Place>, units: usize) {
    places.clear();
    places.resize(units, Place::default());
}
