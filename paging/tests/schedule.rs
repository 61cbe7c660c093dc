//! Order and timing of copies, on clocks instead of a device: exactly as predicted.

use std::sync::Arc;

use crate::common::clock::Clock;
use crate::common::model::{GRAIN, Model, models_in_order};
use crate::common::{enter, leave};
use memlab_paging::{Arena, Pipeline, Stream};
use proptest::prelude::*;

const READER: Stream = Stream(1);
/// Address of the clocks' device memory.
const DEVICE: u64 = 1 << 40;

fn pipeline(model: &Model) -> (Arc<Clock>, Arc<Arena>, Pipeline) {
    let clock = Arc::new(Clock::default());
    let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
    let pipeline = Pipeline::with_backend(Arc::clone(&arena), clock.clone()).unwrap();
    // SAFETY: clocks do not write.
    unsafe { pipeline.configure(model.configuration(DEVICE), READER) }.unwrap();
    (clock, arena, pipeline)
}

/// Result of a run on the clocks.
struct Run {
    /// Start and end of the compute of each point, since the configuration.
    times: Vec<(u64, u64)>,
    /// Units of the ring, in the order of their copies.
    copied: Vec<u32>,
    clock: Arc<Clock>,
}

/// Runs complete forwards.
fn run(model: &Model, forwards: usize) -> Run {
    let (clock, arena, pipeline) = pipeline(model);
    let residents: u64 = (0..model.bytes.len()).filter(|&u| model.places[u].is_none()).map(|u| model.bytes[u]).sum();
    let mut session = pipeline.session();
    let mut times = Vec::new();
    for _ in 0..forwards {
        for (point, units) in model.points.iter().enumerate() {
            enter(&mut session, model.keys[point], READER).unwrap();
            let ranges: Vec<_> = (units.iter())
                .map(|&unit| {
                    let of = arena.address() + model.arena_offset(unit);
                    (DEVICE + model.device_offset(unit), of, model.bytes[unit as usize])
                })
                .collect();
            let (begin, end) = clock.compute(READER, model.compute[point], &ranges);
            times.push((begin - residents, end - residents));
        }
        leave(&mut session, READER).unwrap();
    }
    let counters = pipeline.counters();
    assert_eq!((counters.forwards, counters.out_of_order), (forwards as u64, 0));
    let units = 0..model.bytes.len() as u32;
    let unit_at = |from: u64| units.clone().rfind(|&unit| arena.address() + model.arena_offset(unit) <= from).unwrap();
    let mut copied = clock.copies().iter().map(|copy| unit_at(copy.transfer.from)).collect::<Vec<_>>();
    copied.retain(|&unit| model.places[unit as usize].is_some());
    copied.dedup(); // Pieces.
    Run { times, copied, clock }
}

