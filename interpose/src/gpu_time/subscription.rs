//! memlab's use of CUPTI while it records: a subscription, callbacks at calls that submit GPU work, and kinds of activities.

use cupti_sys::bindings::{CUpti_ActivityKind, CUpti_CallbackDomain, CUpti_CallbackFunc, CUpti_CallbackId};
use cupti_sys::{CallError, Cupti, Subscription};

use super::{nodes, records};
use interpose_base::clock;

/// Kinds of recorded activities.
const KINDS: [CUpti_ActivityKind; 4] = [
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET,
];

const CALLS: CUpti_CallbackDomain = CUpti_CallbackDomain::CUPTI_CB_DOMAIN_DRIVER_API;

pub struct ActiveSubscription {
    subscription: Subscription,
    /// Calls at which CUPTI calls back.
    calls: Vec<CUpti_CallbackId>,
    is_recording: bool,
}

impl ActiveSubscription {
    /// Subscribes and starts recording.
    ///
    /// # Safety
    ///
    /// The callback must stay loaded.
    pub unsafe fn begin(cupti: &Cupti, callback: CUpti_CallbackFunc) -> Result<Self, CallError> {
        // SAFETY: the caller promises that the callback stays loaded.
        let subscription = unsafe { cupti.subscribe(callback) }?;
        // Runtime calls are not watched: they call the driver, with the same id.
        let calls = cupti.callbacks(CALLS, gives_work).collect();
        let mut subscribed = Self { subscription, calls, is_recording: false };
        // SAFETY: it stays loaded (libmemlab is linked with `-z nodelete`), and can be called from any thread.
        let clocked = unsafe { cupti.register_clock(Some(trace_clock)) };
        let started = clocked
            .and_then(|()| {
                let domain = CUpti_CallbackDomain::CUPTI_CB_DOMAIN_RESOURCE;
                let mut callbacks = nodes::CALLBACKS.into_iter();
                callbacks.try_for_each(|id| cupti.watch(&subscribed.subscription, domain, id.0, true))
            })
            // SAFETY: they also stay loaded, and buffers are valid until they are received.
            .and_then(|()| unsafe { cupti.register_buffers(Some(records::request), Some(records::complete)) })
            .and_then(|()| subscribed.record(cupti, true));
        match started {
            Ok(()) => Ok(subscribed),
            Err(error) => {
                subscribed.end(cupti);
                Err(error)
            }
        }
    }

    /// Starts or stops recording.
    ///
    /// Graph nodes are always followed: work captured in one step runs in another.
    pub fn record(&mut self, cupti: &Cupti, wanted: bool) -> Result<(), CallError> {
        if wanted == self.is_recording {
            return Ok(());
        }
        let watch = || all(self.calls.iter().map(|id| cupti.watch(&self.subscription, CALLS, *id, wanted)));
        // Calls are watched whenever their work is recorded.
        let done = if wanted {
            watch().and_then(|()| all(KINDS.into_iter().map(|kind| cupti.enable(kind))))
        } else {
            all(KINDS.into_iter().map(|kind| cupti.disable(kind))).and(watch())
        };
        self.is_recording = wanted;
        done
    }

    /// Leaves CUPTI as if it had never been used.
    pub fn end(self, cupti: &Cupti) {
        for kind in KINDS {
            let _ = cupti.disable(kind);
        }
        let _ = cupti.unsubscribe(self.subscription);
    }
}

/// Makes all calls, even after one fails; returns the first error.
fn all(calls: impl Iterator<Item = Result<(), CallError>>) -> Result<(), CallError> {
    calls.fold(Ok(()), Result::and)
}

/// Clock of records: the trace's clock.
unsafe extern "C" fn trace_clock() -> u64 {
    clock::monotonic_ns()
}

/// Returns true if a driver or runtime call submits GPU work: kernels, copies, fills, graphs.
fn gives_work(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"__").unwrap_or(name);
    let name = name.strip_prefix(b"cuda").or_else(|| name.strip_prefix(b"cu")).unwrap_or(name);
    let is_host = name.starts_with(b"LaunchHostFunc");
    let begins: [&[u8]; 4] = [b"Launch", b"GraphLaunch", b"Memcpy", b"Memset"];
    !is_host && begins.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::gives_work;

    #[test]
    fn calls_that_give_work_are_known_by_their_names() {
        for name in [
            "cuLaunchKernelEx",
            "cudaLaunchKernel_v7000",
            "__cudaLaunchKernel_v13000",
            "cuGraphLaunch",
            "cuMemsetD8Async",
        ] {
            assert!(gives_work(name.as_bytes()), "{name}");
        }
        for name in ["cuMemAlloc_v2", "cudaLaunchHostFunc_v10000", "cuGraphInstantiate", "cudaStreamSynchronize"] {
            assert!(!gives_work(name.as_bytes()), "{name}");
        }
    }
}
