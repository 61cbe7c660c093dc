//! Forwards captured into graphs, on clocks: a replay finds its weights after any other work, and so does work after the
//! replay.

use std::sync::Arc;

use crate::common::clock::{Clock, Graph};
use crate::common::model::{Model, models};
use crate::common::{enter, leave};
use memlab_paging::{Arena, Pipeline, Result, Session, Stream};
use proptest::prelude::*;

const STREAM: Stream = Stream(1);
const OTHER: Stream = Stream(2);
const DEVICE: u64 = 1 << 40;

struct Fixture {
    model: Model,
    clock: Arc<Clock>,
    arena: Arc<Arena>,
    pipeline: Pipeline,
}

impl Fixture {
    fn new(model: &Model) -> Self {
        let clock = Arc::new(Clock::default());
        let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
        let pipeline = Pipeline::with_backend(Arc::clone(&arena), clock.clone()).unwrap();
        // SAFETY: clocks do not write.
        unsafe { pipeline.configure(model.configuration(DEVICE), STREAM) }.unwrap();
        Self { model: model.clone(), clock, arena, pipeline }
    }

    /// Enters these units by their key, and computes with them.
    fn layer(&self, session: &mut Session, point: usize, stream: Stream) -> Result<()> {
        enter(session, point as i64, stream)?;
        let range = |&unit: &u32| {
            let of = self.arena.address() + self.model.arena_offset(unit);
            (DEVICE + self.model.device_offset(unit), of, self.model.bytes[unit as usize])
        };
        let ranges: Vec<_> = self.model.points[point].iter().map(range).collect();
        self.clock.compute(stream, self.model.compute[point], &ranges);
        Ok(())
    }

    fn forward(&self, session: &mut Session, points: impl Iterator<Item = usize>, stream: Stream) {
        points.for_each(|point| self.layer(session, point, stream).unwrap());
        leave(session, stream).unwrap();
    }
}

