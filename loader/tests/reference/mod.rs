//! A simulation of the pipeline's rules, nanosecond by nanosecond on a ring of bytes: slow, and written from the rules
//! alone.

use memlab_loader::ByteRange;
use memlab_loader::plan::{Bus, Point, PointTime};

/// Short times, so that a forward has few nanoseconds: 512 bytes take 4.
pub const BUS: Bus = Bus { bytes_per_second: 128e9, copy_overhead_ns: 0 };
const BLOCK: u64 = 512;

struct Reference<'a> {
    points: &'a [Point],
    placements: &'a [Option<ByteRange>],
    /// The unit in each block of the ring.
    ring: Vec<Option<usize>>,
    /// The copy in progress, and its end.
    copying: Option<(usize, u64)>,
    /// The forward and the point that is computed or waited for.
    at: (usize, usize),
    /// The end of its compute, once it has started.
    computing: Option<u64>,
}

/// When each point's compute started and ended in the last two of `forwards`, since the end of the forward before.
pub fn last_forwards(
    unit_bytes: &[u64],
    points: &[Point],
    placements: &[Option<ByteRange>],
    bus: &Bus,
    forwards: usize,
) -> [Vec<PointTime>; 2] {
    let blocks = placements.iter().flatten().map(|placement| placement.end().div_ceil(BLOCK)).max().unwrap_or(0);
    let ring = vec![None; blocks as usize];
    let mut reference = Reference { points, placements, ring, copying: None, at: (0, 0), computing: None };
    let mut times = vec![Vec::new(); forwards];
    let mut now = 0;
    while reference.at.0 < forwards {
        // An end at this time lets other work start, and work of no duration ends at once.
        while reference.step(now, unit_bytes, bus, &mut times) {}
        now += 1;
    }
    let relative = |forward: usize| {
        let before = times[forward - 1].last().map_or(0, |time: &PointTime| time.end_ns);
        let from_before =
            |time: &PointTime| PointTime { start_ns: time.start_ns - before, end_ns: time.end_ns - before };
        times[forward].iter().map(from_before).collect()
    };
    [relative(forwards - 2), relative(forwards - 1)]
}

impl Reference<'_> {
    fn step(&mut self, now: u64, unit_bytes: &[u64], bus: &Bus, times: &mut [Vec<PointTime>]) -> bool {
        if let Some((unit, _)) = self.copying.filter(|&(_, end)| end <= now) {
            let blocks = self.blocks(unit);
            self.ring[blocks].fill(Some(unit));
            self.copying = None;
            return true;
        }
        let (forward, point) = self.at;
        if forward == times.len() {
            return false;
        }
        if self.computing.is_some_and(|end| end <= now) {
            self.computing = None;
            self.at = if point + 1 == self.points.len() { (forward + 1, 0) } else { (forward, point + 1) };
            return true;
        }
        if self.computing.is_none() && self.points[point].units.iter().all(|&unit| self.is_there(unit)) {
            let end = now + self.points[point].compute_ns;
            self.computing = Some(end);
            times[forward].push(PointTime { start_ns: now, end_ns: end });
            return true;
        }
        if self.copying.is_none()
            && let Some(unit) = self.next_copy()
        {
            let blocks = self.blocks(unit);
            self.ring[blocks].fill(None);
            self.copying = Some((unit, now + bus.cost_ns(unit_bytes[unit])));
            return true;
        }
        false
    }

    fn blocks(&self, unit: usize) -> std::ops::Range<usize> {
        let placement = self.placements[unit].unwrap_or_default();
        (placement.start / BLOCK) as usize..placement.end().div_ceil(BLOCK) as usize
    }

    fn is_there(&self, unit: usize) -> bool {
        let whole = self.ring[self.blocks(unit)].iter().all(|&owner| owner == Some(unit));
        whole && self.copying.is_none_or(|(copied, _)| copied != unit)
    }

    /// In the order of need: the first unit that is not loaded, unless it overwrites a unit that is needed sooner.
    fn next_copy(&self) -> Option<usize> {
        let mut sooner = vec![false; self.ring.len()];
        for ahead in 0..=self.points.len() {
            let units = &self.points[(self.at.1 + ahead) % self.points.len()].units;
            for &unit in units {
                if !self.is_there(unit) {
                    return Some(unit).filter(|&unit| !sooner[self.blocks(unit)].contains(&true));
                }
                let blocks = self.blocks(unit);
                sooner[blocks].fill(true);
            }
        }
        None
    }
}
