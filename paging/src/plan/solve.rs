//! The search for the fastest layout that fits, and for the smallest layout that is fast enough.
//!
//! The set of layouts does not depend on the limit: it consists of fixed candidates and the refinements of the best of them.
//! More memory is therefore never slower. Candidates are tried from the largest down, and candidates that cannot win are not
//! simulated. No forward that keeps `b` bytes of weights `W` on the device takes less than `max(compute, host, (W - b) /
//! bandwidth)`.

use std::collections::HashMap;

use super::candidates::{Rings, UnitFacts};
use super::evaluate::{Choice, Evaluator, resident_bytes};
use super::outcome::{Plan, PlanError};
use super::placement::{Pattern, Placer, Shape};
use super::problem::Problem;
use super::refine::refine;
use crate::range::ByteRange;

/// Factor within which a forward is as good as the best one.
const TIME_TOLERANCE: f64 = 1.02;
/// Largest number of candidates tried among those that may be as fast and keep more.
const MAX_TRIED_CANDIDATES: usize = 256;
/// Number of units up to which all selections are tried.
const EXHAUSTIVE_UNITS: usize = 10;

/// A candidate before its simulation.
struct Candidate {
    /// Upper bound; less if the layout does not fill its ring.
    bytes: u64,
    resident: usize,
    shape: Shape,
}

/// The search for one problem.
///
/// Caches simulations across limits.
pub struct Search<'a> {
    problem: &'a Problem,
    placer: Placer,
    residents: Vec<Vec<bool>>,
    /// Sorted, the largest first.
    candidates: Vec<Candidate>,
    simulated: HashMap<usize, Option<Choice>>,
    refined: HashMap<usize, Vec<Choice>>,
    compute_ns: u64,
    /// Nanoseconds of a forward that copies nothing.
    least_ns: u64,
    scheduled_bytes: u64,
    /// True if all selections are tried, because the model has few units.
    exhaustive: bool,
    /// Number of layouts simulated so far.
    pub evaluations: usize,
}

impl<'a> Search<'a> {
    /// Creates a search for layouts of a problem.
    pub fn new(problem: &'a Problem) -> Self {
        let placer = Placer::new(problem);
        let exhaustive = UnitFacts::new(problem, &placer).movable.len() <= EXHAUSTIVE_UNITS;
        let compute_ns = problem.points.iter().map(|point| point.compute_ns).sum::<u64>();
        let mut used = vec![false; problem.unit_bytes.len()];
        problem.points.iter().flat_map(|point| &point.units).for_each(|&unit| used[unit] = true);
        let scheduled = (0..used.len()).filter(|&unit| used[unit]);
        let scheduled_bytes = scheduled.map(|unit| problem.unit_bytes[unit]).sum();
        Self {
            problem,
            placer,
            residents: Vec::new(),
            candidates: Vec::new(),
            simulated: HashMap::new(),
            refined: HashMap::new(),
            compute_ns,
            least_ns: compute_ns.max(problem.host.forward_ns),
            scheduled_bytes,
            exhaustive,
            evaluations: 0,
        }
    }

    /// Creates a search that never tries all selections, to measure its quality where an exhaustive search is possible.
    pub fn heuristic(problem: &'a Problem) -> Self {
        Self { exhaustive: false, ..Self::new(problem) }
    }

    fn enumerate(&mut self) {
        if !self.candidates.is_empty() {
            return;
        }
        let facts = UnitFacts::new(self.problem, &self.placer);
        let residents = if self.exhaustive { facts.all_residents() } else { facts.residents() };
        for (number, resident) in residents.iter().enumerate() {
            let streamed: Vec<bool> = resident.iter().map(|resident| !resident).collect();
            let stays = resident_bytes(&self.placer, resident);
            let rings = Rings::new(&facts, &streamed);
            let shapes = if self.exhaustive { rings.all_shapes() } else { rings.shapes() };
            let of = |shape: Shape| Candidate { bytes: stays + shape.ring, resident: number, shape };
            self.candidates.extend(shapes.into_iter().map(of));
        }
        self.residents = residents;
        for Choice { bytes, shape, resident, .. } in [self.smallest(), self.all_resident()] {
            // Without known compute, the smallest ring is not the fastest, because nothing is loaded ahead in it.
            if self.compute_ns > 0 || shape.ring == 0 {
                self.candidates.push(Candidate { bytes, resident: self.residents.len(), shape });
                self.residents.push(resident);
            }
        }
        self.candidates.sort_by_key(|candidate| std::cmp::Reverse((candidate.bytes, candidate.shape)));
    }

    /// Lower bound of the time with this many bytes.
    fn floor_ns(&self, bytes: u64) -> u64 {
        let streamed = self.scheduled_bytes.saturating_sub(bytes);
        self.least_ns.max((streamed as f64 * 1e9 / self.problem.bus.bytes_per_second) as u64)
    }

