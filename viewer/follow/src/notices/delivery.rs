//! Handing notices over, without making anybody wait.

use std::ffi::OsString;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::command;
use super::notice::Notice;
use super::options::Options;
use super::webhook::Webhook;
use memlab_base::output;

/// The time that deliveries may take after the program has ended.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time to end a delivery that began at the last moment.
const END_MARGIN: Duration = Duration::from_secs(1);

/// Commands and requests that are under way.
pub struct Deliveries {
    command: Option<OsString>,
    webhook: Option<Arc<Webhook>>,
    /// Whether the terminal shows the dashboard: then what is to be said waits.
    is_quiet: bool,
    /// Until when they may run; empty while the program does.
    deadline: Arc<OnceLock<Instant>>,
    /// Takes the end of each: what went wrong, if anything.
    over: Sender<Result<(), String>>,
    ends: Receiver<Result<(), String>>,
    under_way: usize,
}

impl Deliveries {
    /// To whom the options say.
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

    /// Begins to hand a notice over.
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
            // Nobody waits any more after the grace.
            let _ = over.send(result);
        };
        match std::thread::Builder::new().name("memlab-notice".into()).spawn(run) {
            Ok(_) => self.under_way += 1,
            Err(error) => self.fails(format!("a notice cannot be sent: {error}")),
        }
    }

    /// Something went wrong: it is said as soon as it can be.
    pub fn fails(&mut self, what: String) {
        self.under_way += 1;
        let _ = self.over.send(Err(what));
    }

    /// Says what went wrong so far, unless the terminal is in use.
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

    /// The program is over: waits for what is under way, for a while, and says what went wrong.
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
