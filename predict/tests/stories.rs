//! Plans of synthetic programs, whose figures can be computed by hand.

use memlab_predict::allocator::{Card, Settings};
use memlab_predict::plan::{Family, FamilyError, Program, Recording, Search, Steadiness};
use memlab_trace::record::Flags;

use crate::script::{MIB, Script};

/// Weights of 30 MiB. Each step has a batch of 12 MiB per sample, and a result that lives until the next step.
fn training(batch: u64, steps: usize) -> Recording {
    let mut program = Script::new();
    program.allocate(30 * MIB);
    let mut result = None;
    for _ in 0..steps {
        let activations = program.allocate(12 * MIB * batch);
        let next = program.allocate(11 * MIB);
        if let Some(result) = result.replace(next) {
            program.free(result);
        }
        program.free(activations);
        program.end_step();
    }
    program.recording
}

fn family() -> Family {
    Family::of_two((4, training(4, 5)), (2, training(2, 5))).unwrap()
}

#[test]
fn two_batches_give_every_other() {
    // GIVEN recordings at batch 2 and 4, in either order
    let family = family();
    assert!(family.is_same_order && family.unmatched == 0);
    assert_eq!(family.recorded_batches(), Some((2, 4)));
    // WHEN batch 10 is planned
    let planned = family.run(&family.sizes(Some(10)), &Settings::default(), Card::UNLIMITED);
    // THEN its peak is weights, batch and two results, in separate segments. (The 12 MiB of a result's segment are not
    // split.)
    assert_eq!(planned.counters.allocated.peak, (30 + 120 + 2 * 12) * MIB);
    assert_eq!(planned.counters.reserved.peak, (30 + 120 + 2 * 12) * MIB);
    assert!(matches!(planned.steadiness, Steadiness::After(_)));
}

#[test]
fn the_smallest_card_runs_it_and_a_smaller_one_does_not() {
    // GIVEN the needs of batch 10 beside 100 MiB for the context
    let family = family();
    let search = Search::new(&family, Settings::default(), 100 * MIB);
    let least = search.needs(Some(10)).least;
    // THEN that is enough, and 2 MiB less is not
    assert!(search.fits(Some(10), least) && !search.fits(Some(10), least - 2 * MIB));
    // AND 10 is the largest batch for such a card
    assert_eq!(search.largest_batch(least), 10);
    assert_eq!(search.largest_batch(least + 12 * MIB), 11);
    assert_eq!(search.largest_batch(100 * MIB), 0);
}

#[test]
fn growth_of_each_step_is_reported() {
    // GIVEN steps that each keep 3 MiB
    let mut program = Script::new();
    for _ in 0..5 {
        let temporary = program.allocate(40 * MIB);
        program.allocate(3 * MIB);
        program.free(temporary);
        program.end_step();
    }
    let family = Family::of_one(program.recording);
    // THEN the plan reports the growth
    let planned = family.run(&family.sizes(None), &Settings::default(), Card::UNLIMITED);
    assert_eq!(planned.steadiness, Steadiness::Grows(3 * MIB));
}

#[test]
fn memory_kept_for_two_steps_is_freed_in_every_repetition() {
    // GIVEN steps that free memory allocated two steps earlier: a loss that a logger holds
    let mut program = Script::new();
    let mut losses = Vec::new();
    for step in 0..6 {
        let temporary = program.allocate(40 * MIB);
        losses.push(program.allocate(3 * MIB));
        program.free(temporary);
        if step >= 2 {
            program.free(losses[step - 2]);
        }
        program.end_step();
    }
    let family = Family::of_one(program.recording);
    // THEN no step keeps more, and the peak is that of the steps
    let planned = family.run(&family.sizes(None), &Settings::default(), Card::UNLIMITED);
    assert!(matches!(planned.steadiness, Steadiness::After(_)));
    assert_eq!(planned.counters.allocated.peak, 49 * MIB);
}

#[test]
fn steps_that_differ_are_not_repeated() {
    // GIVEN steps of different sizes
    let mut program = Script::new();
    for step in 0..5 {
        let temporary = program.allocate((40 + step) * MIB);
        program.free(temporary);
        program.end_step();
    }
    let family = Family::of_one(program.recording);
    // THEN the plan covers only the recording
    let planned = family.run(&family.sizes(None), &Settings::default(), Card::UNLIMITED);
    assert_eq!(planned.steadiness, Steadiness::Unknown);
    assert_eq!(planned.counters.allocated.peak, 44 * MIB);
}

#[test]
fn two_optimizers_that_take_turns_are_one_period() {
    // GIVEN two alternating kinds of steps
    let mut program = Script::new();
    for step in 0..10 {
        let temporary = program.allocate(if step % 2 == 0 { 40 * MIB } else { 70 * MIB });
        program.free(temporary);
        program.end_step();
    }
    let family = Family::of_one(program.recording);
    // THEN they repeat
    let planned = family.run(&family.sizes(None), &Settings::default(), Card::UNLIMITED);
    assert!(matches!(planned.steadiness, Steadiness::After(_)));
}

#[test]
fn the_peak_names_what_is_held() {
    // GIVEN batch 10
    let family = family();
    let sizes = family.sizes(Some(10));
    let planned = family.run(&sizes, &Settings::default(), Card::UNLIMITED);
    // WHEN its peak is examined
    let peak = family.peak(&planned, &sizes, &Settings::default());
    // THEN the blocks held at the peak sum up to its allocated bytes
    assert_eq!(peak.allocated, planned.counters.allocated.peak);
    assert_eq!(peak.categories.len(), 1);
    assert_eq!((peak.categories[0].1.bytes, peak.categories[0].1.blocks), (peak.allocated, 4));
}

