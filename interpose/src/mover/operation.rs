//! Starts operations, each on its own thread.

use std::time::Duration;

use super::progress::{self, Phase, Progress};
use super::{offload, page_ranges, restore};
use crate::limit::overhead;
use crate::moved_bytes;
use crate::recorder::Recorder;
use interpose_base::background;
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;
use interpose_driver::calls;
use interpose_driver::vmm::{gate, mode};

pub const NOT_STARTED_FOR_IT: &str = "this process was not started for offloading";

/// What to move.
pub enum Operation {
    Offload,
    Restore {
        free_host: bool,
    },
    /// (address, bytes) of whole pages that go to host memory at the same addresses.
    Move {
        ranges: Vec<(u64, u64)>,
    },
}

impl Operation {
    fn kind(&self) -> &'static str {
        match self {
            Self::Offload => "offload",
            Self::Restore { .. } => "restore",
            Self::Move { .. } => "move",
        }
    }
}

/// Starts an operation on a new thread.
pub fn start(request: Operation, timeout: Duration) -> Result<&'static Progress, String> {
    if !mode::is_enabled() {
        return Err(format!("{}: start it with `memlab run --offload`, or use --full", NOT_STARTED_FOR_IT));
    }
    let mut current = progress::current();
    if let Some(running) = current.filter(|operation| operation.is_running()) {
        return Err(format!("another operation ({}) is under way: wait for its end", running.kind));
    }
    match request {
        Operation::Restore { free_host } if !restore::could_restore(free_host) => {
            return Err(restore::NOTHING_TO_RESTORE.to_owned());
        }
        Operation::Offload | Operation::Move { .. } if gate::is_closed() => {
            return Err("the program is offloaded already: restore it first".to_owned());
        }
        Operation::Offload if !offload::could_offload() => return Err(offload::NOTHING_TO_MOVE.to_owned()),
        _ => {}
    }
    let progress = Progress::begin(request.kind());
    background::spawn("memlab-move", move || run(request, timeout, progress))
        .map_err(|error| format!("no thread could be started ({error}): nothing was moved"))?;
    *current = Some(progress);
    Ok(progress)
}

fn run(request: Operation, timeout: Duration, progress: &'static Progress) {
    let _guard = RecursionGuard::enter(); // This thread's calls are not recorded.
    calls::relax_captures();
    let outcome = panics::catch(|| match &request {
        Operation::Offload => offload::offload(progress, timeout),
        Operation::Restore { free_host } => restore::restore(progress, timeout, *free_host),
        Operation::Move { ranges } => page_ranges::move_ranges(progress, timeout, ranges),
    });
    let outcome = outcome.unwrap_or_else(|| Err("memlab made a mistake: please report this".into()));
    let phase = if outcome.is_ok() { Phase::Done } else { Phase::Failed };
    progress.set_outcome(outcome);
    overhead::changed();
    progress.enter(phase);
    if let Some(recorder) = Recorder::current() {
        moved_bytes::record(recorder);
        recorder.sampler.driver_memory_changed();
    }
}
