//! What the copy pipeline will do with a layout, in the time of a forward pass.
//!
//! The pipeline copies units in the order in which they are needed, one after the other, and a copy waits until the last
//! point that uses anything which it overwrites has been computed:
//! `end_copy(c) = max(end_copy(c - 1), end(freed_by(c))) + cost(c)` and
//! `start(j) = max(end(j - 1), end_copy(last copy for j)); end(j) = start(j) + compute(j)`.
//! It goes round: the next forward's copies begin while this one computes.

use super::place::Place;
use super::{Bus, Point};

/// Forwards after which the times repeat in all but contrived cases.
const MOST_FORWARDS: usize = 256;

struct Copy {
    /// Index of the point that needs it.
    point: usize,
    /// The point whose compute must have ended before, plus the number of points (so that points of the forward before
    /// are below that number).
    freed_by: usize,
    cost: i64,
}

/// Who is in a piece of the ring, and the last point that used it.
#[derive(Clone, Copy)]
struct Tenant {
    place: Place,
    unit: usize,
    point: usize,
}

/// The copies of one forward in steady state, and room for simulating them.
#[derive(Default)]
pub struct Program {
    copies: Vec<Copy>,
    compute: Vec<i64>,
    /// Bytes copied per forward.
    pub copied_bytes: u64,
    tenants: Vec<Tenant>,
    /// When each point ended: first those of the forward before, then those of this one.
    ends: Vec<i64>,
    starts: Vec<i64>,
    earlier: [(i64, Vec<i64>); 2],
}

/// A forward in steady state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steady {
    /// Time per forward.
    pub period_ns: u64,
    /// Whether the times repeat exactly.
    pub settled: bool,
}

impl Program {
    /// Finds out what is copied in each forward. A unit without bytes in the ring (resident, or empty) is never copied.
    pub fn compile(&mut self, unit_bytes: &[u64], points: &[Point], places: &[Place], bus: &Bus) {
        self.compute.clear();
        self.compute.extend(points.iter().map(|point| point.compute_ns as i64));
        self.copies.clear();
        self.copied_bytes = 0;
        self.tenants.clear();
        // The first time round fills the ring as a forward leaves it.
        for forward in 0..2 {
            let mut near = 0;
            for (number, point) in points.iter().enumerate() {
                for &unit in point.units.iter().filter(|&&unit| places[unit].bytes > 0) {
                    let freed_by = self.occupy(unit, places[unit], forward * points.len() + number, &mut near);
                    if let Some(freed_by) = freed_by.filter(|_| forward == 1) {
                        let cost = bus.cost_ns(unit_bytes[unit]) as i64;
                        self.copies.push(Copy { point: number, freed_by, cost });
                        self.copied_bytes += unit_bytes[unit];
                    }
                }
            }
        }
    }

    /// The unit is used at a point. Returns `None` if it is there, else the last point that used what it overwrites.
    fn occupy(&mut self, unit: usize, place: Place, point: usize, near: &mut usize) -> Option<usize> {
        let tenants = &mut self.tenants;
        // Units mostly lie behind one another: the one after the last is tried before a search.
        let first = match tenants.get(*near) {
            Some(tenant) if tenant.place.end() <= place.offset && self_or_after(tenants, *near + 1, place) => *near + 1,
            _ => tenants.partition_point(|tenant| tenant.place.end() <= place.offset),
        };
        *near = first;
        let mut last = first;
        let mut freed_by = 0;
        while let Some(tenant) = tenants.get(last).filter(|tenant| tenant.place.offset < place.end()) {
            freed_by = freed_by.max(tenant.point);
            last += 1;
        }
        if last == first + 1 && tenants[first].unit == unit && tenants[first].place == place {
            tenants[first].point = point;
            return None;
        }
        // What sticks out on either side stays somebody else's.
        let before = tenants[first..last].first().filter(|tenant| tenant.place.offset < place.offset).map(|tenant| {
            let bytes = place.offset - tenant.place.offset;
            Tenant { place: Place { offset: tenant.place.offset, bytes }, ..*tenant }
        });
        let after = tenants[first..last].last().filter(|tenant| tenant.place.end() > place.end()).map(|tenant| {
            let bytes = tenant.place.end() - place.end();
            Tenant { place: Place { offset: place.end(), bytes }, ..*tenant }
        });
        *near += usize::from(before.is_some());
        let now = Tenant { place, unit, point };
        if last == first + 1 && before.is_none() && after.is_none() {
            tenants[first] = now;
        } else {
            tenants.splice(first..last, before.into_iter().chain([now]).chain(after));
        }
        Some(freed_by)
    }

    /// Simulates forwards, from an idle bus and an empty ring, until the times repeat.
    pub fn run(&mut self) -> Steady {
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
        for _ in 0..MOST_FORWARDS {
            let (ended, bus_free) = self.forward(bus);
            (earlier_period, period) = (period, ended);
            // Times are kept relative to the end of the forward before.
            bus = bus_free - ended;
            for point in 0..points {
                self.ends[point] = self.ends[points + point] - ended;
            }
            let ends = &self.ends[..points];
            if self.earlier[1].0 == bus && self.earlier[1].1 == ends {
                return Steady { period_ns: period as u64, settled: true };
            }
            if self.earlier[0].0 == bus && self.earlier[0].1 == ends {
                settled = true; // Two forwards that take turns.
                break;
            }
            self.earlier.swap(0, 1);
            let (then, buffer) = &mut self.earlier[1];
            *then = bus;
            buffer.clear();
            buffer.extend_from_slice(ends);
        }
        Steady { period_ns: (period + earlier_period).unsigned_abs().div_ceil(2), settled }
    }

    /// One forward; returns when its last point ended and when the bus is free, from the end of the forward before.
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

    /// When each point's compute started and ended in the last forward, from the end of the forward before.
    pub fn times(&self) -> impl Iterator<Item = (u64, u64)> {
        self.starts.iter().zip(&self.compute).map(|(&start, &compute)| (start as u64, (start + compute) as u64))
    }
}

/// Whether everything from the tenant `index` on ends behind the beginning of the place.
fn self_or_after(tenants: &[Tenant], index: usize, place: Place) -> bool {
    tenants.get(index).is_none_or(|tenant| tenant.place.end() > place.offset)
}
