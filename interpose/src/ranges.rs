//! Ranges that the program names: with `memlab.annotate`, the C functions of `memlab.h`, or NVTX.
//!
//! A thread's events count in its innermost open range. Events themselves contain no range. Before the first event in
//! another range, a line names the thread's range from now on.

pub mod names;
pub mod nvtx;
pub mod open;
pub mod table;

use crate::recorder::Recorder;
use interpose_base::config::enabled;
use interpose_base::panics;
use open::Domain;

/// Enters a range on the calling thread, which may hold any lock.
pub fn push(domain: Domain, name: &[u8]) {
    if enabled() {
        panics::catch(|| {
            open::push(domain, names::intern(name));
            changed();
        });
    }
}

/// Leaves the innermost range of the domain on the calling thread.
pub fn pop(domain: Domain) {
    if enabled() {
        panics::catch(|| {
            open::pop(domain);
            changed();
        });
    }
}

/// Writes the thread's range, if a recording is active.
fn changed() {
    if let Some(mut session) = Recorder::enter_if_recording() {
        session.ranges_changed();
    }
}
