//! What to change in a program so that it takes less: what `memlab-advice` has tried on the recorded run, with the findings
//! on it that say what to do.

use std::path::Path;

use memlab_predict::advice::{AdviceReport, Leak, advise};
use memlab_predict::plan::{Recording, RecordingError};
use memlab_trace::{Loaded, Scope};

use memlab_base::findings::{self, Growing, Word};

/// Reports of longer runs leave advice to `memlab advise`: it reads the trace again.
const MAX_EVENTS: u64 = 2_000_000;

/// What a report says on a run; `None`: nothing can be said, or it would take long.
pub fn on_report(path: &Path, loaded: &Loaded) -> Option<AdviceReport> {
    if loaded.model.events() > MAX_EVENTS { None } else { of(path, None, Some(loaded.model.scope())).ok() }
}

/// Reads a trace again for its allocations, and says what to do. Lines are those of `scope`; `None`: those that a report shows.
///
/// # Errors
///
/// If it cannot be read, or has no allocations that can be carried out again.
pub fn of(path: &Path, target: Option<u64>, scope: Option<Scope>) -> Result<AdviceReport, RecordingError> {
    let mut recording = Recording::read(path)?;
    recording.model.set_scope(scope);
    let devices = recording.model.devices();
    let device = devices.iter().find(|device| device.index == recording.device);
    let growing = device.map(|device| findings::growing(&recording.model, device, devices.len() > 1));
    let leaks: Vec<Leak> = growing.into_iter().flatten().map(leak).collect();
    Ok(advise(&recording, target, &leaks))
}

fn leak(Growing { span, stacks, finding }: Growing) -> Leak {
    let line = finding.what.parts().iter().find_map(|word| match word {
        Word::Code(line) => Some(line.clone()),
        Word::Plain(_) | Word::Strong(_) => None,
    });
    Leak {
        stacks,
        span,
        place: line.unwrap_or_else(|| "a library".to_owned()),
        how: finding.next,
        because: finding.what.text(),
    }
}
