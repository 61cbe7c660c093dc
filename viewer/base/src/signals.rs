//! Signals: in words, and as a channel.

use std::io;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, unbounded};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::signal_name;

/// How a signal ended a process: `killed by SIGKILL`.
pub fn describe(signal: i32) -> String {
    match signal_name(signal) {
        Some(name) => format!("killed by {name}"),
        None => format!("killed by signal {signal}"),
    }
}

/// The background thread that receives signals of this process; it ends when this is dropped.
pub struct SignalReceiver {
    received: Receiver<i32>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalReceiver {
    /// Receives these signals, in place of what they do otherwise.
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

    /// The signals received.
    pub fn received(&self) -> &Receiver<i32> {
        &self.received
    }
}

impl Drop for SignalReceiver {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its hook.
            let _ = thread.join();
        }
    }
}
