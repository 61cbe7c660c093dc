//! Starts operations, each on its own thread.

use std::time::Duration;

use super::progress::{self, Progress};
use super::{offload, page_ranges, restore};
use crate::limit::overhead;
use crate::moved_bytes;
use crate::recorder::Recorder;
use interpose_base::background;
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;
use interpose_driver::calls;
use interpose_driver::vmm::{gate, mode};
use memlab_protocol::request::Range;
use memlab_protocol::status::{OperationKind, OperationPhase};

pub const NOT_STARTED_FOR_IT: &str = "this process was not started for offloading";

/// Requested move.
pub enum MoveRequest {
    Offload,
    Restore {
        free_host: bool,
    },
    /// Moves whole pages to host memory at the same addresses.
    Move {
        ranges: Vec<Range>,
    },
}

impl MoveRequest {
    fn kind(&self) -> OperationKind {
        match self {
            Self::Offload => OperationKind::Offload,
            Self::Restore { .. } => OperationKind::Restore,
            Self::Move { .. } => OperationKind::Move,
        }
    }
}

/// Starts an operation on a new thread.
pub fn start(request: MoveRequest, timeout: Duration) -> Result<&'static Progress, String> {
    let can_move = mode::is_enabled() || matches!(request, MoveRequest::Restore { .. }) && gate::is_enabled();
    if !can_move {
        return Err(format!("{}: start it with `memlab run --offload`, or use --full", NOT_STARTED_FOR_IT));
    }
    let mut current = progress::current();
    if let Some(running) = current.filter(|operation| operation.is_running()) {
        return Err(format!("another operation ({}) is running: wait for its end", running.kind.as_str()));
    }
    match request {
        MoveRequest::Restore { free_host } if !restore::could_restore(free_host) => {
            return Err(restore::NOTHING_TO_RESTORE.to_owned());
        }
        MoveRequest::Offload | MoveRequest::Move { .. } if gate::is_closed() => {
            return Err("the program is already offloaded: restore it first".to_owned());
        }
        MoveRequest::Offload if !offload::could_offload() => return Err(offload::NOTHING_TO_MOVE.to_owned()),
        _ => {}
    }
    let progress = Progress::begin(request.kind());
    background::spawn("memlab-move", move || run(request, timeout, progress))
        .map_err(|error| format!("no thread could be started ({error}): nothing was moved"))?;
    *current = Some(progress);
    Ok(progress)
}

fn run(request: MoveRequest, timeout: Duration, progress: &'static Progress) {
    let _guard = RecursionGuard::enter(); // This thread's calls are not recorded.
    calls::relax_captures();
    let outcome = panics::catch(|| match &request {
        MoveRequest::Offload => offload::offload(progress, timeout),
        MoveRequest::Restore { free_host } => restore::restore(progress, timeout, *free_host),
        MoveRequest::Move { ranges } => page_ranges::move_ranges(progress, timeout, ranges),
    });
    let outcome = outcome.unwrap_or_else(|| Err("memlab made a mistake: please report this".into()));
    let phase = if outcome.is_ok() { OperationPhase::Done } else { OperationPhase::Failed };
    progress.set_outcome(outcome);
    overhead::changed();
    progress.enter(phase);
    if let Some(recorder) = Recorder::current() {
        moved_bytes::record(recorder);
        recorder.sampler.driver_memory_changed();
    }
}
