//! Ranges that the program names: with `memlab.annotate`, the C functions of `memlab.h`, or NVTX.
//!
//! A thread's events count in its innermost open range. Nothing is added to an event: before the first event in another
//! range, a line says which range the thread is in from now on.

pub mod names;
pub mod nvtx;
pub mod open;
pub mod table;

use crate::recorder::Recorder;
use interpose_base::config::enabled;
use interpose_base::panics;
use open::Domain;

/// The calling thread enters a range. It may hold any lock.
pub fn push(domain: Domain, name: &[u8]) {
    if enabled() {
        panics::catch(|| {
            open::push(domain, names::intern(name));
            changed();
        });
    }
}

/// The calling thread leaves the innermost range of the domain.
pub fn pop(domain: Domain) {
    if enabled() {
        panics::catch(|| {
            open::pop(domain);
            changed();
        });
    }
}

/// Writes the range that the thread is in, if anything is recorded.
fn changed() {
    if let Some(mut session) = Recorder::enter_if_recording() {
        session.ranges_changed();
    }
}
