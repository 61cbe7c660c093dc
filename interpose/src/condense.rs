//! Keeping the trace of a long run bounded, and self-contained all the same.
//!
//! When a trace has filled half of its allowance, the log goes on in a new file beside it. The control thread replays
//! the full one and writes what became of it (definitions, what is alive, totals, peaks, steps) as a *keyframe* to the
//! front of the new file, which then takes the old one's name. A process killed in between leaves both files: the
//! reader goes on from the first to the second.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;

use memlab_trace::encode::{self, LineBuffer};

use crate::lifecycle;
use crate::log::{Naming, TraceFile};
use crate::recorder::Recorder;

/// Address space for a trace file: more than its allowance, so that events that arrive while the control thread is
/// busy are kept.
pub fn mapped_bytes(trace_max: u64) -> u64 {
    trace_max.saturating_add((1 << 30).max(trace_max)).min(1 << 40)
}

/// Held while a trace is being condensed.
static CONDENSING: Mutex<()> = Mutex::new(());

/// How long a process that ends waits for its trace to be condensed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Condenses the trace if it has filled its share. Runs on the control thread.
pub fn if_large(recorder: &Recorder) {
    let _one_at_a_time = CONDENSING.lock();
    let trace_max = crate::config().trace_max;
    if recorder.log.file().appended() >= trace_max / 2 {
        condense_or_say(recorder, trace_max);
    }
}

/// Lets a condensation under way come to its end, and bounds what was written meanwhile. Runs on the thread that ends
/// the process, before the trace is closed.
pub fn finish(recorder: &Recorder) {
    let Some(_one_at_a_time) = CONDENSING.try_lock_for(PATIENCE) else { return };
    let trace_max = crate::config().trace_max;
    let file = recorder.log.file();
    if file.appended() > trace_max - file.front() {
        condense_or_say(recorder, trace_max);
    }
}

/// In a forked child, whose control thread does not exist.
pub fn forget_in_child() {
    lifecycle::free_in_child(&CONDENSING);
}

fn condense_or_say(recorder: &Recorder, trace_max: u64) {
    if recorder.log.file().is_closed() {
        return;
    }
    if !recorder.log.file().is_in_place() {
        // What is written there is lost to its user, and a new file under the old name might replace another's.
        recorder.log.give_up(&io::Error::other("it was removed, renamed or replaced"));
        recorder.log.file().close();
        return;
    }
    if let Err(error) = condense(recorder, trace_max) {
        recorder.warn(&format!("the trace could not be condensed ({error}): it will grow beyond MEMLAB_TRACE_MAX"));
    }
}

fn condense(recorder: &Recorder, trace_max: u64) -> io::Result<()> {
    let path = recorder.log.file().path.clone();
    let beside = PathBuf::from(format!("{}.next", path.display()));
    let mut next = TraceFile::create(&beside, Naming::Exact, mapped_bytes(trace_max), trace_max / 4)?;
    let beside = std::mem::replace(&mut next.path, path.clone()); // The name it will have.
    let old = recorder.log.switch_to(next);
    let next = recorder.log.file();

    // A thread may have been interrupted between reserving its line and writing it.
    let whole = (0..100).any(|_| {
        let whole = old.is_whole();
        if !whole {
            std::thread::sleep(Duration::from_millis(20));
        }
        whole
    });
    let loaded = memlab_trace::load(&path, &mut |_| std::ops::ControlFlow::Continue(())).map_err(io::Error::other)?;
    let mut keyframe = Vec::new();
    BufReader::new(File::open(&path)?).read_until(b'\n', &mut keyframe)?; // The header stays the first line.
    loaded.model.write_keyframe(&mut keyframe)?;
    drop(loaded);
    // Tells readers that what lies between here and the first event is not yet to be written, but empty for good.
    keyframe.extend_from_slice(encode::skip(&mut LineBuffer::<64>::new(), trace_max / 4));
    next.write_front(&keyframe)?;
    std::fs::rename(&beside, &path)?;
    if whole {
        // SAFETY: it is whole.
        unsafe { old.unmap() };
    }
    Ok(())
}
