//! Slot for an observer.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::task::Submitted;

/// Callbacks of an observer. They run on the program's threads, without any lock of the driver or the runtime.
#[repr(C)]
pub struct Observer {
    /// Called at the start of a call, with the function's exported name of `len` bytes.
    pub entered: unsafe extern "C" fn(name: *const u8, len: usize),
    /// Called at the end of this thread's innermost call, with its status.
    pub left: unsafe extern "C" fn(status: i32),
    /// Called when a call of this thread has submitted work.
    pub submitted: unsafe extern "C" fn(work: *const Submitted),
    /// Called when a call of this thread has made a graph node, by its handle.
    ///
    /// The node is a copy of `original`, unless that is 0.
    pub node_made: unsafe extern "C" fn(node: usize, original: usize),
}

/// Function that the driver exports: it sets the observer, or removes it if null.
pub const OBSERVE_DRIVER: &CStr = c"simgpu_observe_driver";

/// Function that the runtime exports for the same purpose.
pub const OBSERVE_RUNTIME: &CStr = c"simgpu_observe_runtime";

/// Type of both.
pub type Observe = unsafe extern "C" fn(*const Observer);

/// Slot that holds an observer or none.
pub struct Slot(AtomicPtr<Observer>);

impl Slot {
    /// Returns an empty slot.
    pub const fn new() -> Slot {
        Slot(AtomicPtr::new(ptr::null_mut()))
    }

    /// Sets the observer, or removes it.
    pub fn set(&self, observer: Option<&'static Observer>) {
        self.0
            .store(observer.map_or(ptr::null_mut(), |observer| ptr::from_ref(observer).cast_mut()), Ordering::Release);
    }

    /// Returns the observer, if any.
    pub fn observer(&self) -> Option<&'static Observer> {
        // SAFETY: only `set` stores, and it takes references that never end.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Reports the start of a call. The returned [`Call`], if any, reports its end.
    pub fn enter(&self, name: &'static str) -> Option<Call> {
        let observer = self.observer()?;
        // SAFETY: the name is that of a function and never ends.
        unsafe { (observer.entered)(name.as_ptr(), name.len()) };
        Some(Call { observer })
    }

    /// Reports submitted work.
    pub fn submit(&self, work: &Submitted) {
        if let Some(observer) = self.observer() {
            // SAFETY: the work is valid during the call.
            unsafe { (observer.submitted)(work) };
        }
    }

    /// Reports a new node.
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
    /// Reports its end.
    pub fn leave(self, status: i32) {
        // SAFETY: takes any status.
        unsafe { (self.observer.left)(status) };
    }
}
