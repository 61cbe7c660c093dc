//! Differences of small sets of units, and the window of units loaded ahead.

use super::configuration::Unit;

/// Computes differences of small sets of units.
#[derive(Default)]
pub struct UnitSet {
    marks: Vec<u64>,
    now: u64,
}

impl UnitSet {
    fn mark(&mut self, set: &[Unit], units: usize) {
        self.marks.resize(units.max(self.marks.len()), 0);
        self.now += 1;
        set.iter().for_each(|&unit| self.marks[unit as usize] = self.now);
    }

    fn has(&self, unit: Unit) -> bool {
        self.marks[unit as usize] == self.now
    }

    /// Writes the units of `set` that are not in `without`.
    pub fn difference(&mut self, set: &[Unit], without: &[Unit], into: &mut Vec<Unit>, units: usize) {
        self.mark(without, units);
        into.clear();
        into.extend(set.iter().filter(|&&unit| !self.has(unit)));
    }

    pub fn keep_common(&mut self, set: &mut Vec<Unit>, with: &[Unit], units: usize) {
        self.mark(with, units);
        set.retain(|&unit| self.has(unit));
    }
}

/// Counts units loaded ahead, excluding held ones.
pub struct PrefetchWindow<'a> {
    seen: &'a mut UnitSet,
    left: usize,
}

impl<'a> PrefetchWindow<'a> {
    pub fn new(seen: &'a mut UnitSet, held: &[Unit], most: usize, units: usize) -> Self {
        seen.mark(held, units);
        Self { seen, left: most }
    }

    /// Returns true if the next unit may be loaded ahead too.
    pub fn admits(&mut self, unit: Unit) -> bool {
        if self.seen.has(unit) {
            return true;
        }
        let admitted = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.seen.marks[unit as usize] = self.seen.now;
        admitted
    }
}