/// Computes `end_copy(j) = max(end_copy(j-1), slot_free(j)) + b_j/BW; start(j) = max(end(j-1), end_copy(j))`.
///
/// Units that are still loaded are not copied. A place is free when the last compute on its units has ended.
fn recurrence(model: &Model, forwards: usize) -> (Vec<(u64, u64)>, Vec<u32>) {
    let units = model.bytes.len();
    let mut loaded: Vec<bool> = model.places.iter().map(Option::is_none).collect();
    let mut ready = vec![0; units];
    let mut last_use_end = vec![0; units];
    let (mut end_copy, mut end) = (0, 0);
    let (mut times, mut copied) = (Vec::new(), Vec::new());
    for _ in 0..forwards {
        for (point, needed) in model.points.iter().enumerate() {
            let mut start = end;
            for &unit in needed {
                if !loaded[unit as usize] {
                    // Time when each grain of the place is free.
                    let mut free = vec![0; (model.bytes[unit as usize] / GRAIN) as usize];
                    for other in (0..units as u32).filter(|&other| model.overlap(unit, other)) {
                        let (at, bytes) = (model.places[other as usize].unwrap(), model.bytes[other as usize]);
                        for (grain, free) in
                            (model.places[unit as usize].unwrap()..).step_by(GRAIN as usize).zip(&mut free)
                        {
                            if at <= grain && grain < at + bytes {
                                *free = last_use_end[other as usize].max(*free);
                            }
                        }
                        loaded[other as usize] = false;
                    }
                    free.sort_unstable();
                    let last = free[free.len() - 1];
                    for free in free {
                        let slot_free = if model.least_piece == GRAIN { free } else { last };
                        end_copy = end_copy.max(slot_free) + GRAIN;
                    }
                    loaded[unit as usize] = true;
                    ready[unit as usize] = end_copy;
                    copied.push(unit);
                }
                start = start.max(ready[unit as usize]);
            }
            end = start + model.compute[point];
            needed.iter().for_each(|&unit| last_use_end[unit as usize] = end);
            times.push((start, end));
        }
    }
    (times, copied)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn times_are_those_of_the_recurrence(model in models_in_order()) {
        // GIVEN any model whose units are copied whole, or each part as soon as it is free, WHEN forwards run in order
        let run = run(&model, 4);
        // THEN each point's compute starts and ends exactly when the recurrence predicts
        let (times, copied) = recurrence(&model, 4);
        prop_assert_eq!(&run.times, &times);
        // AND copies follow its order, none unnecessary; beyond them only the first units of the next forward
        let (_, more) = recurrence(&model, 6);
        prop_assert!(run.copied.starts_with(&copied));
        prop_assert!(more.starts_with(&run.copied));
        // AND each reader saw only its own bytes.
        run.clock.assert_all_reads_right();
    }
}

/// `layers` of equal size, all but the `residents` streamed through two slots, each computing `compute` per copy of
/// 1000.
fn layers(layers: u32, residents: impl Fn(u32) -> bool, compute: u64) -> Model {
    let mut slot = 0;
    let place = |layer| {
        (!residents(layer)).then(|| {
            slot += 1;
            (slot % 2) * 1000
        })
    };
    Model {
        bytes: vec![1000; layers as usize],
        places: (0..layers).map(place).collect(),
        ring_bytes: 2000,
        points: (0..layers).map(|layer| vec![layer]).collect(),
        keys: (0..i64::from(layers)).collect(),
        lookahead: None,
        least_piece: 0,
        compute: vec![compute; layers as usize],
    }
}

/// Steady-state time of a forward, in copies.
fn steady(model: &Model) -> f64 {
    let times = run(model, 6).times;
    let points = model.points.len();
    (times[6 * points - 1].1 - times[5 * points - 1].1) as f64 / 1000.0
}

#[test]
fn the_time_of_a_forward_is_that_of_the_reference_table() {
    // GIVEN 32 equal layers and two slots, WHEN the residents are spread evenly, THEN a forward takes the time in the table
    // of the reference.
    assert_eq!(steady(&layers(32, |layer| layer % 4 != 3, 250)), 8.0);
    assert_eq!(steady(&layers(32, |layer| layer % 2 != 1, 500)), 16.0);
    assert_eq!(steady(&layers(32, |layer| layer % 4 == 3, 750)), 26.0);
    assert_eq!(steady(&layers(32, |_| false, 1000)), 32.0);
    // WHEN the residents lead, THEN it takes longer, as in the table.
    assert_eq!(steady(&layers(32, |layer| layer < 24, 250)), 12.5);
    assert_eq!(steady(&layers(32, |layer| layer < 16, 500)), 23.0);
    assert_eq!(steady(&layers(32, |layer| layer < 8, 750)), 29.5);
}

#[test]
fn the_end_of_a_forward_loads_the_start_of_the_next() {
    // GIVEN four layers in two slots, WHEN one forward has ended
    let model = layers(4, |_| false, 1000);
    let (clock, _arena, pipeline) = pipeline(&model);
    let mut session = pipeline.session();
    for key in 0..4 {
        enter(&mut session, key, READER).unwrap();
        clock.compute(READER, 1000, &[]);
    }
    leave(&mut session, READER).unwrap();
    // THEN six units have been copied: the next forward finds its first two.
    assert_eq!(clock.copies().len(), 6);
    assert_eq!(pipeline.counters().on_demand, 0);
}

