//! GPU work and its duration: kernels, copies and fills, by the place that launched them.
//!
//! CUPTI's activity records contain the GPU work, and a correlation id identifies the call that submitted it. A callback at
//! the beginning of that call, on the program's thread, stores its stack, layer and phase under the id. Records arrive
//! later, on CUPTI's threads, and are summed up. The sums go into the trace periodically. Nodes of CUDA graphs count where
//! they were captured.
//!
//! CUPTI has one subscriber. torch.profiler has priority: memlab steps aside while it runs. Under Nsight no GPU time is
//! recorded.

mod books;
mod busy;
mod ending;
mod finished_work;
mod first_launch;
mod launches;
mod library;
mod names;
mod nodes;
mod other_profilers;
mod records;
mod sampling;
mod steps;
mod subscription;
mod sums;
mod timeline;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use cupti_sys::bindings::{
    CUpti_ActivityFlag, CUpti_ApiCallbackSite, CUpti_CallbackData, CUpti_CallbackDomain, CUpti_CallbackId,
    CUpti_CallbackIdResource, CUpti_GraphData, CUpti_ResourceData, CUptiResult,
};
use cupti_sys::{CallError, Cupti};
use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::StepWait;
use parking_lot::Mutex;

use self::books::BOOKS;
pub use self::ending::finish as finish_at_once;
use self::launches::Launch;
use self::library::CUPTI;
use self::subscription::ActiveSubscription;
use crate::attribution;
use crate::attribution::result::Attribution;
use crate::recorder::Recorder;
use interpose_base::clock;
use interpose_base::config::config;
use interpose_base::locks;
use interpose_base::panics;

static STATE: Mutex<CuptiUse> = Mutex::new(CuptiUse::Off);

/// memlab's use of CUPTI.
///
/// The lock is held while the use changes.
enum CuptiUse {
    /// No use, permanently.
    Off,
    /// memlab records some or all steps.
    Running(ActiveSubscription),
    /// Another profiler records.
    Aside,
}

/// Begins if configured.
///
/// Called when a recording begins, on the thread that first uses CUDA.
pub fn start(recorder: &'static Recorder) {
    if !config().time {
        return;
    }
    timeline::choose(recorder);
    sampling::choose(recorder);
    let loaded = Cupti::load().map_err(|error| error.to_string());
    let begun = loaded.and_then(|cupti| begin(CUPTI.get_or_init(|| cupti)).map_err(|error| described(&error)));
    match begun {
        Ok(subscribed) => {
            *STATE.lock() = CuptiUse::Running(subscribed);
            other_profilers::watch(step_aside);
            ending::start(recorder, finish);
        }
        Err(why) => recorder.warn(&format!("no GPU time: {why}")),
    }
}

fn begin(cupti: &Cupti) -> Result<ActiveSubscription, CallError> {
    // SAFETY: the callback stays loaded: libmemlab is linked with `-z nodelete`.
    unsafe { ActiveSubscription::begin(cupti, Some(called)) }
}

/// True if another profiler has recorded during the current step.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Returns true if GPU time is recorded for the current optimizer step, in a recording with GPU time.
pub fn includes(step: u64) -> bool {
    sampling::includes(step) && !IS_INTERRUPTED.load(Ordering::Relaxed)
}

/// Writes the waits in an optimizer step that ends now, on the calling thread.
///
/// `data_ns`: time in which the thread waited for data. Does nothing if GPU time is not recorded.
pub fn write_waits(recorder: &Recorder, step: u64, data_ns: u64) {
    if config().time {
        let launch_ns = first_launch::end_step(step, clock::monotonic_ns()).filter(|_| includes(step));
        let wait = StepWait { time: recorder.elapsed_ns(), step, data_ns, launch_ns };
        recorder.log.append(encode::step_wait(&mut LineBuffer::<128>::new(), &wait));
    }
}

/// Begins an optimizer step, on the thread that ended the last one.
pub fn begin_step(step: u64) {
    if IS_INTERRUPTED.load(Ordering::Relaxed) && matches!(*STATE.lock(), CuptiUse::Running(_)) {
        IS_INTERRUPTED.store(false, Ordering::Relaxed);
    }
    if !sampling::is_complete() {
        record_if_included(&mut STATE.lock(), step);
    }
}

fn record_if_included(state: &mut CuptiUse, step: u64) {
    if let (CuptiUse::Running(subscribed), Some(cupti)) = (state, CUPTI.get())
        && let Err(error) = subscribed.record(cupti, sampling::includes(step))
        && let Some(recorder) = Recorder::current()
    {
        static HAS_WARNED: AtomicBool = AtomicBool::new(false);
        if !HAS_WARNED.swap(true, Ordering::Relaxed) {
            recorder.warn(&format!("GPU time is not recorded as configured: {}", described(&error)));
        }
    }
}

