//! Other profilers that use CUPTI, such as torch.profiler.
//!
//! They have priority.
//!
//! CUPTI has one subscriber and one receiver of buffers, the last that registered. So memlab intercepts the calls of
//! PyTorch's profiler. At the first call memlab stops. When the profiler has ended everything that it began, memlab can
//! begin again.

use std::ffi::c_void;
use std::sync::{LazyLock, OnceLock};

use cupti_sys::bindings::{
    CUpti_ActivityKind, CUpti_BuffersCallbackCompleteFunc, CUpti_BuffersCallbackRequestFunc, CUpti_CallbackFunc,
    CUpti_SubscriberHandle, CUpti_TimestampCallbackFunc, CUptiResult,
};
use parking_lot::Mutex;

use super::library::CUPTI;
use interpose_base::clock::unix_ns;
use interpose_base::got_patch::{self, Replacements};
use interpose_base::locks;
use interpose_base::panics;

/// Library that contains PyTorch's profiler.
const PROFILER: &str = "libtorch_cpu.so";

type Buffers = (CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);

/// Subscription and activity kinds of other profilers.
#[derive(Default)]
struct OtherProfilers {
    /// Their subscription.
    subscriber: usize,
    /// Activity kinds, as bits.
    kinds: u128,
    /// Buffers of other profilers, which may register them only once.
    buffers: Option<Buffers>,
    /// Clock of their records; PyTorch's clock counts cycles.
    clock: CUpti_TimestampCallbackFunc,
}

static OTHERS: LazyLock<Mutex<OtherProfilers>> = LazyLock::new(Mutex::default);

/// Called when another profiler begins.
static ON_OTHER_PROFILER: OnceLock<fn()> = OnceLock::new();

/// Intercepts the profiler's calls from now on.
///
/// `step_aside` ends memlab's recording, if it is active.
pub fn watch(step_aside: fn()) {
    let _ = ON_OTHER_PROFILER.set(step_aside);
    let mut replacements = Replacements::default();
    replacements.insert(b"cuptiSubscribe", subscribe as *const c_void);
    replacements.insert(b"cuptiUnsubscribe", unsubscribe as *const c_void);
    replacements.insert(b"cuptiFinalize", finalize as *const c_void);
    replacements.insert(b"cuptiActivityRegisterCallbacks", register_buffers as *const c_void);
    replacements.insert(b"cuptiActivityRegisterTimestampCallback", register_clock as *const c_void);
    replacements.insert(b"cuptiActivityEnable", enable as *const c_void);
    replacements.insert(b"cuptiActivityDisable", disable as *const c_void);
    got_patch::patch_object(PROFILER, &replacements);
}

/// Returns true if no other profiler uses CUPTI.
pub fn are_done() -> bool {
    let others = OTHERS.lock();
    others.subscriber == 0 && others.kinds == 0
}

/// Registers the other profilers' buffers and clock again, since they may not register them a second time.
pub fn hand_back() {
    let (buffers, clock) = {
        let others = OTHERS.lock();
        (others.buffers, others.clock)
    };
    let Some(cupti) = CUPTI.get() else { return };
    if let Some((request, complete)) = buffers {
        // SAFETY: the program's own callbacks, as it registered them.
        let _ = unsafe { cupti.register_buffers(request, complete) };
    }
    // SAFETY: as above; the other clock can be called from any thread.
    let _ = unsafe { cupti.register_clock(clock.or(Some(cuptis_clock))) };
}

/// Counts like CUPTI's default clock.
unsafe extern "C" fn cuptis_clock() -> u64 {
    unix_ns()
}

/// Forgets other profilers in a forked child.
pub fn reset_in_child() {
    locks::reset_in_child(&OTHERS, OtherProfilers::default());
}

fn step_aside() {
    if let Some(step_aside) = ON_OTHER_PROFILER.get() {
        panics::catch(step_aside);
    }
}

/// Calls a CUPTI function for the program; returns an error if CUPTI lacks it.
fn real<F>(function: impl Fn(&cupti_sys::Cupti) -> Option<F>, call: impl FnOnce(F) -> CUptiResult) -> CUptiResult {
    CUPTI.get().and_then(function).map_or(CUptiResult::CUPTI_ERROR_UNKNOWN, call)
}

unsafe extern "C" fn subscribe(
    handle: *mut CUpti_SubscriberHandle,
    callback: CUpti_CallbackFunc,
    data: *mut c_void,
) -> CUptiResult {
    step_aside();
    // SAFETY: the caller's arguments.
    let result = real(|cupti| cupti.cuptiSubscribe, |function| unsafe { function(handle, callback, data) });
    if result == CUptiResult::CUPTI_SUCCESS {
        // SAFETY: CUPTI has written it.
        OTHERS.lock().subscriber = unsafe { *handle } as usize;
    }
    result
}

unsafe extern "C" fn unsubscribe(handle: CUpti_SubscriberHandle) -> CUptiResult {
    // SAFETY: the caller's argument.
    let result = real(|cupti| cupti.cuptiUnsubscribe, |function| unsafe { function(handle) });
    let mut others = OTHERS.lock();
    if result == CUptiResult::CUPTI_SUCCESS && others.subscriber == handle as usize {
        others.subscriber = 0;
    }
    result
}

unsafe extern "C" fn finalize() -> CUptiResult {
    step_aside();
    // SAFETY: the caller's call.
    let result = real(|cupti| cupti.cuptiFinalize, |function| unsafe { function() });
    let mut others = OTHERS.lock();
    (others.subscriber, others.kinds) = (0, 0);
    result
}

unsafe extern "C" fn register_buffers(
    request: CUpti_BuffersCallbackRequestFunc,
    complete: CUpti_BuffersCallbackCompleteFunc,
) -> CUptiResult {
    step_aside();
    OTHERS.lock().buffers = Some((request, complete));
    // SAFETY: the caller's arguments.
    real(|cupti| cupti.cuptiActivityRegisterCallbacks, |function| unsafe { function(request, complete) })
}

unsafe extern "C" fn register_clock(clock: CUpti_TimestampCallbackFunc) -> CUptiResult {
    step_aside();
    OTHERS.lock().clock = clock;
    // SAFETY: the caller's argument.
    real(|cupti| cupti.cuptiActivityRegisterTimestampCallback, |function| unsafe { function(clock) })
}

unsafe extern "C" fn enable(kind: CUpti_ActivityKind) -> CUptiResult {
    step_aside();
    // SAFETY: the caller's argument.
    let result = real(|cupti| cupti.cuptiActivityEnable, |function| unsafe { function(kind) });
    if result == CUptiResult::CUPTI_SUCCESS {
        OTHERS.lock().kinds |= bit(kind);
    }
    result
}

unsafe extern "C" fn disable(kind: CUpti_ActivityKind) -> CUptiResult {
    // SAFETY: the caller's argument.
    let result = real(|cupti| cupti.cuptiActivityDisable, |function| unsafe { function(kind) });
    OTHERS.lock().kinds &= !bit(kind);
    result
}

fn bit(kind: CUpti_ActivityKind) -> u128 {
    1u128.checked_shl(kind.0).unwrap_or(0)
}
