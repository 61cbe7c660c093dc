//! `--offload=ready`: pins host memory for a whole offload in the background, as the program's memory grows.
//!
//! So the first offload is as fast as the others.

use std::time::{Duration, Instant};

use memlab_units::format::size;

use super::progress::{self, Progress};
use super::staging::{begin_to_secure, wait_until_pinned};
use interpose_base::background;
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;
use interpose_base::stderr::print_message;
use interpose_driver::calls;
use interpose_driver::vmm::arena::ARENA;
use interpose_driver::vmm::movable_memory::MOVABLE_MEMORY;
use interpose_driver::vmm::{contexts, gate};

const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Time without growth after which the size is reported.
const SETTLING_TIME: Duration = Duration::from_secs(3);

pub fn start() {
    if let Err(error) = background::spawn("memlab-ready", || _ = panics::catch(keep_ready)) {
        print_message(&format!(
            "--offload=ready: no thread could be started ({error}): the first offload will take longer"
        ));
    }
}

/// Pins memory until no more can be pinned.
fn keep_ready() {
    let _guard = RecursionGuard::enter(); // This thread's calls are not recorded.
    calls::relax_captures();
    let (mut pinned, mut said, mut grown_at) = (0, false, Instant::now());
    loop {
        std::thread::sleep(CHECK_INTERVAL);
        let contexts = contexts::all();
        let is_moving = gate::is_closed() || progress::current().is_some_and(Progress::is_running);
        if contexts.is_empty() || is_moving {
            continue;
        }
        // An offload that begins now waits for the table, and then takes the free memory.
        let Some(memory) = MOVABLE_MEMORY.try_lock() else { continue };
        let secured = begin_to_secure(memory.totals().device_bytes, memory.mapped_host_bytes(), &contexts);
        drop(memory);
        if let Err(failure) = secured {
            return stop(&failure.what);
        }
        if let Err(what) = wait_until_pinned() {
            return stop(&what);
        }
        let now = ARENA.lock().bytes();
        if now > pinned {
            (pinned, grown_at) = (now, Instant::now());
        } else if !said && pinned > 0 && grown_at.elapsed() >= SETTLING_TIME {
            said = true;
            print_message(&format!(
                "{} of host memory are pinned for an offload (--offload=ready); this grows with the program's GPU memory",
                size(pinned)
            ));
        }
    }
}

fn stop(why: &str) {
    let pinned = size(ARENA.lock().bytes());
    let why = why.strip_suffix(": nothing was moved").unwrap_or(why);
    print_message(&format!("--offload=ready: {why}; {pinned} are pinned, and the first offload will take longer"));
}
