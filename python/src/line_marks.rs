//! Marks of line profiles: the moments when a profiled function begins a line.
//!
//! `LineMarks` has the callbacks of `sys.monitoring` (CPython 3.12 and later) and a trace function for `sys.settrace`
//! (before). They run before every line of a profiled function, so they only append a mark.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};

use memlab_live::{Mark, Moment, Sample};
use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyString};

use crate::library::Library;
use crate::live_books;

/// Number of executions of each line that sample PyTorch's own counters.
///
/// Sampling costs more than everything else.
const SAMPLES: u32 = 16;

/// Device that is profiled now.
static TARGET: AtomicI32 = AtomicI32::new(0);

/// Sets the device to profile from now on.
#[pyfunction]
pub fn set_target_device(device: i32) {
    TARGET.store(device, Ordering::Relaxed);
}

/// A function of a profile.
struct Target {
    profile: u64,
    function: u32,
}

struct Registered {
    /// Keeps the code object alive, so that its address stays valid.
    _code: Py<PyAny>,
    first_line: u32,
    targets: Vec<Target>,
}

#[derive(Default)]
struct Registry {
    codes: HashMap<usize, Registered>,
    /// Number of samples of a line, by code object and line.
    samples: HashMap<(usize, u32), u32>,
    /// Frames whose current line began with a sample.
    sampled: HashMap<usize, ()>,
}

/// Callbacks for all line profiles of the process.
#[pyclass(frozen, module = "memlab._native")]
pub struct LineMarks {
    registry: Mutex<Registry>,
    /// Returns PyTorch's counters of a device.
    sampler: Py<PyAny>,
}

#[pymethods]
impl LineMarks {
    #[new]
    fn new(sampler: Py<PyAny>) -> Self {
        Self { registry: Mutex::default(), sampler }
    }

    /// Marks the code's lines for a function of a profile from now on.
    fn register(&self, code: Bound<PyAny>, first_line: u32, profile: u64, function: u32) {
        let mut registry = self.registry.lock();
        let registered = registry.codes.entry(code.as_ptr() as usize).or_insert_with(|| Registered {
            _code: code.clone().unbind(),
            first_line,
            targets: Vec::new(),
        });
        registered.targets.push(Target { profile, function });
    }

    /// Stops marking the code's lines for a profile.
    fn unregister(&self, code: Bound<PyAny>, profile: u64) {
        let mut registry = self.registry.lock();
        let key = code.as_ptr() as usize;
        let Some(registered) = registry.codes.get_mut(&key) else { return };
        registered.targets.retain(|target| target.profile != profile);
        if registered.targets.is_empty() {
            registry.codes.remove(&key);
            registry.samples.retain(|(code, _), _| *code != key);
        }
    }

    // Callbacks of sys.monitoring.

    fn on_line(&self, py: Python, code: Bound<PyAny>, line: u32) {
        self.begin(py, code.as_ptr() as usize, current_frame(), Some(line));
    }

    fn on_start(&self, py: Python, code: Bound<PyAny>, _offset: i64) {
        self.begin(py, code.as_ptr() as usize, current_frame(), None);
    }

    fn on_resume(&self, py: Python, code: Bound<PyAny>, _offset: i64) {
        let frame = current_frame();
        self.begin(py, code.as_ptr() as usize, frame, Some(line_of(frame)));
    }

    fn on_leave(&self, py: Python, code: Bound<PyAny>, _offset: i64, _value: Bound<PyAny>) {
        self.leave(py, code.as_ptr() as usize, current_frame());
    }

    /// Marks the line when an exception is thrown into a waiting generator.
    fn on_throw(&self, py: Python, code: Bound<PyAny>, _offset: i64, _error: Bound<PyAny>) {
        let frame = current_frame();
        self.begin(py, code.as_ptr() as usize, frame, Some(line_of(frame)));
    }

