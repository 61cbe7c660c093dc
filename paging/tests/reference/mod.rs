//! A simulation of the pipeline's rules, nanosecond by nanosecond on a ring of bytes: slow, and written from the rules
//! alone.

use memlab_paging::ByteRange;
use memlab_paging::plan::{Bus, Point, PointTime};

/// Short times, so that a forward has few nanoseconds: 512 bytes take 4.
pub const BUS: Bus = Bus { bytes_per_second: 128e9, copy_overhead_ns: 0, least_piece: u64::MAX };
const BLOCK: u64 = 512;

struct Reference<'a> {
    points: &'a [Point],
    placements: &'a [Option<ByteRange>],
    /// The unit in each block of the ring.
    ring: Vec<Option<usize>>,
    /// The unit that is copied.
    copied: Option<usize>,
    /// Which of its blocks are being copied, and the end of that.
    copying: Option<(Vec<usize>, u64)>,
    /// Blocks are copied one by one, each as soon as it is free.
    in_pieces: bool,
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
    let in_pieces = bus.least_piece <= BLOCK;
    let (copied, copying, computing) = Default::default();
    let mut reference = Reference { points, placements, ring, copied, copying, in_pieces, at: (0, 0), computing };
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
        if let Some((blocks, _)) = self.copying.take_if(|(_, end)| *end <= now) {
            blocks.into_iter().for_each(|block| self.ring[block] = self.copied);
            self.copied = self.copied.filter(|&unit| !self.is_there(unit));
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
            && let Some((unit, blocks)) = self.next_copy()
        {
            let bytes = if self.in_pieces { BLOCK } else { unit_bytes[unit] };
            if self.copied.replace(unit).is_none() {
                // What is left of it from before is copied again.
                self.ring.iter_mut().filter(|owner| **owner == Some(unit)).for_each(|owner| *owner = None);
            }
            blocks.iter().for_each(|&block| self.ring[block] = None);
            self.copying = Some((blocks, now + bus.cost_ns(bytes)));
            return true;
        }
        false
    }

    fn blocks(&self, unit: usize) -> std::ops::Range<usize> {
        let placement = self.placements[unit].unwrap_or_default();
        (placement.start / BLOCK) as usize..placement.end().div_ceil(BLOCK) as usize
    }

    fn is_there(&self, unit: usize) -> bool {
        self.ring[self.blocks(unit)].iter().all(|&owner| owner == Some(unit))
    }

    /// In the order of need: the first unit that is not loaded, with the blocks to copy of it, unless these have a unit that is
    /// needed sooner.
    fn next_copy(&self) -> Option<(usize, Vec<usize>)> {
        let mut sooner = vec![false; self.ring.len()];
        for ahead in 0..=self.points.len() {
            let units = &self.points[(self.at.1 + ahead) % self.points.len()].units;
            for &unit in units {
                if !self.is_there(unit) {
                    let mut blocks: Vec<usize> = self.blocks(unit).collect();
                    if self.in_pieces {
                        let is_begun = self.copied == Some(unit);
                        blocks.retain(|&block| !(is_begun && self.ring[block] == Some(unit) || sooner[block]));
                        blocks.truncate(1);
                    }
                    let free = !blocks.is_empty() && blocks.iter().all(|&block| !sooner[block]);
                    return free.then_some((unit, blocks));
                }
                let blocks = self.blocks(unit);
                sooner[blocks].fill(true);
            }
        }
        None
    }
}
