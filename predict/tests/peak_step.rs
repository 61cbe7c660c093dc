//! The step with the peak, request by request.

use memlab_predict::plan::Recording;
use memlab_trace::Category;
use memlab_trace::record::Flags;

use crate::script::{MIB, Script};

/// Weights of 10 MiB, and steps in which four activations of `of_step` MiB are made and freed in reverse.
fn training(of_step: &[u64]) -> Recording {
    let mut program = Script::new();
    program.allocate(10 * MIB);
    for size in of_step {
        let first = program.recording.allocations.len();
        let activations: Vec<u32> = (0..4).map(|_| program.allocate(size * MIB)).collect();
        for (number, allocation) in program.recording.allocations[first..].iter_mut().enumerate() {
            allocation.category = Category::Activation;
            allocation.stack = 1 + number as u32;
            allocation.flags = Flags(1);
        }
        activations.into_iter().rev().for_each(|id| program.free(id));
        program.end_step();
    }
    program.recording
}

#[test]
fn the_step_with_the_peak_is_shown_request_by_request() {
    // GIVEN three steps, of which the second needs most
    let step = training(&[3, 5, 4]).peak_step(100).unwrap();
    // THEN it has a point for each of its requests, with the memory of its categories
    assert_eq!(step.step, Some(1));
    let allocated: Vec<u64> = step.buckets.iter().map(|bucket| bucket.allocated / MIB).collect();
    assert_eq!(allocated, [15, 20, 25, 30, 25, 20, 15, 10]);
    let activations = |index: usize| step.buckets[index].categories[Category::Activation as usize] / MIB;
    assert_eq!([activations(0), activations(3), activations(7)], [5, 20, 0]);
    // AND the stacks that hold it
    let mut stacks = step.stacks[2].clone();
    stacks.sort_unstable();
    assert_eq!(stacks, [(0, 10 * MIB), (1, 5 * MIB), (2, 5 * MIB), (3, 5 * MIB)]);
}

#[test]
fn a_point_of_several_requests_has_their_peak() {
    let step = training(&[3, 5, 4]).peak_step(3).unwrap();
    let allocated: Vec<u64> = step.buckets.iter().map(|bucket| bucket.allocated / MIB).collect();
    assert_eq!(allocated, [25, 30, 15]);
    assert_eq!(step.stacks.len(), 3);
}

#[test]
fn a_run_without_steps_shows_its_pass() {
    // GIVEN a program that never ends a step, with three passes
    let mut recording = training(&[3, 5, 4]);
    recording.steps.clear();
    recording.passes = vec![1, 9, 17];
    // THEN the pass with the peak is shown
    let step = recording.peak_step(100).unwrap();
    assert_eq!((step.step, step.buckets.len(), step.buckets[3].allocated), (None, 8, 30 * MIB));
}

#[test]
fn a_few_requests_have_no_picture() {
    assert!(training(&[]).peak_step(100).is_none());
    assert!(Script::new().recording.peak_step(100).is_none());
}
