//! What to change in a program so that it takes less: what `memlab-advice` has tried on the recorded run, with the findings
//! on it that say what to do.

use std::path::Path;

use memlab_advice::{Advice, Advices, Cost, Figure, Kind, advise};
use memlab_plan::{Recording, RecordingError};
use memlab_trace::Loaded;

use crate::findings::{self, Kind as FindingKind, Word};

/// Reports of longer runs leave advice to `memlab advise`: it reads the trace again.
const MOST_EVENTS: u64 = 2_000_000;

/// What a report says on a run; `None`: nothing can be said, or it would take long.
pub fn on_report(path: &Path, loaded: &Loaded) -> Option<Advices> {
    if loaded.model.events() > MOST_EVENTS { None } else { of(path, None).ok() }
}

/// Reads a trace again for its allocations, and says what to do.
///
/// # Errors
///
/// If it cannot be read, or has no allocations that can be carried out again.
pub fn of(path: &Path, target: Option<u64>) -> Result<Advices, RecordingError> {
    let recording = Recording::read(path)?;
    let mut advices = advise(&recording, target);
    let leaks = findings::of(&recording.model).into_iter().filter(|finding| finding.kind == FindingKind::Leak);
    for leak in leaks.filter(|leak| leak.device == recording.device) {
        let line = leak.what.parts().iter().find_map(|word| match word {
            Word::Code(line) => Some(line.clone()),
            Word::Plain(_) | Word::Strong(_) => None,
        });
        advices.add(Advice {
            kind: Kind::Leak,
            place: line.unwrap_or_else(|| "a library".to_owned()),
            saved_bytes: leak.bytes,
            figure: Figure::Allocated,
            bytes_after: advices.peak_bytes.saturating_sub(leak.bytes),
            cost: Cost::NOTHING,
            how: leak.next,
            because: leak.what.text(),
        });
    }
    Ok(advices)
}
