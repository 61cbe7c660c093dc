//! A simulation of the pipeline's rules, nanosecond by nanosecond on a ring of bytes.
//!
//! It is slow, and written from the rules only.

use memlab_paging::ByteRange;
use memlab_paging::plan::{Bus, Point, PointTime};

/// Bus with short times, so that a forward has few nanoseconds: 512 bytes take 4.
pub const BUS: Bus = Bus { bytes_per_second: 128e9, copy_overhead_ns: 0, least_piece: u64::MAX };
const BLOCK: u64 = 512;

struct Reference<'a> {
    points: &'a [Point],
    placements: &'a [Option<ByteRange>],
    /// Unit in each block of the ring.
    ring: Vec<Option<usize>>,
    /// Unit that is copied.
    copied: Option<usize>,
    /// Blocks that are being copied, and the end of that copy.
    copying: Option<(Vec<usize>, u64)>,
    /// True if blocks are copied one by one, each as soon as it is free.
    in_pieces: bool,
    /// The forward and the point being computed or waited for.
    at: (usize, usize),
    /// End of its compute, once it has started.
    computing: Option<u64>,
}

/// Returns the start and end of each point's compute in the last two of `forwards`, relative to the end of the previous
/// forward.
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
        // An end at this time lets other work start, and work without duration ends at once.
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
                // Remains of its earlier copy are copied again.
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

    /// Returns the first unit, in the order of need, that is not loaded, with its blocks to copy.
    ///
    /// Returns `None` if these blocks contain a unit needed sooner.
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
