//! Seeking in a trace, in any order, gives the state of replaying the events up to that moment.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::encode_record;
use memlab_trace::record::{Alloc, DriverAlloc, DriverKind, Flags, Free, Header, Layer, Oom, Step, Tag, TagCategory};
use memlab_trace::{
    EventKind, Extent, Follower, Model, Progress, ReadError, Record, Replay, SeekOutcome, SeekTarget, SeekableReplay,
    Sink, decode_line,
};

/// A training with this many events, as lines without newlines: three threads, steps, tags, segments, an out-of-memory.
fn training(events: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut lines = vec![encode_record(&Record::Header(Box::new(Header { memlab: 1, pid: 1, ..Header::default() })))];
    let mut live: Vec<u64> = Vec::new();
    let (mut time, mut steps) = (0, 0);
    for number in 0..events as u64 {
        // Times of different threads are not quite in order, and some are equal.
        time += random.u64(..40);
        let (time, thread) = (time.saturating_sub(random.u64(..60)), random.u64(..3) as u32 + 1);
        let record = match random.u64(..1000) {
            0 => {
                steps += 1;
                Record::Step(Step { time, thread, index: steps - 1, is_untimed: false })
            }
            1 => Record::DriverAlloc(DriverAlloc {
                time,
                thread,
                device: 0,
                address: number << 24,
                bytes: 2 << 20,
                kind: DriverKind::Device,
                call: "cudaMalloc".into(),
                library: "libc10_cuda.so".into(),
                stack: 0,
                layer: 0,
                flags: Flags(Flags::SEGMENT),
                graph: 0,
                stream: 0,
            }),
            2 if !live.is_empty() => Record::Tag(Tag {
                time,
                device: 0,
                address: live[random.u64(..live.len() as u64) as usize],
                category: TagCategory::Parameter,
                bytes: 512,
                root: 1,
                name: "h.1.weight".into(),
                shard: "Shard(0)/2 on dp".into(),
            }),
            3 if number > events as u64 / 2 => {
                Record::Oom(Oom { time, device: 0, requested: 1 << 40, ..Oom::default() })
            }
            4 => {
                let class = "Linear".to_owned();
                let name = (number > events as u64 / 3).then(|| format!("h.{}", number % 7));
                lines.push(encode_record(&Record::Layer(Layer {
                    layer: (number % 7) as u32 + 1,
                    parent: 0,
                    class,
                    name,
                    variable: None,
                })));
                Record::Step(Step { time, thread, index: steps, is_untimed: false })
            }
            5..480 if live.len() > 50 => {
                let address = live.swap_remove(random.u64(..live.len() as u64) as usize);
                Record::Free(Free { time, thread, device: 0, address })
            }
            _ => {
                let address = (number + 1) * 4096;
                live.push(address);
                let (stack, layer) = (random.u64(..20) as u32, random.u64(..8) as u32);
                let flags = Flags(random.u64(..4) as u32 | if random.u64(..9) == 0 { Flags::MOVED_MODULE } else { 0 });
                let bytes = (random.u64(..64) + 1) * 512;
                Record::Alloc(Alloc { time, thread, device: 0, address, bytes, stack, layer, flags })
            }
        };
        lines.push(encode_record(&record));
    }
    lines
}

struct Trace(PathBuf);

