//! Real bytes on the host: with any order of points, a held unit has the bytes of the arena.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::model::{Model, models};
use crate::common::{enter, leave};
use memlab_paging::backend::{Host, host};
use memlab_paging::{Arena, Backend, DeviceMemory, Pipeline, Session, Stream, Transfer};
use parking_lot::Mutex;
use proptest::prelude::*;

const STREAM: Stream = Stream(0);

/// A clock that only tests advance.
struct Clock(Mutex<Instant>);

impl Clock {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Instant::now())))
    }

    fn advance(&self, milliseconds: u64) {
        *self.0.lock() += Duration::from_millis(milliseconds);
    }
}

impl host::Clock for Clock {
    fn now(&self) -> Instant {
        *self.0.lock()
    }

    fn skip_to(&self, time: Instant) -> bool {
        let mut now = self.0.lock();
        *now = time.max(*now);
        true
    }
}

/// A pipeline, and the expected bytes of its units.
struct Fixture {
    model: Model,
    /// Dropped before the memory that it writes to.
    pipeline: Pipeline,
    arena: Arc<Arena>,
    device: DeviceMemory,
    weights: Vec<Vec<u8>>,
}

impl Fixture {
    fn new(model: &Model) -> Self {
        Self::on(model, Host::new(None).unwrap())
    }

    fn on(model: &Model, host: Host) -> Self {
        let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
        let device = DeviceMemory::new(None, model.device_bytes()).unwrap();
        let pipeline = Pipeline::with_backend(Arc::clone(&arena), Arc::new(host)).unwrap();
        let weights = model
            .bytes
            .iter()
            .enumerate()
            .map(|(unit, &bytes)| (0..bytes).map(|at| (unit * 40) as u8 ^ at as u8).collect())
            .collect();
        let fixture = Self { model: model.clone(), arena, device, pipeline, weights };
        (0..fixture.weights.len()).for_each(|unit| fixture.fill(unit));
        // SAFETY: the memory is dropped after the pipeline.
        unsafe { fixture.pipeline.configure(model.configuration(fixture.device.address()), STREAM) }.unwrap();
        fixture
    }

    fn fill(&self, unit: usize) {
        let weights = &self.weights[unit];
        let offset = self.model.arena_offset(unit as u32);
        // SAFETY: the vector outlives the call and is not written to.
        unsafe { self.arena.fill(offset, weights.as_ptr() as u64, weights.len() as u64) }.unwrap();
    }

    fn assert_is_there(&self, unit: u32) {
        let mut bytes = vec![0; self.weights[unit as usize].len()];
        self.device.read(self.model.device_offset(unit), &mut bytes).unwrap();
        assert_eq!(bytes, self.weights[unit as usize], "unit {unit} of {:?}", self.model);
    }
}

/// An action of a thread.
#[derive(Clone, Debug)]
enum Action {
    /// The next point in order.
    Next,
    /// Any point, or a key outside the schedule.
    Jump(usize),
    Fallback(usize),
    Leave,
    /// The weights of a unit change.
    Edit(usize),
    Invalidate,
    OtherStream,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        20 => Just(Action::Next),
        3 => any::<usize>().prop_map(Action::Jump),
        2 => any::<usize>().prop_map(Action::Fallback),
        2 => Just(Action::Leave),
        2 => any::<usize>().prop_map(Action::Edit),
        1 => Just(Action::Invalidate),
        1 => Just(Action::OtherStream),
    ];
    prop::collection::vec(action, 1..60)
}

/// A simple reference implementation of the rules: the point of a key, and the units that change.
#[derive(Default)]
struct Reference {
    position: Option<usize>,
    held: Vec<u32>,
    out_of_order: u64,
}

impl Reference {
    fn enter(&mut self, model: &Model, key: i64) -> (Vec<u32>, Vec<u32>) {
        let points = model.points.len();
        let begin = self.position.map_or(0, |position| position + 1);
        let found = (begin..begin + points).map(|point| point % points).find(|&point| model.keys[point] == key);
        let needed = match found {
            Some(point) => {
                self.out_of_order += u64::from(point != begin % points && self.position != Some(point));
                self.position = Some(point);
                model.points[point].clone()
            }
            None => model.fallback().into_iter().find(|(fallback, _)| *fallback == key).unwrap().1,
        };
        let without = |these: &[u32], those: &[u32]| -> Vec<u32> {
            these.iter().filter(|unit| !those.contains(unit)).copied().collect()
        };
        let change = (without(&self.held, &needed), without(&needed, &self.held));
        self.held = needed;
        change
    }
}

