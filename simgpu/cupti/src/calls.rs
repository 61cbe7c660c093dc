//! The calls of a thread, and their records.
//!
//! A call and all work that it submits share a correlation id. A driver call inside a runtime call has the runtime
//! call's id: the subscriber is notified of it, but it makes no record. When a call ends, its records are written in
//! the order of a real card: its work, external correlations, then the call.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

use simgpu_observer::Submitted;

use crate::names::{self, Domain, Function};
use crate::records::{Api, External, Record, kind};
use crate::subscriber::{self, Site};
use crate::timeline::{self, Span};
use crate::{buffers, clock, external, settings, work};

/// A call in progress.
struct Call {
    domain: Domain,
    function: Option<Function>,
    correlation: u32,
    correlation_data: u64,
    /// True for a driver call inside a runtime call.
    is_inner: bool,
    start: u64,
    work: Vec<(Submitted, Span)>,
}

thread_local! {
    /// Calls in progress, the innermost last.
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
}

/// Thread numbering: 0 for pthread_self, 1 for the system's ids (`CUpti_ActivityThreadIdType`).
pub static THREAD_IDS: AtomicU32 = AtomicU32::new(0);

fn with<R>(body: impl FnOnce(&mut Vec<Call>) -> R) -> Option<R> {
    CALLS.try_with(|calls| body(&mut calls.borrow_mut())).ok()
}

fn new_correlation() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Records the start of a call.
pub fn enter(domain: Domain, name: &str) {
    let function = names::find(domain, name);
    let outer = with(|calls| calls.last().map(|call| (call.domain, call.correlation))).flatten();
    let outer = outer.filter(|(of, _)| domain == Domain::Driver && *of == Domain::Runtime);
    let correlation = outer.map_or_else(new_correlation, |(_, correlation)| correlation);
    let mut correlation_data = 0;
    if let Some(function) = function {
        subscriber::notify(domain, function, Site::Enter, correlation, &mut correlation_data);
    }
    let is_inner = outer.is_some();
    let start = if is_inner { 0 } else { clock::now() };
    let call = Call { domain, function, correlation, correlation_data, is_inner, start, work: Vec::new() };
    with(|calls| calls.push(call));
}

/// Adds submitted work to the innermost call.
pub fn submit(work: &Submitted) {
    let span = timeline::schedule(work);
    with(|calls| {
        if let Some(call) = calls.last_mut() {
            call.work.push((*work, span));
        }
    });
}

/// Ends the innermost call.
pub fn leave(status: i32) {
    let Some(mut call) = with(Vec::pop).flatten() else { return };
    let end = if call.is_inner { 0 } else { clock::now() };
    if let Some(function) = call.function {
        subscriber::notify(call.domain, function, Site::Exit(status), call.correlation, &mut call.correlation_data);
    }
    if call.is_inner {
        let work = std::mem::take(&mut call.work);
        with(|calls| calls.last_mut().map(|outer| outer.work.extend(work)));
    } else {
        let records = call.records(end, status);
        if !records.is_empty() {
            buffers::write(&records);
        }
    }
}

impl Call {
    fn records(&self, end: u64, status: i32) -> Vec<Record> {
        let mut records = work::records(&self.work, self.correlation);
        let kind = match self.domain {
            Domain::Driver => kind::DRIVER,
            Domain::Runtime => kind::RUNTIME,
        };
        let function = self.function.filter(|function| settings::are_calls_wanted(self.domain, function.callback));
        if let Some(function) = function.filter(|_| settings::is_wanted(kind)) {
            records.extend(self.externals());
            records.push(Record::Api(Api {
                kind,
                callback: function.callback,
                start: self.start,
                end,
                process: std::process::id(),
                thread: thread_id(),
                correlation: self.correlation,
                status,
            }));
        }
        records
    }

    fn externals(&self) -> Vec<Record> {
        if !settings::is_wanted(kind::EXTERNAL_CORRELATION) {
            return Vec::new();
        }
        let record = |(external_kind, id)| {
            let (kind, correlation) = (kind::EXTERNAL_CORRELATION, self.correlation);
            Record::External(External { kind, external_kind, id, correlation, reserved: 0 })
        };
        external::current().into_iter().map(record).collect()
    }
}

fn thread_id() -> u32 {
    // SAFETY: neither has preconditions.
    unsafe { if THREAD_IDS.load(Ordering::Relaxed) == 1 { libc::gettid() as u32 } else { libc::pthread_self() as u32 } }
}
