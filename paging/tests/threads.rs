//! Several threads in one ring: held units are never overwritten, and no thread waits forever.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::clock::Clock;
use crate::common::model::{Model, models};
use crate::common::{enter, leave};
use memlab_paging::{Arena, DeviceMemory, Error, Pipeline, Session, Stream};
use proptest::prelude::*;

/// Fails if the work takes so long that the threads must be deadlocked.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _ = ended.send(());
    });
    match end.recv_timeout(Duration::from_secs(600)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the threads are deadlocked"),
        _ => worker.join().unwrap(),
    }
}

/// Runs forwards on each thread, some aborted, some out of order.
///
/// Each checks its held units at the start and the end of its compute. `meanwhile` runs in parallel, with a session that
/// holds the units of the first point.
fn run_on_host(model: &Model, threads: u64, forwards: u64, meanwhile: impl FnOnce(&Pipeline, Session)) {
    let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
    let device = DeviceMemory::new(None, model.device_bytes()).unwrap();
    for (unit, &bytes) in model.bytes.iter().enumerate() {
        let weights = vec![unit as u8 + 1; bytes as usize];
        // SAFETY: the vector outlives the call and is not written to.
        unsafe { arena.fill(model.arena_offset(unit as u32), weights.as_ptr() as u64, bytes) }.unwrap();
    }
    let pipeline = Pipeline::new(arena, None, None).unwrap();
    // SAFETY: the memory is dropped after the pipeline.
    unsafe { pipeline.configure(model.configuration(device.address()), Stream(0)) }.unwrap();
    let is_there = |unit: u32| {
        let mut bytes = vec![0; model.bytes[unit as usize] as usize];
        device.read(model.device_offset(unit), &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == unit as u8 + 1), "unit {unit} of {model:?}: {bytes:?}");
    };
    let mut first = pipeline.session();
    enter(&mut first, model.keys[0], Stream(threads)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (pipeline, is_there) = (&pipeline, &is_there);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut session = pipeline.session();
                let mut held: Vec<u32> = Vec::new();
                for _ in 0..forwards {
                    for &key in &model.keys {
                        let key = match random.u64(..20) {
                            0 => 1000 + random.u64(..model.bytes.len() as u64) as i64,
                            1 => continue,
                            _ => key,
                        };
                        if let Some((released, acquired)) = enter(&mut session, key, Stream(thread)).unwrap() {
                            // Also true if kept units had to be released while the thread waited.
                            assert!(released.iter().all(|unit| held.contains(unit)));
                            assert!(acquired.iter().all(|unit| !held.contains(unit)));
                            held.retain(|unit| !released.contains(unit));
                            held.extend(acquired);
                        }
                        held.iter().for_each(|&unit| is_there(unit));
                        if random.u64(..3) == 0 {
                            std::thread::yield_now();
                        }
                        held.iter().for_each(|&unit| is_there(unit));
                        if random.u64(..40) == 0 {
                            break;
                        }
                    }
                    assert_eq!(leave(&mut session, Stream(thread)).unwrap().len(), held.len());
                    held.clear();
                }
            });
        }
        meanwhile(&pipeline, first);
    });
}

/// Layers of two units each in a ring for three units.
///
/// Neighbouring layers share one unit.
fn sharing_layers() -> Model {
    Model {
        bytes: vec![64; 9],
        places: (0..9).map(|unit| Some(unit % 3 * 64)).collect(),
        ring_bytes: 192,
        points: (0..8).map(|layer| vec![layer, layer + 1]).collect(),
        keys: (0..8).collect(),
        lookahead: None,
        least_piece: 0,
        compute: vec![100; 8],
    }
}

#[test]
fn two_and_eight_threads_share_a_ring() {
    // GIVEN a ring so small that threads block each other, and a thread that holds its units until all others wait, WHEN two
    // or eight threads run forwards, THEN each finds its own weights at all times, and all finish.
    for threads in [2, 8] {
        in_time(move || {
            run_on_host(&sharing_layers(), threads, 300, |pipeline, first| {
                while pipeline.waiting() < threads as usize {
                    std::thread::yield_now();
                }
                drop(first);
            });
        });
    }
}

