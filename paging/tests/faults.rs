//! Failing device calls: the error names the reason, no units stay held, and the next forward is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::common::model::models;
use crate::common::{enter, leave};
use memlab_paging::backend::Host;
use memlab_paging::{Arena, Backend, DeviceMemory, Error, Event, Pipeline, Result, Stream, Transfer};
use proptest::prelude::*;

/// The host backend with one failing call.
struct Faulty {
    host: Host,
    /// Calls until the failure; negative: never.
    remaining: AtomicI64,
}

impl Faulty {
    fn check(&self, call: &str) -> Result<()> {
        match self.remaining.fetch_sub(1, Ordering::Relaxed) {
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
        self.check("create_event")?;
        self.host.create_event(timed)
    }

    fn destroy_event(&self, event: Event) {
        self.host.destroy_event(event);
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        self.check("record")?;
        self.host.record(event, stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<bool> {
        self.check("wait")?;
        self.host.wait(stream, event)
    }

    fn block(&self, event: Event, longest: Duration) -> Result<bool> {
        self.check("block")?;
        self.host.block(event, longest)
    }

    unsafe fn copy(&self, transfer: &Transfer, stream: Stream) -> Result<()> {
        self.check("copy")?;
        // SAFETY: the caller's guarantees are passed on unchanged.
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
        // GIVEN a device with one failing call
        let backend = Arc::new(Faulty { host: Host::new(None).unwrap(), remaining: AtomicI64::new(-1) });
        let arena = Arc::new(Arena::new(model.arena_bytes()).unwrap());
        let device = DeviceMemory::new(None, model.device_bytes()).unwrap();
        for (unit, &bytes) in model.bytes.iter().enumerate() {
            let weights = vec![unit as u8 + 1; bytes as usize];
            // SAFETY: the vector outlives the call and is not written to.
            unsafe { arena.fill(model.arena_offset(unit as u32), weights.as_ptr() as u64, bytes) }.unwrap();
        }
        let pipeline = Pipeline::with_backend(arena, backend.clone()).unwrap();
        // SAFETY: the memory is dropped after the pipeline.
        unsafe { pipeline.configure(model.configuration(device.address()), Stream(0)) }.unwrap();
        backend.remaining.store(fault, Ordering::Relaxed);
        // WHEN forwards run, each to its end or to an error that names the call
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
                // THEN the held units are right at all times
                for &unit in &held {
                    let mut bytes = vec![0; model.bytes[unit as usize] as usize];
                    device.read(model.device_offset(unit), &mut bytes).unwrap();
                    assert!(bytes.iter().all(|&byte| byte == unit as u8 + 1), "unit {unit} of {model:?}");
                }
            }
            // AND all units reported as held are released.
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