    fn simulate(&mut self, candidate: usize) -> Option<Choice> {
        if let Some(known) = self.simulated.get(&candidate) {
            return known.clone();
        }
        let Candidate { resident, shape, .. } = self.candidates[candidate];
        let mut evaluator = Evaluator::new(self.problem, &self.placer);
        let choice = evaluator.evaluate(&self.residents[resident], shape);
        self.evaluations += 1;
        self.simulated.insert(candidate, choice.clone());
        choice
    }

    /// Returns the layout with all units on the device, which copies nothing, if it fits.
    pub fn everything(&self, limit: u64) -> Option<Choice> {
        Some(self.all_resident()).filter(|choice| choice.bytes <= limit)
    }

    fn all_resident(&self) -> Choice {
        let resident = vec![true; self.problem.unit_bytes.len()];
        let bytes = resident_bytes(&self.placer, &resident);
        let shape = Shape { pattern: Pattern::Sequential, ring: 0, seam: 0 };
        Choice { time_ns: self.least_ns, bytes, shape, resident }
    }

    /// Returns the fastest layout found within the limit; among equally fast ones, the smallest.
    pub fn fastest(&mut self, limit: u64) -> Option<Choice> {
        self.enumerate();
        let mut best: Option<Choice> = None;
        let cannot_win = |floor: u64, best: &Option<Choice>| best.as_ref().is_some_and(|best| floor >= best.time_ns);
        // Refinement may make a slightly too large candidate fit.
        let reach = if self.exhaustive { 0 } else { self.placer.bytes.iter().copied().max().unwrap_or(0) };
        let first = self.candidates.partition_point(|candidate| candidate.bytes > limit.saturating_add(reach));
        let mut known = Vec::new();
        for candidate in first..self.candidates.len() {
            if cannot_win(self.floor_ns(self.candidates[candidate].bytes.min(limit)), &best) {
                break;
            }
            if let Some(choice) = self.simulate(candidate) {
                known.push((candidate, choice.clone()));
                if choice.bytes <= limit {
                    keep_better(&mut best, choice);
                }
            }
        }
        if self.exhaustive {
            return best;
        }
        // Candidates that no smaller one beats are refined. The choice must not depend on the limit either.
        let mut frontier = Vec::new();
        let mut least = u64::MAX;
        for (candidate, choice) in known.into_iter().rev() {
            if choice.time_ns < least {
                least = choice.time_ns;
                frontier.push(candidate);
            }
        }
        for candidate in frontier.into_iter().rev() {
            if cannot_win(self.floor_ns(self.candidates[candidate].bytes.min(limit)), &best) {
                break;
            }
            for choice in self.refine(candidate) {
                if choice.bytes <= limit {
                    keep_better(&mut best, choice.clone());
                }
            }
        }
        best
    }

    /// Returns a layout that is as fast and keeps more units on the device, if one exists.
    ///
    /// A forward over fewer inputs has less compute to hide copies behind, and the memory is allowed.
    pub fn most_resident(&mut self, limit: u64, best: Choice) -> Choice {
        let already = resident_bytes(&self.placer, &best.resident);
        let fitting = self.candidates.iter().enumerate().filter(|(_, candidate)| candidate.bytes <= limit);
        let mut more: Vec<_> = fitting
            .map(|(number, candidate)| {
                let stays = resident_bytes(&self.placer, &self.residents[candidate.resident]);
                (std::cmp::Reverse((stays, candidate.shape)), number)
            })
            .filter(|(std::cmp::Reverse((stays, _)), _)| *stays > already)
            .collect();
        more.sort_unstable();
        let step = more.len().div_ceil(MAX_TRIED_CANDIDATES).max(1);
        let as_fast = |choice: &Choice| choice.time_ns <= best.time_ns;
        more.into_iter().step_by(step).find_map(|(_, number)| self.simulate(number).filter(as_fast)).unwrap_or(best)
    }

    fn refine(&mut self, candidate: usize) -> &[Choice] {
        if !self.refined.contains_key(&candidate) {
            let mut found = Vec::new();
            if let Some(choice) = self.simulate(candidate) {
                let facts = UnitFacts::new(self.problem, &self.placer);
                let mut evaluator = Evaluator::new(self.problem, &self.placer);
                found = refine(&facts, &mut evaluator, choice, self.least_ns);
                self.evaluations += evaluator.evaluations;
            }
            self.refined.insert(candidate, found);
        }
        &self.refined[&candidate]
    }