fn sorted(mut units: Vec<u32>) -> Vec<u32> {
    units.sort_unstable();
    units
}

fn perform(fixture: &mut Fixture, session: &mut Session, actions: &[Action]) {
    let model = fixture.model.clone();
    let mut reference = Reference::default();
    let mut stream = STREAM;
    for action in actions {
        let key = match action {
            Action::Next => Some(model.keys[reference.position.map_or(0, |point| (point + 1) % model.keys.len())]),
            Action::Jump(point) => Some(model.keys[point % model.keys.len()]),
            Action::Fallback(unit) => Some(1000 + (unit % model.bytes.len()) as i64),
            Action::Leave => {
                assert_eq!(sorted(leave(session, stream).unwrap()), sorted(std::mem::take(&mut reference.held)));
                reference.position = None;
                None
            }
            Action::Edit(unit) => {
                let unit = unit % model.bytes.len();
                fixture.weights[unit].iter_mut().for_each(|byte| *byte = byte.wrapping_add(50));
                fixture.fill(unit);
                fixture.pipeline.reload(unit as u32, stream).unwrap();
                None
            }
            // Only between forwards: units held during a forward would stay stale.
            Action::Invalidate => {
                fixture.pipeline.invalidate();
                None
            }
            Action::OtherStream => {
                stream = Stream(1 - stream.0);
                None
            }
        };
        if let Some(key) = key {
            let expected = reference.enter(&model, key);
            let (released, acquired) = enter(session, key, stream).unwrap().unwrap_or_default();
            assert_eq!((sorted(released), acquired), (sorted(expected.0), expected.1));
        }
        reference.held.iter().for_each(|&unit| fixture.assert_is_there(unit));
    }
    assert_eq!(fixture.pipeline.counters().out_of_order, reference.out_of_order);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn held_units_are_right_in_any_order(model in models(), actions in actions()) {
        // GIVEN any model, WHEN a thread enters points in any order, edits weights and aborts forwards, THEN after each
        // step the held units have the arena's bytes, and the reported changes are exact.
        let mut fixture = Fixture::new(&model);
        let mut session = fixture.pipeline.session();
        perform(&mut fixture, &mut session, &actions);
        // AND a forward in order is right afterwards.
        leave(&mut session, STREAM).unwrap();
        for (&key, units) in model.keys.iter().zip(&model.points) {
            let target = units.clone();
            enter(&mut session, key, STREAM).unwrap();
            if model.keys.iter().filter(|&&other| other == key).count() == 1 {
                target.iter().for_each(|&unit| fixture.assert_is_there(unit));
            }
        }
        leave(&mut session, STREAM).unwrap();
    }
}

/// Six layers, one of them resident, in a ring for two.
fn six_layers() -> Model {
    Model {
        bytes: vec![128; 6],
        places: vec![Some(0), Some(128), None, Some(0), Some(128), Some(0)],
        ring_bytes: 256,
        points: (0..6).map(|layer| vec![layer]).collect(),
        keys: (0..6).collect(),
        lookahead: None,
        least_piece: 0,
        compute: vec![0; 6],
    }
}

#[test]
fn neighbours_that_share_a_part_of_their_places_are_no_surprise() {
    // GIVEN six layers that alternate between both ends of a ring for one and a half
    let model = Model {
        places: [0, 64].repeat(3).into_iter().map(Some).collect(),
        ring_bytes: 192,
        least_piece: 64,
        ..six_layers()
    };
    let fixture = Fixture::new(&model);
    let mut session = fixture.pipeline.session();
    let forward = |session: &mut Session, keys: &[i64]| {
        for &key in keys {
            enter(session, key, STREAM).unwrap();
            fixture.assert_is_there(key as u32);
        }
        leave(session, STREAM).unwrap();
    };
    forward(&mut session, &[0, 1, 2, 3, 4, 5]);
    let before = fixture.pipeline.counters();
    // WHEN forwards run in order, THEN each layer is copied once, and none on demand
    (0..5).for_each(|_| forward(&mut session, &[0, 1, 2, 3, 4, 5]));
    let after = fixture.pipeline.counters();
    assert_eq!((after.copies - before.copies, after.on_demand - before.on_demand), (30, 0));
    // WHEN a forward skips a layer, THEN the next layer is loaded on demand
    forward(&mut session, &[0, 1, 3]);
    assert!(fixture.pipeline.counters().on_demand > after.on_demand);
}