#[test]
fn a_wait_can_be_cancelled() {
    // GIVEN a ring for one layer, which a thread holds
    let mut model = sharing_layers();
    (model.ring_bytes, model.places) = (64, vec![Some(0); 9]);
    model.points = (0..8).map(|layer| vec![layer]).collect();
    let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
    let device = DeviceMemory::new(None, model.device_bytes()).unwrap();
    let pipeline = Pipeline::new(arena, None, None).unwrap();
    // SAFETY: the memory is dropped after the pipeline.
    unsafe { pipeline.configure(model.configuration(device.address()), Stream(0)) }.unwrap();
    let (mut first, mut second) = (pipeline.session(), pipeline.session());
    enter(&mut first, 0, Stream(0)).unwrap();
    // WHEN another thread waits for it and cancels, THEN it holds nothing and no thread waits for it
    let mut asked = 0;
    let cancelled = second.enter(1, Stream(1), &mut |wait| {
        while !wait() {
            asked += 1;
            if asked == 2 {
                return Err(Error::Failed("no longer".into()));
            }
        }
        Ok(())
    });
    assert_eq!(cancelled.unwrap_err().to_string(), "no longer");
    assert!(leave(&mut second, Stream(1)).unwrap().is_empty());
    // AND both can continue.
    leave(&mut first, Stream(0)).unwrap();
    for session in [&mut second, &mut first] {
        enter(session, 1, Stream(0)).unwrap();
        leave(session, Stream(0)).unwrap();
    }
    // WHEN the pipeline is dropped while one waits, THEN the wait fails with that error.
    enter(&mut first, 0, Stream(0)).unwrap();
    let waiting = std::thread::spawn(move || enter(&mut second, 1, Stream(1)).unwrap_err().to_string());
    while pipeline.waiting() == 0 {
        std::thread::yield_now();
    }
    drop(pipeline);
    assert!(waiting.join().unwrap().contains("closed"));
    // AND held units are released.
    assert!(leave(&mut first, Stream(0)).unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn threads_do_not_deadlock(model in models(), threads in 2u64..6) {
        in_time(move || {
            run_on_host(&model, threads, 20, |_, first| drop(first));
        });
    }

    #[test]
    fn streams_of_several_threads_are_ordered(model in models(), threads in 2u64..6) {
        // GIVEN a device that can be arbitrarily late, and a stream per thread, WHEN the threads run forwards, THEN events
        // alone keep copies from overwriting bytes being read, and each reader sees its own bytes.
        in_time(move || run_on_clocks(&model, threads));
    }
}

const DEVICE: u64 = 1 << 40;

fn run_on_clocks(model: &Model, threads: u64) {
    let clock = Arc::new(Clock::default());
    let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
    let pipeline = Pipeline::with_backend(Arc::clone(&arena), clock.clone()).unwrap();
    // SAFETY: clocks do not write.
    unsafe { pipeline.configure(model.configuration(DEVICE), Stream(0)) }.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (pipeline, clock, arena) = (&pipeline, &clock, &arena);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(100 + thread);
                let mut session = pipeline.session();
                let mut stream = Stream(thread * 2);
                for _ in 0..10 {
                    for (point, &key) in model.keys.iter().enumerate() {
                        if random.u64(..8) == 0 {
                            stream = Stream(stream.0 ^ 1);
                        }
                        if model.keys[..point].contains(&key) || random.u64(..10) == 0 {
                            continue; // Either of two points with one key is right here.
                        }
                        enter(&mut session, key, stream).unwrap();
                        let range = |&unit: &u32| {
                            let of = arena.address() + model.arena_offset(unit);
                            (DEVICE + model.device_offset(unit), of, model.bytes[unit as usize])
                        };
                        let ranges: Vec<_> = model.points[point].iter().map(range).collect();
                        clock.compute(stream, model.compute[point] + 1, &ranges);
                        if random.u64(..3) == 0 {
                            std::thread::yield_now();
                        }
                    }
                    leave(&mut session, stream).unwrap();
                }
            });
        }
    });
    clock.assert_all_reads_right();
}