#[test]
fn recordings_of_different_programs_are_refused() {
    // GIVEN two programs with nothing in common
    let mut other = Script::new();
    for _ in 0..40 {
        let temporary = other.allocate(MIB);
        other.recording.allocations[temporary as usize].flags = Flags(3);
        other.free(temporary);
    }
    // THEN they are no family
    let refused = Family::of_two((2, training(2, 5)), (4, other.recording)).err();
    assert!(matches!(refused, Some(FamilyError::TooDifferent { .. })), "{refused:?}");
    assert_eq!(Family::of_two((2, training(2, 5)), (2, training(2, 5))).err(), Some(FamilyError::SameBatch(2)));
}

#[test]
fn requests_of_only_the_larger_batch_are_counted() {
    // GIVEN a request that only the larger batch makes
    let low = training(2, 5);
    let mut program = Script::new();
    program.allocate(30 * MIB);
    for _ in 0..5 {
        let extra = program.allocate(5 * MIB);
        program.recording.allocations[extra as usize].flags = Flags(2);
        let activations = program.allocate(48 * MIB);
        let result = program.allocate(11 * MIB);
        for id in [extra, activations, result] {
            program.free(id);
        }
        program.end_step();
    }
    let family = Family::of_two((2, low), (4, program.recording)).unwrap();
    // THEN it keeps its size, and is reported
    assert_eq!((family.unmatched, family.unmatched_bytes), (5, 5 * MIB));
    let planned = family.run(&family.sizes(Some(8)), &Settings::default(), Card::UNLIMITED);
    assert_eq!(planned.counters.allocated.peak, (30 + 5 + 96 + 11) * MIB);
}

#[test]
fn results_that_depend_on_addresses_are_ranges() {
    // GIVEN two segments with 8 MiB in use and 12 MiB free, and a request of 8 MiB that fits both
    let mut program = Script::new();
    let [first, first_rest, _second, second_rest] = [8, 11, 8, 11].map(|size| program.allocate(size * MIB));
    program.free(first_rest);
    program.free(second_rest);
    program.allocate(8 * MIB);
    // Then 20 MiB, for which the first segment has room if the request went to the second.
    program.free(first);
    program.allocate(20 * MIB);
    let family = Family::of_one(program.recording);
    // WHEN it is planned for a PyTorch that compares addresses, one with a single address range, and one that ignores
    // addresses
    let range = |settings: &str, version| {
        let search = Search::new(&family, Settings::parse(settings).unwrap().for_torch(version), 0);
        let range = search.reserved_range(None, &search.needs(None).planned);
        (range.start() / MIB, range.end() / MIB)
    };
    // THEN only the first has a range
    assert_eq!(range("", (2, 12)), (40, 60));
    assert_eq!(range("", (2, 13)), (60, 60));
    let (least, most) = range("expandable_segments:True", (2, 12));
    assert_eq!(least, most);
}

/// As `training`, but each step begins with another request, which is freed before the batch comes.
fn training_with_scratch(batch: u64, sample: u64) -> Recording {
    let mut program = Script::new();
    program.allocate(30 * MIB);
    for _ in 0..5 {
        let scratch = program.allocate(5 * MIB);
        program.recording.allocations[scratch as usize].flags = Flags(2);
        program.free(scratch);
        let activations = program.allocate(sample * MIB * batch);
        let result = program.allocate(11 * MIB);
        program.free(activations);
        program.free(result);
        program.end_step();
    }
    program.recording
}

#[test]
fn larger_recordings_decide_if_kernels_change_between_the_smaller_ones() {
    // GIVEN batch 2, and batch 4 and 64 with an additional request, where samples grow differently
    let low = Family::of_two((2, training(2, 5)), (4, training_with_scratch(4, 16))).unwrap();
    assert!(!low.is_same_order);
    let mut program = Program::new(low);
    program.add_beyond(program.last().beyond((64, training_with_scratch(64, 16))).unwrap());
    // THEN batch 5 is one with the additional request
    let search = Search::new(&program, Settings::default(), 0);
    let allocated = |batch| search.needs(Some(batch)).planned.counters.allocated.peak / MIB;
    assert_eq!([allocated(4), allocated(5)], [30 + 16 * 4 + 11, 30 + 16 * 5 + 11]);
}

#[test]
fn of_several_recordings_the_nearest_are_used() {
    // GIVEN recordings at batch 2 and 4, at 64, where each sample needs 1 MiB more, and at 1
    let mut large = training(64, 5);
    for allocation in large.allocations.iter_mut().filter(|allocation| allocation.size == 12 * 64 * MIB) {
        allocation.size += 64 * MIB;
    }
    let mut program = Program::of_recordings(vec![(64, large), (2, training(2, 5)), (4, training(4, 5))]).unwrap();
    program.add_single(1, Family::of_one(training(1, 5)));
    assert_eq!(program.recorded_batches(), [1, 2, 4, 64]);
    // THEN recorded batches are exact, and so are those near them: halfway from 4 to 64 is 16
    let search = Search::new(&program, Settings::default(), 0);
    let reserved = |batch| search.needs(Some(batch)).planned.counters.reserved.peak / MIB;
    let exact = |batch: u64, sample: u64| 30 + sample * batch + 24;
    assert_eq!([reserved(1), reserved(4), reserved(16)], [exact(1, 12), exact(4, 12), exact(16, 12)]);
    assert_eq!(reserved(64), exact(64, 13));
    // AND beyond it, samples grow as between the larger two
    assert!(reserved(124) > exact(124, 13));
    assert!(!program.is_far(8 * 64) && program.is_far(8 * 64 + 1));
    // AND one recording is too few
    assert_eq!(Program::of_recordings(vec![(4, training(4, 5))]).err(), Some(FamilyError::TooFew));
}