#[test]
fn a_forward_after_an_aborted_one_is_right() {
    // GIVEN a forward that is aborted in the middle
    let fixture = Fixture::new(&six_layers());
    let mut session = fixture.pipeline.session();
    (0..3).for_each(|key| drop(enter(&mut session, key, STREAM).unwrap()));
    assert_eq!(leave(&mut session, STREAM).unwrap(), [2]);
    // WHEN the next one runs, THEN each layer finds its weights, and expected layers are not loaded on demand.
    for key in 0..6 {
        enter(&mut session, key, STREAM).unwrap();
        fixture.assert_is_there(key as u32);
    }
    assert_eq!(leave(&mut session, STREAM).unwrap(), [5]);
    assert_eq!(fixture.pipeline.counters().on_demand, 0);
    // AND a second leave changes nothing.
    assert!(leave(&mut session, STREAM).unwrap().is_empty());
    assert_eq!(fixture.pipeline.counters().forwards, 2);
}

#[test]
fn edited_weights_are_copied_again() {
    // GIVEN one resident layer, one in the ring, and one that is not loaded
    let mut fixture = Fixture::new(&six_layers());
    let mut session = fixture.pipeline.session();
    enter(&mut session, 0, STREAM).unwrap();
    let before = fixture.pipeline.counters();
    // WHEN all three are edited
    for unit in [0, 2, 5] {
        fixture.weights[unit].fill(77);
        fixture.fill(unit);
        fixture.pipeline.reload(unit as u32, STREAM).unwrap();
    }
    // THEN the first two are copied again, and the third when it is needed
    assert_eq!(fixture.pipeline.counters().reloads - before.reloads, 2);
    fixture.assert_is_there(0);
    fixture.assert_is_there(2);
    for key in 1..6 {
        enter(&mut session, key, STREAM).unwrap();
        fixture.assert_is_there(key as u32);
    }
    // AND a unit that does not exist is refused.
    let error = fixture.pipeline.reload(6, STREAM).unwrap_err().to_string();
    assert_eq!(error, "there is no unit 6, only 6");
}

#[test]
fn a_model_that_fits_is_never_copied() {
    // GIVEN layers that are all resident, WHEN forwards run, THEN nothing is copied.
    let mut model = six_layers();
    model.places = vec![None; 6];
    let fixture = Fixture::new(&model);
    let mut session = fixture.pipeline.session();
    for _ in 0..3 {
        for key in 0..6 {
            enter(&mut session, key, STREAM).unwrap();
            fixture.assert_is_there(key as u32);
        }
        leave(&mut session, STREAM).unwrap();
    }
    let counters = fixture.pipeline.counters();
    assert_eq!((counters.copies, counters.copied_bytes, counters.waits, counters.forwards), (0, 0, 0, 3));
}

#[test]
fn a_pipeline_can_be_configured_again() {
    // GIVEN a pipeline in use
    let fixture = Fixture::new(&six_layers());
    let mut session = fixture.pipeline.session();
    enter(&mut session, 0, STREAM).unwrap();
    // WHEN it is configured during a forward, THEN it refuses
    let mut model = six_layers();
    model.points.reverse();
    // SAFETY: the memory is dropped after the pipeline.
    let configure = || unsafe { fixture.pipeline.configure(model.configuration(fixture.device.address()), STREAM) };
    assert!(configure().unwrap_err().to_string().contains("under way"));
    // WHEN no forward is in progress, THEN the old session continues with the new schedule.
    leave(&mut session, STREAM).unwrap();
    configure().unwrap();
    for key in 0..6 {
        assert_eq!(enter(&mut session, key, STREAM).unwrap().unwrap().1, [5 - key as u32]);
        fixture.assert_is_there(5 - key as u32);
    }
    // WHEN a session is dropped in the middle, THEN it releases its units.
    drop(session);
    configure().unwrap();
}