/// An action of a program with graphs.
#[derive(Clone, Debug)]
enum Action {
    /// A forward up to one point, continued at another.
    Forward(usize, usize),
    /// Several such forwards, captured in one graph.
    Capture(usize, usize, usize),
    Replay(usize),
    Edit(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let point = || 0usize..20;
    let action = prop_oneof![
        3 => (point(), point()).prop_map(|(stop, on)| Action::Forward(stop, on)),
        2 => (point(), point(), 1usize..3).prop_map(|(stop, on, times)| Action::Capture(stop, on, times)),
        4 => any::<usize>().prop_map(Action::Replay),
        1 => any::<usize>().prop_map(Action::Edit),
    ];
    prop::collection::vec(action, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn replays_find_their_weights(mut model in models(), actions in actions()) {
        // GIVEN a program that captures forwards, in order or not, some aborted, WHEN it replays them between others,
        // THEN every reader finds its weights, and all captures are joined.
        model.keys = (0..model.points.len() as i64).collect();
        let fixture = Fixture::new(&model);
        let mut session = fixture.pipeline.session();
        let mut graphs: Vec<Graph> = Vec::new();
        for action in actions {
            let count = model.points.len();
            let points = |stop: usize, on: usize| (0..stop.min(count)).chain(on.min(count)..count);
            match action {
                Action::Forward(stop, on) => fixture.forward(&mut session, points(stop, on), STREAM),
                Action::Capture(stop, on, times) => {
                    fixture.clock.begin_capture(STREAM);
                    (0..times).for_each(|_| fixture.forward(&mut session, points(stop, on), STREAM));
                    graphs.push(fixture.clock.end_capture(STREAM).unwrap());
                }
                Action::Replay(graph) if !graphs.is_empty() => {
                    fixture.clock.replay(&graphs[graph % graphs.len()], STREAM);
                }
                Action::Replay(_) => {}
                Action::Edit(unit) => fixture.pipeline.reload((unit % model.bytes.len()) as u32, STREAM).unwrap(),
            }
        }
        fixture.clock.assert_all_reads_right();
    }
}

/// Six layers, one of them resident, in a ring for two.
fn six_layers() -> Model {
    Model {
        bytes: vec![100; 6],
        places: vec![Some(0), Some(100), Some(0), Some(100), Some(0), None],
        ring_bytes: 200,
        points: (0..6).map(|layer| vec![layer]).collect(),
        keys: (0..6).collect(),
        lookahead: None,
        least_piece: 0,
        compute: vec![50; 6],
    }
}

#[test]
fn a_capture_holds_each_streamed_unit_once() {
    // GIVEN a model that has run, so that the start of the next forward is being loaded
    let fixture = Fixture::new(&six_layers());
    let mut session = fixture.pipeline.session();
    fixture.forward(&mut session, 0..6, STREAM);
    let before = fixture.clock.copies().len();
    // WHEN a forward is captured, THEN nothing is copied
    fixture.clock.begin_capture(STREAM);
    fixture.forward(&mut session, 0..6, STREAM);
    let graph = fixture.clock.end_capture(STREAM).unwrap();
    assert_eq!(fixture.clock.copies().len(), before);
    // AND each replay copies the five units of the ring, and none for the next forward, although the ring has room
    fixture.clock.replay(&graph, STREAM);
    assert_eq!(fixture.clock.copies().len(), before + 5);
    // AND so does a forward after the replay.
    fixture.forward(&mut session, 0..6, STREAM);
    assert_eq!(fixture.clock.copies().len(), before + 10);
    fixture.clock.assert_all_reads_right();
}

#[test]
fn a_failed_capture_has_no_side_effects() {
    // GIVEN a capture that is invalidated in the middle of a forward
    let fixture = Fixture::new(&six_layers());
    let mut session = fixture.pipeline.session();
    fixture.clock.begin_capture(STREAM);
    (0..3).for_each(|point| fixture.layer(&mut session, point, STREAM).unwrap());
    fixture.clock.break_capture(STREAM);
    // WHEN the forward continues, THEN the error names the failed capture, and leaving releases the held units
    let error = enter(&mut session, 3, STREAM).unwrap_err().to_string();
    assert!(error.contains("capture under way on this stream has failed"), "{error}");
    assert_eq!(leave(&mut session, STREAM).unwrap(), [2]);
    assert!(fixture.clock.end_capture(STREAM).is_err());
    // AND the next forward, and the next capture, are right.
    fixture.forward(&mut session, 0..6, STREAM);
    fixture.clock.begin_capture(STREAM);
    fixture.forward(&mut session, 0..6, STREAM);
    let graph = fixture.clock.end_capture(STREAM).unwrap();
    fixture.clock.replay(&graph, STREAM);
    fixture.clock.assert_all_reads_right();
}

#[test]
fn an_exception_in_a_capture_keeps_it_valid() {
    // GIVEN a captured forward that an exception ends, WHEN the session leaves it, THEN the capture can be ended and
    // replayed.
    let fixture = Fixture::new(&six_layers());
    let mut session = fixture.pipeline.session();
    fixture.clock.begin_capture(STREAM);
    fixture.forward(&mut session, 0..2, STREAM);
    let graph = fixture.clock.end_capture(STREAM).unwrap();
    fixture.clock.replay(&graph, STREAM);
    fixture.clock.replay(&graph, STREAM);
    fixture.clock.assert_all_reads_right();
}

#[test]
fn units_held_before_a_capture_stay_held() {
    // GIVEN a partly captured forward
    let fixture = Fixture::new(&six_layers());
    let mut session = fixture.pipeline.session();
    fixture.layer(&mut session, 0, STREAM).unwrap();
    fixture.clock.begin_capture(OTHER);
    fixture.layer(&mut session, 1, OTHER).unwrap();
    // WHEN the session leaves the capture, THEN only the captured units are released; WHEN it leaves the forward, THEN the
    // others are.
    assert_eq!(leave(&mut session, OTHER).unwrap(), [1]);
    let graph = fixture.clock.end_capture(OTHER).unwrap();
    assert_eq!(leave(&mut session, STREAM).unwrap(), [0]);
    fixture.clock.replay(&graph, OTHER);
    fixture.clock.assert_all_reads_right();
    // WHEN a captured forward never ends, THEN leaving the next one releases its units too.
    fixture.clock.begin_capture(OTHER);
    fixture.layer(&mut session, 1, OTHER).unwrap();
    let _ = fixture.clock.end_capture(OTHER);
    fixture.layer(&mut session, 0, STREAM).unwrap();
    let mut released = leave(&mut session, STREAM).unwrap();
    released.sort_unstable();
    assert_eq!(released, [0, 1]);
    drop(session);
}
