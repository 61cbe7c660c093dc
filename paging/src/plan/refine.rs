//! Local search around a candidate: swaps units between the device and the ring.

use super::candidates::{NARROW_RING_STEPS, Rings, UnitFacts};
use super::evaluate::{Choice, Evaluator, resident_bytes};
use super::placement::{Pattern, Shape};

/// Approximate number of points simulated per refinement.
const SIMULATED_POINTS: usize = 24_000;

/// Layouts of any size found in a random walk from the candidate.
///
/// They depend on the candidate only.
pub fn refine(facts: &UnitFacts, evaluator: &mut Evaluator, from: Choice, least_ns: u64) -> Vec<Choice> {
    let mut found = Vec::new();
    if least_ns == 0 || from.time_ns <= least_ns || facts.movable.is_empty() {
        return found;
    }
    let budget = (SIMULATED_POINTS / facts.problem.points.len().max(1)).clamp(16, 1000);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let cap = from.bytes;
    let mut depth = rings(facts, &from.resident).depth(from.shape);
    let mut now = from;
    for _ in 0..budget {
        let mut resident = now.resident.clone();
        let mut deeper = depth;
        let mut pattern = now.shape.pattern;
        match random.below(10) {
            0..5 => trade(facts, &mut resident, &mut random, 3),
            5..7 => trade(facts, &mut resident, &mut random, facts.movable.len()),
            7 => flip(facts, &mut resident, &mut random, true),
            8 => flip(facts, &mut resident, &mut random, false),
            _ if random.below(3) == 0 && pattern == Pattern::Sequential && depth == 2 => pattern = Pattern::TwoEnded,
            _ => {
                pattern = Pattern::Sequential;
                deeper = if random.below(2) == 0 { depth + 1 } else { (depth - 1).max(1) };
            }
        }
        let rings = rings(facts, &resident);
        if rings.all == 0 {
            continue;
        }
        let seam = if random.below(4) == 0 { random.below(facts.placer.order.len()) } else { now.shape.seam };
        let mut shape = Shape { seam, ..rings.shape(pattern, deeper) };
        if pattern == Pattern::TwoEnded && rings.in_pieces {
            shape.ring = rings.narrower(1 + random.below(NARROW_RING_STEPS)).ring;
        }
        let stays = resident_bytes(facts.placer, &resident);
        if random.below(4) == 0 && pattern == Pattern::Sequential && stays + shape.ring < cap {
            shape.ring = cap - stays; // The rest of the bytes.
        }
        let Some(choice) = evaluator.evaluate(&resident, shape) else { continue };
        if choice.bytes <= cap && (choice.time_ns, choice.bytes) <= (now.time_ns, now.bytes) {
            now = choice.clone();
            depth = deeper;
        }
        keep(&mut found, choice);
    }
    found
}

/// Keeps layouts that no other layout beats in both size and time.
fn keep(found: &mut Vec<Choice>, choice: Choice) {
    if found.iter().any(|other| other.bytes <= choice.bytes && other.time_ns <= choice.time_ns) {
        return;
    }
    found.retain(|other| other.bytes < choice.bytes || other.time_ns < choice.time_ns);
    found.push(choice);
}

fn rings(facts: &UnitFacts, resident: &[bool]) -> Rings {
    let streamed: Vec<bool> = resident.iter().map(|resident| !resident).collect();
    Rings::new(facts, &streamed)
}

/// Swaps a resident unit with a streamed unit, at most `reach` apart.
fn trade(facts: &UnitFacts, resident: &mut [bool], random: &mut Random, reach: usize) {
    let count = facts.movable.len();
    let one = random.below(count);
    let start = random.below(2 * reach + 1);
    for step in 0..2 * reach + 1 {
        let away = (start + step) % (2 * reach + 1);
        let other = facts.movable[(one + count * reach + away - reach) % count];
        let unit = facts.movable[one];
        if resident[unit] != resident[other] {
            resident.swap(unit, other);
            return;
        }
    }
}

/// Adds or removes one resident unit.
fn flip(facts: &UnitFacts, resident: &mut [bool], random: &mut Random, stays: bool) {
    let start = random.below(facts.movable.len());
    let around = facts.movable[start..].iter().chain(&facts.movable[..start]);
    if let Some(&unit) = around.into_iter().find(|&&unit| resident[unit] != stays) {
        resident[unit] = stays;
    }
}

/// Xorshift with a fixed seed: the same walk in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % count.max(1) as u64) as usize
    }
}
