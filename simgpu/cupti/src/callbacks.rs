//! The Callback API.

use std::ffi::{c_char, c_void};

use crate::names::{self, Domain};
use crate::result::{INVALID_PARAMETER, MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, SUCCESS};
use crate::subscriber::{self, Callback};
use crate::{nodes, source};

/// Handle of the only subscriber.
const SUBSCRIBER: usize = 0x5375_6273;

/// `CUPTI_CB_DOMAIN_SIZE`.
const DOMAINS: u32 = 7;

/// # Safety
/// `subscriber` is null or has room for a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiSubscribe(subscriber: *mut usize, callback: Option<Callback>, data: *mut c_void) -> u32 {
    let Some(callback) = callback.filter(|_| !subscriber.is_null()) else { return INVALID_PARAMETER };
    if !subscriber::subscribe(callback, data as usize) {
        return MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    }
    // SAFETY: the caller's promise.
    unsafe { *subscriber = SUBSCRIBER };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiUnsubscribe(subscriber: usize) -> u32 {
    if subscriber != SUBSCRIBER || !subscriber::unsubscribe() {
        return INVALID_PARAMETER;
    }
    nodes::want_none();
    source::update();
    SUCCESS
}

/// Accepts domains other than driver and runtime. These have no callbacks, except for graph nodes.
fn enable(subscriber: usize, domain: u32, change: impl FnOnce(Domain) -> bool) -> u32 {
    if subscriber != SUBSCRIBER || domain == 0 || domain >= DOMAINS || !Domain::of(domain).is_none_or(change) {
        return INVALID_PARAMETER;
    }
    source::update();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableCallback(on: u32, subscriber: usize, domain: u32, callback: u32) -> u32 {
    if domain == nodes::DOMAIN {
        nodes::want(callback, on != 0);
    }
    enable(subscriber, domain, |domain| subscriber::want(domain, callback, on != 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableDomain(on: u32, subscriber: usize, domain: u32) -> u32 {
    enable(subscriber, domain, |domain| {
        subscriber::want_all(domain, on != 0);
        true
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableAllDomains(on: u32, subscriber: usize) -> u32 {
    let both = [Domain::Driver, Domain::Runtime].map(|domain| cuptiEnableDomain(on, subscriber, domain as u32));
    both.into_iter().max().unwrap_or(SUCCESS)
}

/// # Safety
/// `name` is null or has room for a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetCallbackName(domain: u32, callback: u32, name: *mut *const c_char) -> u32 {
    let function = Domain::of(domain).and_then(|domain| names::of_callback(domain, callback));
    let Some(function) = function.filter(|_| !name.is_null()) else { return INVALID_PARAMETER };
    // SAFETY: the caller's promise.
    unsafe { *name = function.full_name.as_ptr() };
    SUCCESS
}
