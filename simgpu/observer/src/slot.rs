//! Where an observer is put.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::task::Submitted;

/// Who is told. The functions are called on the program's threads, without any lock of the driver's or the runtime's.
#[repr(C)]
pub struct Observer {
    /// A call has begun: the function's exported name, of `len` bytes.
    pub entered: unsafe extern "C" fn(name: *const u8, len: usize),
    /// The call of this thread that began last ends with this status.
    pub left: unsafe extern "C" fn(status: i32),
    /// A call of this thread has submitted work.
    pub submitted: unsafe extern "C" fn(work: *const Submitted),
    /// A call of this thread has made a node of a graph, by its handle: a copy of `original`, unless that is 0.
    pub node_made: unsafe extern "C" fn(node: usize, original: usize),
}

/// The function that the driver exports: it sets the observer, or removes it if that is null.
pub const OBSERVE_DRIVER: &CStr = c"simgpu_observe_driver";

/// The same of the runtime.
pub const OBSERVE_RUNTIME: &CStr = c"simgpu_observe_runtime";

/// The type of both.
pub type Observe = unsafe extern "C" fn(*const Observer);

/// The place for an observer.
pub struct Slot(AtomicPtr<Observer>);

impl Slot {
    /// An empty one.
    pub const fn new() -> Slot {
        Slot(AtomicPtr::new(ptr::null_mut()))
    }

    /// Sets the observer, or removes it.
    pub fn set(&self, observer: Option<&'static Observer>) {
        self.0
            .store(observer.map_or(ptr::null_mut(), |observer| ptr::from_ref(observer).cast_mut()), Ordering::Release);
    }

    /// The observer, if there is one.
    pub fn observer(&self) -> Option<&'static Observer> {
        // SAFETY: only `set` stores, and it takes references that never end.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Tells that a call begins. The answer, if there is one, tells that it ends.
    pub fn enter(&self, name: &'static str) -> Option<Call> {
        let observer = self.observer()?;
        // SAFETY: the name is that of a function and never ends.
        unsafe { (observer.entered)(name.as_ptr(), name.len()) };
        Some(Call { observer })
    }

    /// Tells of submitted work.
    pub fn submit(&self, work: &Submitted) {
        if let Some(observer) = self.observer() {
            // SAFETY: the work is valid during the call.
            unsafe { (observer.submitted)(work) };
        }
    }

    /// Tells of a new node.
    pub fn node_made(&self, node: usize, original: usize) {
        if let Some(observer) = self.observer() {
            // SAFETY: takes any handles.
            unsafe { (observer.node_made)(node, original) };
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// An observed call in progress.
#[must_use]
pub struct Call {
    observer: &'static Observer,
}

impl Call {
    /// Tells that it ends.
    pub fn leave(self, status: i32) {
        // SAFETY: any status can be told.
        unsafe { (self.observer.left)(status) };
    }
}
