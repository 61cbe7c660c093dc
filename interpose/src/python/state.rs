//! State of Python: readable stacks, and scheduling of the agent.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use memlab_trace::encode::{self, LineBuffer};

use interpose_base::log::Log;
use interpose_base::stderr::print_message;
use interpose_base::symbols;
use interpose_python::probe::Probe;
use interpose_python::walk::{Interpreter, Unsupported};

/// Function called by the interpreter: the agent.
pub type PendingCall = unsafe extern "C" fn(*mut c_void) -> c_int;

#[derive(Default)]
pub struct Python {
    /// Interpreter that was found, before any of its stacks was walked.
    candidate: AtomicPtr<Interpreter>,
    trusted: AtomicPtr<Interpreter>,
    /// Runs the agent; set if an interpreter was found.
    agent: OnceLock<PendingCall>,
    /// True if the interpreter was asked to run the agent and has not done so yet.
    pub(super) scheduled: AtomicBool,
    /// True if the agent has more to do: an exception from a signal handler of the program interrupted it, or it has put
    /// work off.
    pub(super) unfinished: AtomicBool,
    /// True if the agent must be scheduled again later.
    later: AtomicBool,
    /// True if the agent must run when the next backward has ended.
    awaits_backward: AtomicBool,
    /// Trace time from which `awaits_backward` is set; 0: never.
    awaits_backward_from: AtomicU64,
    /// True if a backward that the agent waits for has begun.
    pub(super) backward_came: AtomicBool,
    /// True if a tool in the program requests the current use of memory.
    pub(super) asked: AtomicBool,
}

impl Python {
    /// Looks for an interpreter, which will run `agent`.
    ///
    /// Called once, when the recorder is created.
    pub fn start(&self, log: &Log, agent: PendingCall) {
        match Interpreter::find(symbols::in_process) {
            Ok(interpreter) => {
                let _ = self.agent.set(agent);
                self.candidate.store(Box::into_raw(Box::new(interpreter)), Ordering::Release);
                self.schedule();
            }
            Err(Unsupported::NoPython) => {}
            Err(Unsupported::Unknown(what)) => Self::warn(log, &what),
        }
    }

    /// Returns the interpreter, once its stacks have proved readable.
    #[inline]
    pub fn trusted(&self) -> Option<&'static Interpreter> {
        // SAFETY: null, or an interpreter that is never freed.
        match unsafe { self.trusted.load(Ordering::Acquire).as_ref() } {
            None if !self.candidate.load(Ordering::Relaxed).is_null() => self.check_stacks(),
            trusted => trusted,
        }
    }

    /// Walks the first stack with the kernel checking every address.
    #[cold]
    fn check_stacks(&self) -> Option<&'static Interpreter> {
        // SAFETY: null, or an interpreter that is never freed.
        let interpreter = unsafe { self.candidate.load(Ordering::Acquire).as_ref() }?;
        let innermost = interpreter.innermost();
        if innermost.is_null() {
            return None; // This thread runs no Python; a later one does.
        }
        let checked = Probe::new().ok_or("no pipe").and_then(|probe| interpreter.walk_checked(innermost, &probe));
        self.candidate.store(ptr::null_mut(), Ordering::Release);
        match checked {
            Ok(()) => {
                self.trusted.store(ptr::from_ref(interpreter).cast_mut(), Ordering::Release);
                Some(interpreter)
            }
            Err(what) => {
                print_message(&format!("Python's frames have another layout ({what}): events carry no Python line"));
                None
            }
        }
    }

    /// Stops reading stacks: they did not agree with the interpreter's report.
    pub(super) fn distrust(&self, log: &Log, why: &str) {
        self.candidate.store(ptr::null_mut(), Ordering::Release);
        self.trusted.store(ptr::null_mut(), Ordering::Release);
        Self::warn(log, why);
    }

    fn warn(log: &Log, why: &str) {
        let what = format!("{why}: events carry no Python line");
        print_message(&what);
        log.append(encode::warning(&mut LineBuffer::<1024>::new(), &what));
    }

    /// Asks the interpreter to run the agent on its main thread, between two bytecodes.
    ///
    /// Needs no GIL.
    pub fn schedule(&self) {
        if !self.scheduled.swap(true, Ordering::AcqRel) && !self.schedule_call() {
            self.scheduled.store(false, Ordering::Release);
        }
    }

    /// Puts the agent in the interpreter's queue; returns true if the queue had room.
    fn schedule_call(&self) -> bool {
        let (Some(&agent), add) = (self.agent.get(), symbols::in_process(c"Py_AddPendingCall")) else { return false };
        if add.is_null() {
            return false;
        }
        // SAFETY: `int Py_AddPendingCall(int (*)(void *), void *)`, callable from any thread without the GIL.
        unsafe {
            let add: unsafe extern "C" fn(PendingCall, *mut c_void) -> c_int = std::mem::transmute(add);
            add(agent, ptr::null_mut()) == 0
        }
    }

    /// Records that the agent has put work off.
    pub(super) fn run_later(&self) {
        self.later.store(true, Ordering::Release);
    }

    /// Runs the agent after the next backward that begins `seconds` from now, or later.
    pub(super) fn await_backward(&self, now: u64, seconds: f64) {
        if seconds <= 0.0 {
            self.awaits_backward.store(true, Ordering::Relaxed);
        } else {
            self.awaits_backward_from.store(now + (seconds * 1e9) as u64, Ordering::Relaxed);
        }
    }

    /// Called for every node of a backward.
    ///
    /// The interpreter runs the pending call when the thread that called backward returns, if that is its main thread.
    #[inline]
    pub fn in_backward(&self) {
        if self.awaits_backward.load(Ordering::Relaxed) && self.awaits_backward.swap(false, Ordering::AcqRel) {
            self.backward_came.store(true, Ordering::Release);
            self.schedule();
        }
    }

    /// Schedules the agent again if it has put work off.
    ///
    /// Called a few times a second.
    pub fn retry_call(&self, now: u64) {
        let from = self.awaits_backward_from.load(Ordering::Relaxed);
        if from != 0 && now >= from {
            self.awaits_backward_from.store(0, Ordering::Relaxed);
            self.awaits_backward.store(true, Ordering::Relaxed);
        }
        if self.later.swap(false, Ordering::AcqRel) {
            self.run_again();
        }
    }

    /// Makes the agent report the use of memory, the next time that the main thread runs Python.
    pub fn request_call(&self) {
        self.asked.store(true, Ordering::Release);
        self.run_again();
    }

    /// Schedules the agent even if no layer is new.
    pub(super) fn run_again(&self) {
        self.unfinished.store(true, Ordering::Release);
        self.schedule();
    }
}