#[test]
fn the_lookahead_is_limited() {
    // GIVEN eight layers that would all fit, WHEN the lookahead is two
    let mut model = layers(8, |_| false, 1000);
    model.ring_bytes = 8000;
    model.places = (0..8).map(|layer| Some(layer * 1000)).collect();
    model.lookahead = Some(2);
    let (clock, _arena, pipeline) = pipeline(&model);
    let mut session = pipeline.session();
    enter(&mut session, 0, READER).unwrap();
    // THEN the first point loads three units, and each later point one more
    assert_eq!(clock.copies().len(), 3);
    enter(&mut session, 1, READER).unwrap();
    assert_eq!(clock.copies().len(), 4);
    // WHEN it is zero, THEN only required units are loaded.
    model.lookahead = Some(0);
    leave(&mut session, READER).unwrap();
    // SAFETY: clocks do not write.
    unsafe { pipeline.configure(model.configuration(DEVICE), READER) }.unwrap();
    let before = clock.copies().len();
    enter(&mut session, 0, READER).unwrap();
    leave(&mut session, READER).unwrap();
    assert_eq!(clock.copies().len(), before + 1);
}

#[test]
fn units_evicted_out_of_order_are_loaded_ahead_again() {
    // GIVEN nine layers in a ring for three, the first in use and the next two loaded ahead
    let mut model = layers(9, |_| false, 1000);
    (model.ring_bytes, model.places) = (3000, (0..9).map(|layer| Some(layer % 3 * 1000)).collect());
    let (_clock, _arena, pipeline) = pipeline(&model);
    let mut session = pipeline.session();
    (0..9).for_each(|key| drop(enter(&mut session, key, READER).unwrap()));
    leave(&mut session, READER).unwrap();
    let on_demand = || pipeline.counters().on_demand;
    enter(&mut session, 0, READER).unwrap();
    // WHEN another layer evicts one of them, THEN that layer is loaded on demand, and the evicted one is loaded ahead again
    enter(&mut session, 1008, READER).unwrap();
    assert_eq!(on_demand(), 1);
    (1..4).for_each(|key| drop(enter(&mut session, key, READER).unwrap()));
    assert_eq!(on_demand(), 1);
    // WHEN a point is skipped, THEN the next ones are loaded ahead
    (5..8).for_each(|key| drop(enter(&mut session, key, READER).unwrap()));
    assert_eq!(on_demand(), 1);
    // WHEN the whole ring is invalidated, THEN only the next layer is loaded on demand, and none of the next forward.
    pipeline.invalidate();
    enter(&mut session, 8, READER).unwrap();
    leave(&mut session, READER).unwrap();
    (0..9).for_each(|key| drop(enter(&mut session, key, READER).unwrap()));
    assert_eq!(on_demand(), 2);
}

#[test]
fn units_evicted_by_another_thread_are_loaded_ahead_again() {
    // GIVEN a thread in a resident layer, with three more layers loaded ahead, and a fifth in the place of the third
    let mut model = layers(5, |_| false, 1000);
    (model.ring_bytes, model.places) = (3000, vec![None, Some(0), Some(1000), Some(2000), Some(1000)]);
    let (_clock, _arena, pipeline) = pipeline(&model);
    let (mut session, mut other) = (pipeline.session(), pipeline.session());
    enter(&mut session, 0, READER).unwrap();
    leave(&mut session, READER).unwrap();
    enter(&mut session, 0, READER).unwrap();
    // WHEN another thread, at the fourth, has loaded the fifth ahead, THEN the first thread still finds the third.
    enter(&mut other, 3, READER).unwrap();
    enter(&mut session, 1, READER).unwrap();
    enter(&mut session, 2, READER).unwrap();
    assert_eq!(pipeline.counters().on_demand, 0);
}