/// Steps aside for another profiler that is about to use CUPTI: leaves CUPTI as if memlab had never used it.
fn step_aside() {
    let mut state = STATE.lock();
    let (CuptiUse::Running(_), Some(cupti)) = (&*state, CUPTI.get()) else { return };
    collect(CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    if let CuptiUse::Running(subscribed) = std::mem::replace(&mut *state, CuptiUse::Aside) {
        subscribed.end(cupti);
    }
    other_profilers::hand_back();
    drop(state);
    IS_INTERRUPTED.store(true, Ordering::Relaxed);
    if let (Some(books), Some(recorder)) = (BOOKS.lock().as_mut(), Recorder::current()) {
        books.cut(recorder.steps());
    }
    static HAS_WARNED: AtomicBool = AtomicBool::new(false);
    if let Some(recorder) = Recorder::current()
        && !HAS_WARNED.swap(true, Ordering::Relaxed)
    {
        recorder.warn("the program uses CUPTI to profile itself: no GPU time is recorded meanwhile");
    }
}

/// Begins again when the other profilers have ended.
fn come_back(recorder: &Recorder) {
    let mut state = STATE.lock();
    if let (CuptiUse::Aside, true, Some(cupti)) = (&*state, other_profilers::are_done(), CUPTI.get())
        && let Ok(subscribed) = begin(cupti)
    {
        if let Some(books) = BOOKS.lock().as_mut() {
            books.interrupt(recorder.steps());
        }
        *state = CuptiUse::Running(subscribed);
        record_if_included(&mut state, recorder.steps());
    }
}

fn described(error: &CallError) -> String {
    match error {
        CallError::Failed { result: CUptiResult::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, .. } => {
            "another profiler uses CUPTI (torch.profiler, Nsight): run without it".to_owned()
        }
        CallError::Failed { result: CUptiResult::CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, .. } => {
            "this user may not use the GPU's counters (see NVIDIA's ERR_NVGPUCTRPERM)".to_owned()
        }
        error => error.to_string(),
    }
}

/// CUPTI's callback, on the program's thread, within the program's call.
unsafe extern "C" fn called(_: *mut c_void, domain: CUpti_CallbackDomain, id: CUpti_CallbackId, data: *const c_void) {
    if domain == CUpti_CallbackDomain::CUPTI_CB_DOMAIN_RESOURCE {
        // SAFETY: for this domain and for graph nodes, CUPTI passes this type, valid during the call.
        unsafe {
            let Some(resource) = data.cast::<CUpti_ResourceData>().as_ref() else { return };
            let Some(node) = resource.resourceDescriptor.cast::<CUpti_GraphData>().as_ref() else { return };
            with_place(|_, place| nodes::node_created(CUpti_CallbackIdResource(id), node, place));
        }
        return;
    }
    // SAFETY: for the driver's domain, CUPTI passes this type, valid during the call.
    let Some(data) = (unsafe { data.cast::<CUpti_CallbackData>().as_ref() }) else { return };
    if data.callbackSite == CUpti_ApiCallbackSite::CUPTI_API_ENTER {
        with_place(|recorder, place| {
            let launch = Launch { place, time: clock::monotonic_ns(), step: recorder.steps() };
            first_launch::note(launch.step, launch.time);
            launches::note(data.correlationId, launch);
        });
    }
}

/// Passes the calling thread's current place to `work`, if it is recorded.
fn with_place(work: impl FnOnce(&Recorder, Attribution)) {
    if let Some(session) = Recorder::enter_if_recording() {
        panics::catch(|| work(session.recorder, attribution::here(session.recorder, session.thread)));
    }
}

/// Called periodically by the control thread.
pub fn tick(recorder: &Recorder) {
    if CUPTI.get().is_none() || recorder.is_finished() {
        return;
    }
    come_back(recorder);
    if let CuptiUse::Running(_) = *STATE.lock() {
        collect(CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_NONE);
    }
    if let Some(books) = BOOKS.lock().as_mut().filter(|books| books.is_due(recorder.elapsed_ns())) {
        books.write(recorder, false);
    }
}

/// Writes the remaining sums when the process ends.
pub fn finish(recorder: &Recorder) {
    if let CuptiUse::Running(_) = std::mem::replace(&mut *STATE.lock(), CuptiUse::Off) {
        collect(CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
    if let Some(books) = BOOKS.lock().as_mut() {
        books.write(recorder, true);
    }
}

/// Makes CUPTI deliver its records.
///
/// The lock of the books must not be held: the records may arrive on this thread.
fn collect(flag: CUpti_ActivityFlag) {
    if let Some(cupti) = CUPTI.get() {
        let _ = cupti.flush(flag);
    }
}

/// Called in a forked child, where CUPTI does not work: NVIDIA's libraries survive no fork.
pub fn reset_in_child() {
    locks::reset_in_child(&STATE, CuptiUse::Off);
    ending::reset_in_child();
    other_profilers::reset_in_child();
    nodes::reset_in_child();
    books::reset_in_child();
}