impl Trace {
    fn new(name: &str, lines: &[Vec<u8>]) -> Self {
        let path = std::env::temp_dir().join(format!("memlab-seek-{}-{name}", std::process::id()));
        fs::write(&path, lines.concat()).unwrap();
        Self(path)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the state after replaying everything before the first event that is too late.
fn brute_force(lines: &[Vec<u8>], at: SeekTarget) -> Model {
    let mut model = Model::new();
    for line in lines {
        let record = decode_line(line.trim_ascii_end()).unwrap();
        let is_late = record.time().is_some_and(|time| match at {
            SeekTarget::Time(until) => time > until,
            SeekTarget::Event(events) => model.events() >= events,
            SeekTarget::End => false,
        });
        if is_late {
            break;
        }
        model.apply(record);
    }
    model
}

fn assert_same(found: &Model, expected: &Model, at: SeekTarget) {
    assert_eq!((found.events(), found.time()), (expected.events(), expected.time()), "{at:?}");
    assert_eq!(found.devices(), expected.devices(), "{at:?}");
    assert_eq!(found.lines(0), expected.lines(0), "{at:?}");
    assert_eq!(found.layers(0), expected.layers(0), "{at:?}");
    assert_eq!(found.categories(0), expected.categories(0), "{at:?}");
    assert_eq!(found.segments(0), expected.segments(0), "{at:?}");
    assert_eq!(found.steps(), expected.steps(), "{at:?}");
    assert_eq!(found.ooms(), expected.ooms(), "{at:?}");
    assert_eq!(found.timeline(0), expected.timeline(0), "{at:?}");
}

fn seek(seekable: &mut SeekableReplay, at: SeekTarget) -> SeekOutcome {
    seekable.seek(at, Extent::WHOLE, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn seek_at_random(path: &Path, lines: &[Vec<u8>], moments: usize) {
    let whole = brute_force(lines, SeekTarget::End);
    let mut random = fastrand::Rng::with_seed(11);
    let mut seekable = SeekableReplay::open(path, 0).unwrap();
    seekable.set_checkpoint_spacing(40_000);
    for _ in 0..moments {
        let at = match random.u64(..7) {
            0 => SeekTarget::End,
            1..4 => SeekTarget::Event(random.u64(..whole.events() + 2)),
            _ => SeekTarget::Time(random.u64(..whole.time() + 2)),
        };
        assert_eq!(seek(&mut seekable, at), SeekOutcome::Found);
        assert_same(seekable.model(), &brute_force(lines, at), at);
    }
}

#[test]
fn seeks_in_any_order_equal_a_replay() {
    // GIVEN a trace long enough for several checkpoints
    let lines = training(300_000);
    let trace = Trace::new("any.jsonl", &lines);
    // WHEN random moments are sought THEN each state is that of the brute-force replay
    seek_at_random(&trace.0, &lines, 24);
}

#[test]
fn seeks_work_in_compressed_traces() {
    let lines = training(300_000);
    let trace = Trace::new("any.jsonl.zst", &[zstd::encode_all(&*lines.concat(), 1).unwrap()]);
    seek_at_random(&trace.0, &lines, 12);
}

#[test]
fn the_peak_is_exact() {
    let lines = training(20_000);
    let trace = Trace::new("peak.jsonl", &lines);
    let mut seekable = SeekableReplay::open(&trace.0, 0).unwrap();
    seek(&mut seekable, SeekTarget::End);
    let peak = seekable.model().device(0).unwrap();
    seek(&mut seekable, SeekTarget::Event(peak.peak_event));
    let then = seekable.model().device(0).unwrap();
    assert_eq!((then.allocated_bytes, seekable.model().time()), (peak.peak_allocated_bytes, peak.peak_time));
}

#[test]
fn seeks_end_where_the_follower_is() {
    // GIVEN a trace whose beginning a follower has read
    let lines = training(50_000);
    let (first, rest) = lines.split_at(20_000);
    let trace = Trace::new("growing.jsonl", first);
    let mut follower = Follower::open(&trace.0).unwrap();
    let mut model = Model::new();
    while follower.poll(&mut model).unwrap().more {}
    // WHEN more is written after a hole that may still be filled
    fs::write(&trace.0, [first.concat(), vec![0; 100], rest.concat()].concat()).unwrap();
    let mut seekable = SeekableReplay::open(&trace.0, 0).unwrap();
    seekable.seek(SeekTarget::End, follower.extent(), &mut |_| ControlFlow::Continue(())).unwrap();
    // THEN the replay ends where the follower stopped
    assert_same(seekable.model(), &model, SeekTarget::End);
    // AND continues when the follower does
    follower.set_writer_dead();
    while follower.poll(&mut model).unwrap().more {}
    seekable.seek(SeekTarget::End, follower.extent(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_same(seekable.model(), &brute_force(&lines, SeekTarget::End), SeekTarget::End);
}

#[test]
fn later_names_can_be_adopted() {
    let lines = training(100_000);
    let trace = Trace::new("names.jsonl", &lines);
    let whole = brute_force(&lines, SeekTarget::End);
    let mut seekable = SeekableReplay::open(&trace.0, 0).unwrap();
    seek(&mut seekable, SeekTarget::Event(3_000));
    let mut then = seekable.into_replay().model;
    assert_ne!(then.layer_name(3), whole.layer_name(3));
    then.adopt_names(&whole);
    assert_eq!(then.layer_name(3), whole.layer_name(3));
}

#[test]
fn a_seek_returns_the_latest_events() {
    let lines = training(5_000);
    let trace = Trace::new("tail.jsonl", &lines);
    let mut seekable = SeekableReplay::open(&trace.0, 100).unwrap();
    seek(&mut seekable, SeekTarget::Event(3_000));
    let events: Vec<_> = seekable.replay().events().collect();
    // THEN they are the last hundred up to the moment, in order
    assert_eq!(events.len(), 100);
    assert!(events.is_sorted_by_key(|event| event.number));
    assert!(events.last().unwrap().number <= 3_000);
    // AND a free has the size and the stack of its block
    let freed = events.iter().filter(|event| event.kind == EventKind::Free);
    assert!(freed.clone().count() > 10);
    assert!(freed.clone().all(|event| event.bytes >= 512 && event.category.is_some()));
}

#[test]
fn the_latest_events_are_there_wherever_the_checkpoints_are() {
    // GIVEN a trace with a checkpoint at each progress report
    let lines = training(300_000);
    let trace = Trace::new("events.jsonl", &lines);
    let mut seekable = SeekableReplay::open(&trace.0, 100).unwrap();
    seekable.set_checkpoint_spacing(1);
    let mut noted = Vec::new();
    seekable
        .seek(SeekTarget::End, Extent::WHOLE, &mut |progress| {
            noted.push(progress.events);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(noted.len() >= 3, "{noted:?}");
    // WHEN the targets are shortly after a checkpoint, long after one, and long after the previous target
    let mut moments: Vec<_> = noted[..3].iter().flat_map(|at| [at + 10, at + 5_000, at - 5_000]).collect();
    moments.rotate_left(5);
    moments.extend([0, 50, 3_000]);
    for events in moments {
        for at in [SeekTarget::Event(events), SeekTarget::Time(brute_force(&lines, SeekTarget::Event(events)).time())] {
            seek(&mut seekable, at);
            // THEN the latest events are those of a replay that keeps events throughout
            let mut replay = Replay::with_history(100);
            for line in &lines {
                let record = decode_line(line.trim_ascii_end()).unwrap();
                if at.is_before(&record, &replay.model) {
                    break;
                }
                let _ = replay.take(record);
            }
            assert!(seekable.replay().events().eq(replay.events()), "{at:?}");
        }
    }
}

#[test]
fn a_step_forward_does_not_begin_again_for_events_that_are_not_kept() {
    // GIVEN a trace of mostly tags, which are not kept, with a checkpoint at each progress report
    let is_of_block = |line: &&Vec<u8>| line.starts_with(b"[\"a\"") || line.starts_with(b"[\"f\"");
    let training = training(40_000);
    let tag = training.iter().find(|line| decode_line(line).is_ok_and(|it| matches!(it, Record::Tag(_)))).unwrap();
    let mut lines = training[..1].to_vec();
    for block in training.iter().filter(is_of_block) {
        lines.push(block.clone());
        lines.extend(std::iter::repeat_n(tag.clone(), 19));
    }
    let trace = Trace::new("steps.jsonl", &lines);
    let mut seekable = SeekableReplay::open(&trace.0, 100).unwrap();
    seekable.set_checkpoint_spacing(1);
    let progress_of = |seekable: &mut SeekableReplay, at| {
        let mut events = Vec::new();
        let progress = &mut |progress: Progress| {
            events.push(progress.events);
            ControlFlow::Continue(())
        };
        seekable.seek(at, Extent::WHOLE, progress).unwrap();
        events
    };
    let noted = progress_of(&mut seekable, SeekTarget::End);
    // WHEN a moment shortly after a checkpoint is sought
    let at = noted[2] + 10;
    progress_of(&mut seekable, SeekTarget::Event(at));
    let kept = seekable.replay().events().len();
    assert!((5..20).contains(&kept), "{kept}");
    // THEN the next moment is the next event, and needs no replay
    let progress = progress_of(&mut seekable, SeekTarget::Event(at + 1));
    assert!(progress.iter().all(|events| *events >= at), "{progress:?}");
}

#[test]
fn a_seek_starts_at_a_position_noted_by_a_follower() {
    // GIVEN a follower that has read a long trace, and some of its positions
    let lines = training(1_500_000);
    let trace = Trace::new("noted.jsonl", &lines);
    let (mut follower, mut model) = (Follower::open(&trace.0).unwrap(), Model::new());
    let mut seekable = SeekableReplay::open(&trace.0, 0).unwrap();
    seekable.set_checkpoint_spacing(100_000);
    let mut noted = 0;
    while follower.poll(&mut model).unwrap().more {
        seekable.add_checkpoint(&follower.position(), &model);
        noted = follower.extent().offset;
    }
    assert!(noted > 0);
    // WHEN the first seek is to a moment near the end
    let at = SeekTarget::Event(model.events() - 10);
    let mut read = Vec::new();
    seekable
        .seek(at, Extent::WHOLE, &mut |progress| {
            read.push(progress.bytes_read);
            ControlFlow::Continue(())
        })
        .unwrap();
    // THEN the replay starts at the last of those positions
    assert_same(seekable.model(), &brute_force(&lines, at), at);
    assert!(read[0] > noted, "{:?} after {noted}", &read[..2]);
}

#[test]
fn a_seek_can_be_cancelled() {
    let lines = training(200_000);
    let trace = Trace::new("cancel.jsonl", &lines);
    let mut seekable = SeekableReplay::open(&trace.0, 0).unwrap();
    let sought = seekable.seek(SeekTarget::End, Extent::WHOLE, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!(sought, SeekOutcome::Cancelled);
    // AND continues from there
    assert_eq!(seek(&mut seekable, SeekTarget::End), SeekOutcome::Found);
    assert_same(seekable.model(), &brute_force(&lines, SeekTarget::End), SeekTarget::End);
}

#[test]
fn moments_before_the_keyframe_are_not_kept() {
    // GIVEN a trace condensed to a keyframe
    let lines = training(20_000);
    let before = brute_force(&lines, SeekTarget::Event(10_000));
    let mut cut = vec![lines[0].clone()];
    let mut keyframe = Vec::new();
    before.write_keyframe(&mut keyframe).unwrap();
    cut.push(keyframe);
    cut.extend_from_slice(&lines[10_500..]);
    let trace = Trace::new("cut.jsonl", &cut);
    let mut seekable = SeekableReplay::open(&trace.0, 0).unwrap();
    // WHEN a moment before the keyframe is sought THEN the outcome is `NotKept`, with the earliest state
    assert_eq!(seek(&mut seekable, SeekTarget::Event(5_000)), SeekOutcome::NotKept);
    assert_eq!(seekable.model().events(), before.events());
    assert_eq!(seek(&mut seekable, SeekTarget::End), SeekOutcome::Found);
}

#[test]
fn files_that_are_not_traces() {
    let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken");
    let open = |name: &str| {
        let mut seekable = SeekableReplay::open(&broken.join(name), 0)?;
        seekable.seek(SeekTarget::End, Extent::WHOLE, &mut |_| ControlFlow::Continue(()))
    };
    assert!(matches!(open("not-a-trace.jsonl"), Err(ReadError::NotATrace { .. })));
    assert!(matches!(open("empty.jsonl"), Err(ReadError::Empty { .. })));
    assert!(matches!(open("newer.jsonl"), Err(ReadError::Newer { format: 7, .. })));
    assert!(matches!(open("missing.jsonl"), Err(ReadError::Io { .. })));
}