#[test]
fn a_pipeline_without_a_configuration_is_an_error() {
    // GIVEN a pipeline without a configuration, WHEN a forward starts, THEN it fails with that error.
    let arena = Arc::new(Arena::new(64).unwrap());
    let pipeline = Pipeline::new(arena, None, None).unwrap();
    let mut session = pipeline.session();
    assert!(enter(&mut session, 0, STREAM).unwrap_err().to_string().contains("nothing is configured"));
    // AND it fails when the pipeline was dropped.
    drop(pipeline);
    assert!(enter(&mut session, 0, STREAM).is_err());
}

#[test]
fn compute_is_measured_per_point() {
    // GIVEN a timed forward that computes at two points and skips the others
    let clock = Clock::new();
    let fixture = Fixture::on(&six_layers(), Host::with_clock(None, clock.clone()).unwrap());
    let mut session = fixture.pipeline.session();
    fixture.pipeline.set_timed(true);
    for (key, ms) in [(1, 5), (3, 15)] {
        enter(&mut session, key, STREAM).unwrap();
        clock.advance(ms);
    }
    leave(&mut session, STREAM).unwrap();
    // WHEN the times are read, THEN they match.
    clock.advance(100);
    assert_eq!(fixture.pipeline.timings().unwrap(), [0, 5_000_000, 0, 15_000_000, 0, 0]);
    // AND they are discarded when timing starts again.
    fixture.pipeline.set_timed(true);
    assert_eq!(fixture.pipeline.timings().unwrap(), [0; 6]);
}

#[test]
fn entering_a_point_again_adds_to_its_time() {
    // GIVEN a timed forward that enters one point three times in a row, as with a split batch
    let clock = Clock::new();
    let fixture = Fixture::on(&six_layers(), Host::with_clock(None, clock.clone()).unwrap());
    let mut session = fixture.pipeline.session();
    fixture.pipeline.set_timed(true);
    for key in [0, 1, 1, 1, 2] {
        enter(&mut session, key, STREAM).unwrap();
        clock.advance(5);
    }
    leave(&mut session, STREAM).unwrap();
    // THEN all of the time belongs to that point, and nothing is out of order
    assert_eq!(fixture.pipeline.timings().unwrap(), [5_000_000, 15_000_000, 5_000_000, 0, 0, 0]);
    assert_eq!(fixture.pipeline.counters().out_of_order, 0);
}

#[test]
fn copies_can_be_throttled() {
    // GIVEN copies at 100 MB/s, WHEN the bandwidth is measured, THEN it is 100 MB/s.
    let arena = Arc::new(Arena::new(1 << 20).unwrap());
    let device = DeviceMemory::new(None, 1 << 20).unwrap();
    let host = Host::with_clock(Some(100e6), Clock::new()).unwrap();
    let pipeline = Pipeline::with_backend(arena, Arc::new(host)).unwrap();
    // SAFETY: the memory is dropped after the pipeline.
    let measured = unsafe { pipeline.measure_bandwidth(device.address(), 1 << 20, STREAM) }.unwrap();
    assert!((measured - 100e6).abs() < 1.0, "{measured}");
}

#[test]
fn a_throttled_copy_takes_its_time() {
    // GIVEN a copy that takes twelve days
    let (from, mut to) = (vec![7u8; 1 << 20], vec![0u8; 1 << 20]);
    let host = Host::new(Some(1.0)).unwrap();
    let (stream, event) = (host.create_stream().unwrap(), host.create_event(false).unwrap());
    let transfer = Transfer { from: from.as_ptr() as u64, to: to.as_mut_ptr() as u64, bytes: 1 << 20 };
    // SAFETY: both vectors outlive the backend's thread.
    unsafe { host.copy(&transfer, stream) }.unwrap();
    host.record(event, stream).unwrap();
    // WHEN a thread waits for it, THEN it is not done
    assert!(!host.block(event, Duration::from_millis(1)).unwrap());
    // AND dropping the backend does not wait for it.
    drop(host);
    drop(to);
}
