//! Advice on a program: the changes that `predict` tried on the recorded run, and the findings with a next step.

use std::ops::ControlFlow;
use std::path::Path;

use memlab_predict::advice::{AdviceReport, Leak, advise};
use memlab_predict::plan::{PeakStep, Recording, RecordingError, RecordingReader};
use memlab_trace::{Loaded, Progress, ReadError, Scope, read_whole};

use memlab_base::findings::{self, Growing, Word};

/// Reports of longer runs leave advice to `memlab advise`, because it takes long.
const MAX_EVENTS: u64 = 2_000_000;

/// Number of buckets of the step with the peak.
const PEAK_STEP_BUCKETS: usize = 400;

/// A trace, and the advice on its run; `None`: no advice, or computing it would take long.
pub struct AdvisedTrace {
    pub trace: Loaded,
    pub advice: Option<AdviceReport>,
    /// The step with the peak on the device with the advice, if asked for.
    pub peak_step: Option<(i32, PeakStep)>,
}

impl AdvisedTrace {
    /// Reads a trace. Lines are those of `scope`; `None`: those that a report shows. `with_peak_step`: for a page.
    ///
    /// # Errors
    ///
    /// Errors of [`read_whole`].
    pub fn read(
        path: &Path,
        scope: Option<Scope>,
        with_peak_step: bool,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self, ReadError> {
        let mut reader = RecordingReader::up_to(MAX_EVENTS);
        let summary = read_whole(path, &mut reader, progress)?;
        Ok(match reader.finish() {
            Ok(mut recording) => {
                recording.model.set_scope(scope);
                let advice = Some(tried(&recording, None));
                let peak_step = with_peak_step.then(|| recording.peak_step(PEAK_STEP_BUCKETS)).flatten();
                let peak_step = peak_step.map(|step| (recording.device, step));
                Self { trace: Loaded::new(recording.model, summary), advice, peak_step }
            }
            Err((_, mut model)) => {
                model.set_scope(scope);
                Self { trace: Loaded::new(*model, summary), advice: None, peak_step: None }
            }
        })
    }
}

/// Reads a trace for its allocations, and computes advice. Lines are those of `scope`; `None`: those that a report
/// shows.
///
/// # Errors
///
/// If the trace cannot be read, or contains no allocations to replay.
pub fn of(path: &Path, target: Option<u64>, scope: Option<Scope>) -> Result<AdviceReport, RecordingError> {
    let mut recording = Recording::read(path)?;
    recording.model.set_scope(scope);
    Ok(tried(&recording, target))
}

fn tried(recording: &Recording, target: Option<u64>) -> AdviceReport {
    let devices = recording.model.devices();
    let device = devices.iter().find(|device| device.index == recording.device);
    let growing = device.map(|device| findings::growing(&recording.model, device, devices.len() > 1));
    let leaks: Vec<Leak> = growing.into_iter().flatten().map(leak).collect();
    let error = device.and_then(|device| findings::out_of_memory(&recording.model, device, devices.len() > 1));
    AdviceReport { after_out_of_memory: error.map(|finding| finding.next), ..advise(recording, target, &leaks) }
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