    /// Returns the smallest layout found that is as good as the fastest one within the capacity.
    pub fn smallest_that_hides(&mut self, capacity: u64) -> Option<Choice> {
        let mut best = self.fastest(capacity)?;
        let target = (best.time_ns as f64 * TIME_TOLERANCE) as u64;
        let (mut too_small, mut enough) = (0, best.bytes);
        // A size whose lower bound is too slow is skipped.
        while enough > too_small + (enough / 256).max(512) {
            let middle = too_small + (enough - too_small) / 2;
            let found = if self.floor_ns(middle) > target { None } else { self.fastest(middle) };
            match found.filter(|choice| choice.time_ns <= target) {
                Some(choice) => {
                    enough = choice.bytes.min(middle);
                    best = choice;
                }
                None => too_small = middle,
            }
        }
        Some(best)
    }

    /// Returns the smallest ring in which the units of neighbouring points do not overlap, or a smaller ring if that does
    /// not fit.
    pub fn least(&mut self, capacity: u64) -> Option<Choice> {
        let facts = UnitFacts::new(self.problem, &self.placer);
        let resident = &self.problem.resident;
        let streamed: Vec<bool> = resident.iter().map(|resident| !resident).collect();
        let mut evaluator = Evaluator::new(self.problem, &self.placer);
        let rings = Rings::new(&facts, &streamed);
        let all = rings.all;
        let depths = [(2, Pattern::TwoEnded), (2, Pattern::Sequential), (1, Pattern::Sequential)];
        for (depth, pattern) in depths {
            let shape = rings.shape(pattern, depth);
            let found = if shape.ring >= all {
                evaluator.evaluate(&vec![true; resident.len()], Shape { ring: 0, ..shape })
            } else {
                evaluator.evaluate(resident, shape)
            };
            if let Some(choice) = found.filter(|choice| choice.bytes <= capacity) {
                return Some(choice);
            }
        }
        Some(self.smallest()).filter(|choice| choice.bytes <= capacity)
    }

    /// Returns the fastest layout in the memory of the smallest ring in which neighbours do not overlap.
    ///
    /// If units differ in size, that ring has room for more of the small ones.
    pub fn fastest_in_the_least(&mut self, capacity: u64) -> Option<Choice> {
        let mut best = self.least(capacity);
        if let Some(found) = best.as_ref().map(|least| least.bytes).and_then(|bytes| self.fastest(bytes)) {
            keep_better(&mut best, found);
        }
        best
    }

    /// Returns the smallest layout found.
    ///
    /// Units that several points share may need a larger ring than any point does.
    pub fn smallest(&self) -> Choice {
        let facts = UnitFacts::new(self.problem, &self.placer);
        let resident = &self.problem.resident;
        let streamed: Vec<bool> = resident.iter().map(|resident| !resident).collect();
        let rings = Rings::new(&facts, &streamed);
        let mut evaluator = Evaluator::new(self.problem, &self.placer);
        let mut shape = rings.shape(Pattern::Sequential, 1);
        while shape.ring < rings.all {
            if let Some(choice) = evaluator.evaluate(resident, shape) {
                return choice;
            }
            shape.ring += (shape.ring / 16).next_multiple_of(512).max(512);
        }
        self.all_resident()
    }

    /// Checks that the smallest layout fits into the limit.
    ///
    /// # Errors
    ///
    /// [`PlanError::TooSmall`], if it does not.
    pub fn must_fit(&self, limit: u64) -> Result<(), PlanError> {
        let needed = self.smallest().bytes;
        if needed <= limit {
            return Ok(());
        }
        let streamed: Vec<bool> = self.problem.resident.iter().map(|resident| !resident).collect();
        let resident = resident_bytes(&self.placer, &self.problem.resident);
        let (ring, point) = self.placer.least_ring(self.problem, &streamed);
        let point = point.filter(|_| ring + resident == needed);
        Err(PlanError::TooSmall { limit, needed, resident, point })
    }

    /// Returns the plan for a layout.
    pub fn plan_of(&self, choice: &Choice) -> Plan {
        let mut evaluator = Evaluator::new(self.problem, &self.placer);
        let settled = evaluator.evaluate(&choice.resident, choice.shape);
        let streamed_bytes = evaluator.program.copied_bytes;
        let resident_bytes = resident_bytes(&self.placer, &choice.resident);
        let placement = |(&stays, &placement): (&bool, &ByteRange)| if stays { None } else { Some(placement) };
        Plan {
            placements: choice.resident.iter().zip(&evaluator.placements).map(placement).collect(),
            resident: choice.resident.clone(),
            ring_bytes: choice.bytes - resident_bytes,
            resident_bytes,
            predicted_ns: settled.map_or(choice.time_ns, |settled| settled.time_ns),
            floor_ns: self.compute_ns.max(self.problem.bus.transfer_ns(streamed_bytes)),
            compute_ns: self.compute_ns,
            streamed_bytes,
        }
    }
}

fn keep_better(best: &mut Option<Choice>, choice: Choice) {
    if best.as_ref().is_none_or(|best| choice < *best) {
        *best = Some(choice);
    }
}
