//! Waits for a point at which none of the program's work runs on a device and no new work can start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use interpose_base::background;
use interpose_driver::calls::{self, Code};
use interpose_driver::vmm::{captures, gate};

/// The closed gate.
///
/// It opens again when dropped, unless it must stay closed. After a panic in memlab it stays closed, since memory may be
/// missing. `restore` opens it if none is missing.
pub struct ClosedGate(bool);

impl ClosedGate {
    /// Returns the gate if an earlier operation left it closed.
    pub fn as_found() -> Option<Self> {
        gate::is_closed().then_some(Self(true))
    }

    pub fn stay_closed(mut self) {
        self.0 = false;
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        if self.0 && !std::thread::panicking() {
            gate::open();
        }
    }
}

/// Closes the gate, then waits for the threads inside and for the devices.
///
/// If that fails, the gate opens again.
pub fn quiesce(contexts: &[u64], deadline: Instant, synchronising: impl FnOnce()) -> Result<ClosedGate, String> {
    let closed = loop {
        while captures::is_any() {
            if Instant::now() >= deadline {
                return Err("the program is capturing a CUDA graph, which nothing may interrupt: nothing was moved, \
                            try again later or with a longer --timeout"
                    .to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        gate::close();
        let closed = ClosedGate(true);
        if !gate::wait_until_empty(deadline) {
            return Err(
                "a thread of the program is in a CUDA call that has not returned: nothing was moved, try again \
                 with a longer --timeout"
                    .to_owned(),
            );
        }
        // A capture that began before the gate was closed must pass it to end.
        if !captures::is_any() {
            break closed;
        }
    };
    synchronising();
    synchronize(contexts, deadline)?;
    Ok(closed)
}

/// Waits for all work of these contexts, on another thread, since the driver may never return.
///
/// A kernel can wait for another process, a callback for a lock.
fn synchronize(contexts: &[u64], deadline: Instant) -> Result<(), String> {
    static UNDER_WAY: AtomicBool = AtomicBool::new(false);
    if UNDER_WAY.swap(true, Ordering::AcqRel) {
        return Err(
            "the program's GPU work of an earlier attempt is still running: nothing was moved, try again later"
                .to_owned(),
        );
    }
    let contexts = contexts.to_vec();
    let (done, outcome) = mpsc::channel();
    let work = move || {
        calls::relax_captures();
        let result = contexts.iter().try_for_each(|&context| {
            calls::set_context(context)?;
            calls::synchronize()
        });
        UNDER_WAY.store(false, Ordering::Release);
        let _ = done.send(result); // The receiver is dropped after the deadline.
    };
    if let Err(error) = background::spawn("memlab-sync", work) {
        UNDER_WAY.store(false, Ordering::Release);
        return Err(format!("no thread could be started ({error}): nothing was moved"));
    }
    match outcome.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(code)) => Err(failed(code)),
        Err(RecvTimeoutError::Timeout) => {
            Err("the program's GPU work did not end in time: nothing was moved, try again \
                 with a longer --timeout"
                .to_owned())
        }
        Err(RecvTimeoutError::Disconnected) => Err(failed(Code::NOT_INITIALIZED)),
    }
}

fn failed(code: Code) -> String {
    format!("waiting for the program's GPU work failed ({code}): nothing was moved")
}
