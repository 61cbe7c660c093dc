//! Calls of the device that fail: an error in words, nothing held, and the next forward is right.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::model::models;
use common::{enter, leave};
use memlab_loader::backend::Host;
use memlab_loader::{Arena, Backend, DeviceMemory, Error, Event, Pipeline, Result, Stream, Transfer};
use proptest::prelude::*;

/// The host, of which one call fails.
struct Faulty {
    host: Host,
    /// Calls until then; below zero: never.
    left: AtomicI64,
}

impl Faulty {
    fn may(&self, call: &str) -> Result<()> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(Error::Failed(format!("{call} failed with A_FAULT"))),
            _ => Ok(()),
        }
    }
}

impl Backend for Faulty {
    fn create_stream(&self) -> Result<Stream> {
        self.host.create_stream()
    }

    fn destroy_stream(&self, stream: Stream) {
        self.host.destroy_stream(stream);
    }

    fn create_event(&self, timed: bool) -> Result<Event> {
        self.may("create_event")?;
        self.host.create_event(timed)
    }

    fn destroy_event(&self, event: Event) {
        self.host.destroy_event(event);
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        self.may("record")?;
        self.host.record(event, stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<bool> {
        self.may("wait")?;
        self.host.wait(stream, event)
    }

    fn block(&self, event: Event, longest: Duration) -> Result<bool> {
        self.may("block")?;
        self.host.block(event, longest)
    }

    unsafe fn copy(&self, transfer: &Transfer, stream: Stream) -> Result<()> {
        self.may("copy")?;
        // SAFETY: the caller's promise.
        unsafe { self.host.copy(transfer, stream) }
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.host.synchronize(stream)
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64> {
        self.host.elapsed_ns(from, to)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_forward_after_a_failed_call_is_right(model in models(), fault in 0i64..200) {
        // GIVEN a device of which some call will fail
        let backend = Arc::new(Faulty { host: Host::new(None).unwrap(), left: AtomicI64::new(-1) });
        let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
        let device = DeviceMemory::new(None, model.device_bytes()).unwrap();
        for (unit, &bytes) in model.bytes.iter().enumerate() {
            let weights = vec![unit as u8 + 1; bytes as usize];
            // SAFETY: the vector lives and nobody writes to it.
            unsafe { arena.fill(model.arena_offset(unit as u32), weights.as_ptr() as u64, bytes) }.unwrap();
        }
        let pipeline = Pipeline::with_backend(arena, backend.clone()).unwrap();
        // SAFETY: the memory goes after the pipeline.
        unsafe { pipeline.configure(model.configuration(device.address()), Stream(0)) }.unwrap();
        backend.left.store(fault, Ordering::Relaxed);
        // WHEN forwards run, each until its end or an error, which names the call
        let mut session = pipeline.session();
        let mut held: Vec<u32> = Vec::new();
        for _ in 0..6 {
            for &key in &model.keys {
                match enter(&mut session, key, Stream(0)) {
                    Ok(Some((released, acquired))) => {
                        assert!(released.iter().all(|unit| held.contains(unit)));
                        held.retain(|unit| !released.contains(unit));
                        assert!(acquired.iter().all(|unit| !held.contains(unit)));
                        held.extend(acquired);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        assert!(error.to_string().contains("failed with A_FAULT"), "{error}");
                        break;
                    }
                }
                // THEN what is held is right all the time
                for &unit in &held {
                    let mut bytes = vec![0; model.bytes[unit as usize] as usize];
                    device.read(model.device_offset(unit), &mut bytes).unwrap();
                    assert!(bytes.iter().all(|&byte| byte == unit as u8 + 1), "unit {unit} of {model:?}");
                }
            }
            // AND whatever the caller was told it held is released.
            match leave(&mut session, Stream(0)) {
                Ok(mut released) => {
                    released.sort_unstable();
                    held.sort_unstable();
                    assert_eq!(released, held);
                }
                Err(error) => assert!(error.to_string().contains("failed with A_FAULT"), "{error}"),
            }
            held.clear();
        }
    }
}
