//! Delivers notices in the background.

use std::ffi::OsString;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::command;
use super::notice::Notice;
use super::options::Options;
use super::webhook::Webhook;
use memlab_base::output;

/// Longest time for deliveries after the program has ended.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to end a delivery that began at the last moment.
const END_MARGIN: Duration = Duration::from_secs(1);

/// Commands and requests under way.
pub struct Deliveries {
    command: Option<OsString>,
    webhook: Option<Arc<Webhook>>,
    /// True if the terminal shows the dashboard, so that messages must wait.
    is_quiet: bool,
    /// Deadline of the deliveries; empty while the program runs.
    deadline: Arc<OnceLock<Instant>>,
    /// Sender for the result of each delivery.
    over: Sender<Result<(), String>>,
    ends: Receiver<Result<(), String>>,
    under_way: usize,
}

impl Deliveries {
    /// Creates the deliveries to the recipients in the options.
    pub fn new(options: &Options, is_quiet: bool) -> Self {
        let (over, ends) = unbounded();
        Self {
            command: options.notify.clone(),
            webhook: options.webhook.as_ref().map(|address| Arc::new(Webhook::new(address))),
            is_quiet,
            deadline: Arc::default(),
            over,
            ends,
            under_way: 0,
        }
    }

    /// Starts the delivery of a notice.
    pub fn deliver(&mut self, notice: &Notice) {
        let notice = Arc::new(notice.clone());
        if let Some(command) = self.command.clone() {
            match command::start(&command, &notice, self.is_quiet) {
                Ok(child) => {
                    let notice = notice.clone();
                    self.in_background(move |may_run| command::wait(&command, child, &notice, may_run));
                }
                Err(error) => self.fails(format!("--notify: sh cannot be started: {error}")),
            }
        }
        if let Some(webhook) = self.webhook.clone() {
            self.in_background(move |may_run| webhook.send(&notice.json(), may_run));
        }
        self.print_failures();
    }

    fn in_background(&mut self, work: impl FnOnce(&dyn Fn() -> bool) -> Result<(), String> + Send + 'static) {
        let (over, deadline) = (self.over.clone(), self.deadline.clone());
        let run = move || {
            let result = work(&|| deadline.get().is_none_or(|deadline| Instant::now() < *deadline));
            // After the deadline, nobody receives results.
            let _ = over.send(result);
        };
        match std::thread::Builder::new().name("memlab-notice".into()).spawn(run) {
            Ok(_) => self.under_way += 1,
            Err(error) => self.fails(format!("a notice cannot be sent: {error}")),
        }
    }

    /// Adds a failure, which is reported as soon as possible.
    pub fn fails(&mut self, what: String) {
        self.under_way += 1;
        let _ = self.over.send(Err(what));
    }

    /// Reports the failures so far, unless the dashboard uses the terminal.
    pub fn print_failures(&mut self) {
        if !self.is_quiet {
            while let Ok(result) = self.ends.try_recv() {
                self.on_over(result);
            }
        }
    }

    fn on_over(&mut self, result: Result<(), String>) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Err(what) = result {
            output::note(what);
        }
    }

    /// Called when the program has ended: waits a while for deliveries under way, and reports failures.
    pub fn finish(mut self) {
        let deadline = *self.deadline.get_or_init(|| Instant::now() + DELIVERY_TIMEOUT);
        while self.under_way > 0 {
            match self.ends.recv_deadline(deadline + END_MARGIN) {
                Ok(result) => self.on_over(result),
                Err(_) => {
                    let seconds = DELIVERY_TIMEOUT.as_secs();
                    output::note(format_args!("--webhook: no answer within {seconds} s of the program's end"));
                    return;
                }
            }
        }
    }
}