    /// Trace function for sys.settrace.
    fn __call__(
        slf: Bound<Self>,
        frame: Bound<PyAny>,
        event: Bound<PyString>,
        _argument: Bound<PyAny>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = slf.py();
        let this = slf.get();
        // SAFETY: the frame is alive; the function returns a new reference.
        let code: Bound<PyAny> =
            unsafe { Bound::from_owned_ptr(py, ffi::PyFrame_GetCode(frame.as_ptr().cast()).cast()) };
        let (key, address) = (code.as_ptr() as usize, frame.as_ptr() as usize);
        if !this.registry.lock().codes.contains_key(&key) {
            return Ok(None);
        }
        match event.to_str()? {
            // A resumed generator is at one of its lines. A called function is not at a line yet.
            "call" if frame.getattr("f_lasti")?.extract::<i64>()? > 0 && is_generator(&code)? => {
                this.begin(py, key, address, Some(line_of(address)));
            }
            "call" => this.begin(py, key, address, None),
            "line" => this.begin(py, key, address, Some(line_of(address))),
            "return" => this.leave(py, key, address),
            _ => {}
        }
        Ok(Some(slf.clone().into_any().unbind()))
    }
}

impl LineMarks {
    /// Marks that a frame begins a line; None: its function was called.
    fn begin(&self, py: Python, code: usize, frame: usize, line: Option<u32>) {
        let Some(library) = Library::get() else { return };
        let device = TARGET.load(Ordering::Relaxed);
        let wants_sample = {
            let mut registry = self.registry.lock();
            let registry = &mut *registry;
            let Some(registered) = registry.codes.get(&code) else { return };
            let line = line.unwrap_or(registered.first_line);
            let count = registry.samples.entry((code, line)).or_default();
            *count = count.saturating_add(1);
            if *count <= SAMPLES {
                registry.sampled.insert(frame, ());
                true
            } else {
                registry.sampled.remove(&frame).is_some()
            }
        };
        let sample = if wants_sample { self.sample(py, device) } else { None };
        let registry = self.registry.lock();
        let Some(registered) = registry.codes.get(&code) else { return };
        let line = line.unwrap_or(registered.first_line);
        let moment = |function| Moment::Line {
            thread: thread(),
            frame: frame as u64,
            function,
            line,
            device,
            sample: sample.clone(),
        };
        mark(&registered.targets, library, moment);
    }

    /// Marks that a frame returned, yielded or was left by an exception.
    fn leave(&self, py: Python, code: usize, frame: usize) {
        let Some(library) = Library::get() else { return };
        let wants_sample = {
            let mut registry = self.registry.lock();
            if !registry.codes.contains_key(&code) {
                return;
            }
            registry.sampled.remove(&frame).is_some()
        };
        let sample = if wants_sample { self.sample(py, TARGET.load(Ordering::Relaxed)) } else { None };
        let registry = self.registry.lock();
        let Some(registered) = registry.codes.get(&code) else { return };
        mark(&registered.targets, library, |_| Moment::Left {
            thread: thread(),
            frame: frame as u64,
            sample: sample.clone(),
        });
    }

    /// Samples PyTorch's counters.
    ///
    /// Called without the registry's lock, because it runs Python.
    fn sample(&self, py: Python, device: i32) -> Option<Box<Sample>> {
        let values = self.sampler.call1(py, (device,)).ok()?;
        values.extract::<Sample>(py).ok().map(Box::new)
    }
}

fn mark(targets: &[Target], library: &Library, moment: impl Fn(u32) -> Moment) {
    let Some(mut live) = live_books::unread() else { return };
    let position = library.position();
    for target in targets {
        live.books.mark(Mark { position, profile: target.profile, moment: moment(target.function) });
    }
    live.read_if_many_marks();
}

fn thread() -> u64 {
    // SAFETY: always succeeds.
    unsafe { libc::pthread_self() as u64 }
}

/// Returns the running frame.
///
/// A callback has no frame.
fn current_frame() -> usize {
    // SAFETY: the GIL is held; the reference is borrowed, and only its address is used.
    unsafe { ffi::PyEval_GetFrame() as usize }
}

/// Returns the line that a frame is in.
fn line_of(frame: usize) -> u32 {
    if frame == 0 {
        return 0;
    }
    // SAFETY: the frame runs on this thread, so it is alive; the GIL is held.
    let line = unsafe { ffi::PyFrame_GetLineNumber(frame as *mut ffi::PyFrameObject) };
    u32::try_from(line).unwrap_or(0)
}

/// Returns true if calling the code creates a generator, coroutine or asynchronous generator.
fn is_generator(code: &Bound<PyAny>) -> PyResult<bool> {
    const CO_GENERATOR: i64 = 0x20;
    const CO_COROUTINE: i64 = 0x80;
    const CO_ASYNC_GENERATOR: i64 = 0x200;
    let flags: i64 = code.getattr("co_flags")?.extract()?;
    Ok(flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR) != 0)
}
