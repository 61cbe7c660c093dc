//! The subscriber, called at the start and the end of calls. Only one can exist.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::names::{Domain, Function};
use crate::settings::CALLBACKS;

/// `CUpti_CallbackFunc`: the program's data, domain, callback id, `CUpti_CallbackData`.
pub type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

/// `CUpti_CallbackData`.
#[repr(C)]
struct Data {
    /// 0 at the start, 1 at the end.
    site: u32,
    function: *const c_char,
    /// Null: the arguments of the call are not passed on.
    parameters: *const c_void,
    status: *mut c_void,
    symbol: *const c_char,
    context: *mut c_void,
    context_id: u32,
    correlation_data: *mut u64,
    correlation: u32,
}

const _: () = assert!(size_of::<Data>() == 72);

/// The subscriber: its function and its data.
static SUBSCRIBER: Mutex<Option<(Callback, usize)>> = Mutex::new(None);

/// Enabled functions, by domain.
static WANTED: [[AtomicBool; CALLBACKS]; 2] = [const { [const { AtomicBool::new(false) }; CALLBACKS] }; 2];

/// Returns the subscriber's function and data.
pub fn subscriber() -> Option<(Callback, usize)> {
    *SUBSCRIBER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Subscribes; returns false if a subscriber exists.
pub fn subscribe(callback: Callback, data: usize) -> bool {
    let mut subscriber = SUBSCRIBER.lock().unwrap_or_else(PoisonError::into_inner);
    if subscriber.is_some() {
        return false;
    }
    *subscriber = Some((callback, data));
    true
}

/// Ends the subscription; returns false if none exists.
pub fn unsubscribe() -> bool {
    [Domain::Driver, Domain::Runtime].into_iter().for_each(|domain| want_all(domain, false));
    SUBSCRIBER.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
}

/// Enables or disables callbacks for a function; returns false for an unknown function.
pub fn want(domain: Domain, callback: u32, wanted: bool) -> bool {
    let function = WANTED[domain as usize - 1].get(callback as usize);
    function.map(|function| function.store(wanted, Ordering::Relaxed)).is_some()
}

/// Enables or disables callbacks for all functions.
pub fn want_all(domain: Domain, wanted: bool) {
    WANTED[domain as usize - 1].iter().for_each(|function| function.store(wanted, Ordering::Relaxed));
}

/// Returns true if any callback is enabled.
pub fn is_any_wanted() -> bool {
    WANTED.iter().flatten().any(|function| function.load(Ordering::Relaxed))
}

/// Returns true if callbacks for a function are enabled.
pub fn is_wanted(domain: Domain, callback: u32) -> bool {
    WANTED[domain as usize - 1].get(callback as usize).is_some_and(|function| function.load(Ordering::Relaxed))
}

/// Point of a call at which the subscriber is called.
pub enum Site {
    Enter,
    /// With the status that the call returns.
    Exit(i32),
}

/// Calls the subscriber if this call is enabled.
///
/// `correlation_data` is the subscriber's, from the start of the call to its end.
pub fn notify(domain: Domain, function: Function, site: Site, correlation: u32, correlation_data: &mut u64) {
    if !is_wanted(domain, function.callback) {
        return;
    }
    let Some((callback, own)) = subscriber() else { return };
    let (site, mut status) = match site {
        Site::Enter => (0, 0),
        Site::Exit(status) => (1, status),
    };
    let data = Data {
        site,
        function: function.name.as_ptr(),
        parameters: std::ptr::null(),
        status: (&raw mut status).cast(),
        symbol: std::ptr::null(),
        context: std::ptr::null_mut(),
        context_id: 0,
        correlation_data,
        correlation,
    };
    // SAFETY: the program promised such a function; the data is valid during the call.
    unsafe { callback(own as *mut c_void, domain as u32, function.callback, (&raw const data).cast()) };
}
