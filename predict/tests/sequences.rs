//! Steps of different lengths, of a synthetic program.

use memlab_predict::allocator::{Card, Settings};
use memlab_predict::plan::{Family, FamilyError, Order, Recording, Sequence};

use crate::script::{MIB, Script};

const KIB: u64 = 1 << 10;

/// Weights of 40 MiB. Each step has scores that grow with the square of the length and live until the next step.
fn attention(length: u64, steps: usize) -> Recording {
    let mut program = Script::new();
    program.allocate(40 * MIB);
    let mut scores = None;
    for _ in 0..steps {
        let tokens = program.allocate(64 * KIB * length);
        if let Some(before) = scores.replace(program.allocate(KIB * length * length)) {
            program.free(before);
        }
        program.free(tokens);
        program.end_step();
    }
    program.recording
}

fn family() -> Family {
    Family::of_three([128, 512, 256].map(|length| (length, attention(length, 5)))).unwrap()
}

/// Returns the allocated peak: weights, tokens, and the scores of two consecutive steps.
fn most_allocated(lengths: &[u64]) -> u64 {
    let held = |scores: u64, length: u64| 40 * MIB + 64 * KIB * length + KIB * (scores * scores + length * length);
    let before = [0].into_iter().chain(lengths.iter().copied());
    std::iter::zip(before, lengths).map(|(before, length)| held(before, *length)).max().unwrap()
}

#[test]
fn a_length_that_was_not_recorded_is_met_to_the_byte() {
    // GIVEN recordings at three lengths, in any order
    let family = family();
    assert!(family.is_same_order && family.unmatched == 0);
    // THEN every request has its size at other lengths
    for length in [64, 300, 384, 1024] {
        let sizes: Vec<u64> = attention(length, 5).allocations.iter().map(|allocation| allocation.size).collect();
        assert_eq!(family.sizes(Some(length)), sizes);
    }
    // AND equal lengths are refused
    let refused = Family::of_three([128, 512, 512].map(|length| (length, attention(length, 5)))).err();
    assert_eq!(refused, Some(FamilyError::SameBatch(512)));
}

#[test]
fn each_step_has_its_length() {
    // GIVEN sequences that are shorter and longer than the recordings
    let family = family();
    for lengths in [vec![200], vec![300, 200], vec![64, 500, 480, 64, 100, 490, 495, 30], vec![512; 9]] {
        // WHEN they are replayed
        let sequence = Sequence::new(&family, lengths.iter().copied()).unwrap();
        let run = sequence.run(&lengths, &Settings::default(), Card::UNLIMITED);
        // THEN the peak is that of the two largest consecutive steps; the allocator may leave a MiB of each block
        // unsplit
        let spare = run.counters.allocated.peak.checked_sub(most_allocated(&lengths)).unwrap();
        assert!(spare <= 4 * MIB, "{lengths:?}: {spare}");
    }
}

#[test]
fn ascending_lengths_reserve_more_and_expandable_segments_less() {
    // GIVEN lengths with small differences
    let family = family();
    let lengths: Vec<u64> = (0..60).map(|step| 200 + 5 * ((step * 37) % 60)).collect();
    let reserved = |order: Order, settings: &str| {
        let lengths = order.of(&lengths);
        let sequence = Sequence::new(&family, lengths.iter().copied()).unwrap();
        let run = sequence.run(&lengths, &Settings::parse(settings).unwrap(), Card::UNLIMITED);
        run.counters.reserved.peak
    };
    // THEN in ascending order, each step takes a new segment, because the earlier ones are too small
    assert!(reserved(Order::Ascending, "") > 3 * reserved(Order::Given, ""));
    // AND expandable segments need none
    assert!(reserved(Order::Ascending, "expandable_segments:True") < reserved(Order::Given, ""));
}

#[test]
fn the_smallest_card_has_room_for_all_steps() {
    let family = family();
    let lengths = Order::Ascending.of(&[64, 500, 480, 64, 100, 490, 495, 30]);
    let sequence = Sequence::new(&family, lengths.iter().copied()).unwrap();
    // GIVEN the needs of the sequence beside 100 MiB of others
    let needs = sequence.needs(&lengths, &Settings::default(), 100 * MIB);
    let on =
        |memory: u64| sequence.run(&lengths, &Settings::default(), Card::with_available(memory, memory - 100 * MIB));
    // THEN it runs on a card of that size, by giving back unused memory, and fails with 2 MiB less
    let enough = on(needs.least);
    assert_eq!(enough.failed_in, None);
    assert!(enough.counters.retries > 0 && needs.least < needs.endless.counters.reserved.peak + 100 * MIB);
    assert!(on(needs.least - 2 * MIB).failed_in.is_some());
}

#[test]
fn steps_that_differ_cannot_be_continued() {
    let mut program = Script::new();
    for step in 0..5 {
        let temporary = program.allocate((40 + step) * MIB);
        program.free(temporary);
        program.end_step();
    }
    assert!(Sequence::new(&Family::of_one(program.recording), [1]).is_none());
}
