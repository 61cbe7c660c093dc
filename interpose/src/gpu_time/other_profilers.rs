//! Other profilers that use CUPTI, such as torch.profiler. They go first.
//!
//! CUPTI has one subscriber and one receiver of buffers, the last that registered. So memlab takes part in the calls that
//! PyTorch's profiler makes: at the first it stops, and when the profiler has ended what it began, memlab can begin again.

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

/// The library that PyTorch's profiler is in.
const PROFILER: &str = "libtorch_cpu.so";

type Buffers = (CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);

/// The subscription and the kinds that other profilers have begun.
#[derive(Default)]
struct OtherProfilers {
    /// Their subscription.
    subscriber: usize,
    /// Kinds of activities, as bits.
    kinds: u128,
    /// They may register them only once.
    buffers: Option<Buffers>,
    /// The clock of their records; PyTorch's counts cycles.
    clock: CUpti_TimestampCallbackFunc,
}

static OTHERS: LazyLock<Mutex<OtherProfilers>> = LazyLock::new(Mutex::default);

/// Called when another profiler begins.
static ON_OTHER_PROFILER: OnceLock<fn()> = OnceLock::new();

/// From now on, memlab takes part in the profiler's calls. `step_aside` ends what memlab does, if it does something.
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

/// Whether nobody else uses CUPTI.
pub fn are_done() -> bool {
    let others = OTHERS.lock();
    others.subscriber == 0 && others.kinds == 0
}

/// Gives others the buffers and the clock again, since they may not register them a second time.
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

/// Counts as the clock that CUPTI has by itself.
unsafe extern "C" fn cuptis_clock() -> u64 {
    unix_ns()
}

/// Called in a forked child.
pub fn reset_in_child() {
    locks::reset_in_child(&OTHERS, OtherProfilers::default());
}

fn step_aside() {
    if let Some(step_aside) = ON_OTHER_PROFILER.get() {
        panics::catch(step_aside);
    }
}

/// Calls a function of CUPTI's for the program; with an error if there is none.
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
    // SAFETY: as the caller has it.
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
