//! Signals, in words and as a channel.

use std::io;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, unbounded};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::signal_name;

/// Describes a signal that ended a process: `killed by SIGKILL`.
pub fn describe(signal: i32) -> String {
    match signal_name(signal) {
        Some(name) => format!("killed by {name}"),
        None => format!("killed by signal {signal}"),
    }
}

/// Background thread that receives signals of this process. Dropping this ends it.
pub struct SignalReceiver {
    received: Receiver<i32>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalReceiver {
    /// Receives these signals, in place of their default actions.
    ///
    /// # Errors
    ///
    /// If the system does not allow it.
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let mut signals = Signals::new(signals)?;
        let handle = signals.handle();
        let (sender, received) = unbounded();
        let forward = move || signals.forever().take_while(|signal| sender.send(*signal).is_ok()).for_each(drop);
        let thread = std::thread::Builder::new().name("memlab-signals".into()).spawn(forward)?;
        Ok(Self { received, handle, thread: Some(thread) })
    }

    /// Channel of received signals.
    pub fn received(&self) -> &Receiver<i32> {
        &self.received
    }
}

impl Drop for SignalReceiver {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic there.
            let _ = thread.join();
        }
    }
}
