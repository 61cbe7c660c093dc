//! Keeps the trace of a long run below `MEMLAB_TRACE_MAX` and readable from its start.
//!
//! 1. When a trace has filled half of its maximum, a thread replays it and measures the size of its state (definitions,
//!    live blocks, totals, peaks, steps) as a *keyframe*.
//! 2. The log continues in a new file beside it, which leaves room for the keyframe at its front.
//! 3. The lines appended in the meantime are also replayed, and the keyframe is written to the front of the new file.
//! 4. The new file is renamed to the old one's name.
//!
//! A process killed between these steps leaves both files; readers continue from the first to the second.
//!
//! The two files together never exceed the maximum. Events that arrive faster than compaction can keep up are dropped and
//! counted; the count is written to the trace.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::{Follower, Model};
use parking_lot::Mutex;

use crate::recorder::Recorder;
use interpose_base::background;
use interpose_base::config::trace_max;
use interpose_base::locks;
use interpose_base::log::file::COMPACTING_THREAD;
use interpose_base::log::file::{FIRST_EXTENSION, SLACK, TraceFile};
use interpose_base::log::live;
use interpose_base::log::trace_path::{self, Naming};
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;
use interpose_base::stderr::print_message;

/// Time between two checks by the thread when it is not woken.
const TICK: Duration = Duration::from_millis(250);
/// Time for which an exiting process waits for its trace to be compacted.
const COMPACTION_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum delay before a failed compaction is retried.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(64);
/// Largest maximum with which a trace could fill between two checks of the control thread.
const SMALL_TRACE_BYTES: u64 = 64 << 20;

/// The state of the compacting thread.
struct CompactionState {
    /// Replaced files to which a thread may still be writing.
    left: Vec<&'static TraceFile>,
    /// Bytes of the current file's keyframe.
    keyframe: u64,
    /// Time of the retry after a failure, and the delay after the next failure.
    again: Option<(Instant, Duration)>,
    /// True if compaction cannot succeed any more; the reason was reported to the user.
    hopeless: bool,
}

/// Held while a trace is being compacted.
static COMPACTING: Mutex<CompactionState> = Mutex::new(INITIAL_STATE);
const INITIAL_STATE: CompactionState = CompactionState { left: Vec::new(), keyframe: 0, again: None, hopeless: false };

/// True once a failure was reported to the user.
static FAILURE_REPORTED: AtomicBool = AtomicBool::new(false);
static LOSS_REPORTED: AtomicBool = AtomicBool::new(false);

enum Failure {
    /// Compaction failed, and the old file stays in use.
    Before(String),
    /// The state takes too much room.
    ///
    /// The old file stays in use, and a retry would fail too.
    TooMuch(String),
    /// Compaction failed after the log had switched to the new file.
    After(String),
}

/// Starts the compacting thread once the trace has reached a certain size, or at once if the maximum is small.
///
/// Called periodically by the control thread.
pub fn start_if_needed(recorder: &'static Recorder) {
    let file = recorder.log.file();
    let is_due = trace_max(file.is_in_memory()) <= SMALL_TRACE_BYTES || file.tail() > FIRST_EXTENSION / 2;
    if is_due && !COMPACTING_THREAD.is_set() {
        // Until the thread runs, the control thread is woken instead.
        COMPACTING_THREAD.set(std::thread::current());
        if background::spawn("memlab-trace", move || run(recorder)).is_err() {
            recorder.warn("the thread that compacts the trace could not be started: the trace ends when it is full");
        }
    }
}

fn run(recorder: &'static Recorder) {
    // This thread's work is not recorded.
    let Some(_guard) = RecursionGuard::enter() else { return };
    COMPACTING_THREAD.set(std::thread::current());
    loop {
        panics::catch(|| check(recorder));
        std::thread::park_timeout(TICK);
    }
}

fn check(recorder: &Recorder) {
    let mut state = COMPACTING.lock();
    state.release_drained(recorder);
    if !recorder.log.is_full() {
        report_lost(recorder);
    }
    let file = recorder.log.file();
    let waits = state.again.is_some_and(|(when, _)| Instant::now() < when);
    if state.hopeless || waits || recorder.is_finished() || file.is_closed() || !file.is_large() {
        return;
    }
    if !file.is_in_place() {
        // Lines appended to it are lost, and a new file under the old name might replace another program's.
        recorder.log.give_up(&io::Error::other("it was removed, renamed or replaced"));
        file.close();
        return;
    }
    match compact(recorder, &mut state, &Destination::Same) {
        Ok(()) => state.again = None,
        Err(failure) => state.failed(recorder, failure),
    }
    if !recorder.log.is_full() {
        report_lost(recorder);
    }
}

/// Waits for a running compaction to end.
///
/// Called on the thread that ends the process, before the trace is closed.
pub fn finish() {
    drop(COMPACTING.try_lock_for(COMPACTION_TIMEOUT));
}

/// Called in a forked child, which does not have the thread.
pub fn reset_in_child() {
    locks::reset_in_child(&COMPACTING, INITIAL_STATE);
    COMPACTING_THREAD.reset_in_child();
    FAILURE_REPORTED.store(false, Ordering::Relaxed);
    LOSS_REPORTED.store(false, Ordering::Relaxed);
}

/// Writes to the trace how many events are missing at this point, and warns the user once.
pub fn report_lost(recorder: &Recorder) {
    let lost = recorder.log.take_lost();
    // An ended trace takes no count, and `give_up` has reported its end.
    if lost == 0 || recorder.log.has_ended() {
        return;
    }
    recorder.log.append(encode::lost(&mut LineBuffer::<128>::new(), recorder.elapsed_ns(), lost));
    if !FAILURE_REPORTED.load(Ordering::Relaxed) && !LOSS_REPORTED.swap(true, Ordering::Relaxed) {
        print_message(
            "events come faster than the trace can be kept below MEMLAB_TRACE_MAX: some are missing, and the report \
             counts them; set a larger maximum",
        );
    }
}

impl CompactionState {
    /// Releases replaced files whose lines are all written.
    ///
    /// The current file may then take their room.
    fn release_drained(&mut self, recorder: &Recorder) {
        let before = self.left.len();
        self.left.retain(|file| {
            let whole = file.is_whole();
            // SAFETY: the file is closed and whole: no thread writes to it any more.
            !(whole && live::release_unless_read(&recorder.log, file, || unsafe { file.release() }))
        });
        if self.left.len() < before && !self.hopeless {
            self.bound(recorder);
            recorder.log.resume();
        }
    }

    /// Sets the current file's maximum.
    fn bound(&self, recorder: &Recorder) {
        let file = recorder.log.file();
        file.bound_alone(trace_max(file.is_in_memory()), self.keyframe, self.taken());
    }

    /// Disk space of the replaced files.
    fn taken(&self) -> u64 {
        self.left.iter().map(|file| file.taken()).sum()
    }

    fn failed(&mut self, recorder: &Recorder, failure: Failure) {
        let pause = self.again.map_or(Duration::from_secs(1), |(_, pause)| pause);
        self.again = Some((Instant::now() + pause, (2 * pause).min(MAX_RETRY_DELAY)));
        let (why, end) = match failure {
            Failure::Before(why) => (why, "it ends at MEMLAB_TRACE_MAX"),
            // The live state may shrink, but memlab cannot detect that once events are dropped.
            Failure::TooMuch(why) => {
                self.hopeless = recorder.log.is_full();
                (why, "it ends at MEMLAB_TRACE_MAX")
            }
            Failure::After(why) => {
                self.hopeless = true;
                (why, "it continues in the .next file beside it, until both reach MEMLAB_TRACE_MAX")
            }
        };
        if !FAILURE_REPORTED.swap(true, Ordering::Relaxed) {
            recorder.warn(&format!("the trace cannot be compacted ({why}): {end}"));
        }
    }
}

/// Destination in which the log continues.
enum Destination {
    /// Under the same name, in less space.
    Same,
    /// At this path, or in memory for [`trace_path::IN_MEMORY`].
    Other(PathBuf),
}

/// Continues the recording in another file, which begins with the state so far.
///
/// The replaced file ends like the trace of a process that has ended. `path` may be [`trace_path::IN_MEMORY`].
///
/// # Errors
///
/// If the file cannot be written, or the state does not fit: the recording then continues in the old file.
pub fn continue_in(recorder: &Recorder, path: PathBuf) -> Result<(), String> {
    // This work is not recorded.
    let Some(_guard) = RecursionGuard::enter() else { return Err("the recorder is busy".to_owned()) };
    let mut state = COMPACTING.lock();
    if recorder.is_finished() || recorder.log.file().is_closed() {
        return Err("the recording has ended".to_owned());
    }
    match compact(recorder, &mut state, &Destination::Other(path)) {
        Ok(()) => Ok(()),
        Err(Failure::Before(why) | Failure::TooMuch(why) | Failure::After(why)) => Err(why),
    }
}

fn compact(recorder: &Recorder, state: &mut CompactionState, to: &Destination) -> Result<(), Failure> {
    let before = |error: &dyn std::fmt::Display| Failure::Before(error.to_string());
    let (log, old) = (&recorder.log, recorder.log.file());
    let path = old.path.clone();
    let mut follower = Follower::open(&path).map_err(|error| before(&error))?;
    let mut model = Model::new();
    let goal = old.tail();
    while follower.poll(&mut model).map_err(|error| before(&error))?.more && follower.extent().offset < goal {}

    let header = header_line(&path).map_err(|error| before(&error))?;
    let (beside, naming, in_memory) = match to {
        Destination::Same if old.is_in_memory() => (PathBuf::from(trace_path::IN_MEMORY), Naming::Exact, true),
        Destination::Same => (PathBuf::from(format!("{}.next", path.display())), Naming::Exact, false),
        Destination::Other(path) => {
            (path.clone(), Naming::AsAsked { run: None }, path.as_os_str() == trace_path::IN_MEMORY)
        }
    };
    let most = trace_max(in_memory);
    let is_renamed = matches!(to, Destination::Same) && !in_memory;
    // The two files share one maximum until the old one is gone.
    let taken = |state: &CompactionState| match to {
        Destination::Same => old.taken() + state.taken(),
        Destination::Other(_) => 0,
    };
    let room = most.saturating_sub(taken(state) + 2 * SLACK);
    let mut size = size_of(&model);
    while size + size / 8 + SLACK > room && model.shorten_history() {
        size = size_of(&model);
    }
    if size + size / 8 + SLACK > room {
        let needed = (4 * size).next_multiple_of(1 << 20) >> 20;
        return Err(Failure::TooMuch(format!("live memory needs {} KiB of it: set at least {needed} MiB", size >> 10)));
    }
    // The state grows until the log has switched to the new file.
    let growth = (size / 4).max(size.min(most / 32));
    let front = (size + growth + SLACK).min(room).next_multiple_of(4096);
    let mut next = TraceFile::create(&beside, naming, most, front)
        .map_err(|error| Failure::Before(format!("{}: {error}", beside.display())))?;
    if is_renamed {
        next.path.clone_from(&path); // The name after the rename.
    }
    next.bound(most.saturating_sub(taken(state)), u64::MAX);
    // This line lets readers recognise the file if the process is killed now.
    next.write_front(&header).map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        before(&error)
    })?;
    if let Destination::Other(_) = to {
        log.append(encode::end(&mut LineBuffer::<128>::new(), recorder.elapsed_ns(), Some(0), None));
    }
    let old = log.switch_to(next);
    let next = log.file();
    next.bound(most.saturating_sub(taken(state)), u64::MAX);

    // A thread may have been interrupted between reserving its line and writing it.
    for _ in 0..100 {
        if old.is_whole() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    state.left.push(old);
    let keyframe =
        rest_of(&mut follower, &mut model, &header, front).map_err(|error| Failure::After(error.to_string()))?;
    next.write_front(&keyframe).map_err(|error| Failure::After(error.to_string()))?;
    next.front_is_complete();
    if is_renamed {
        std::fs::rename(&beside, &path).map_err(|error| Failure::After(error.to_string()))?;
    }
    state.keyframe = keyframe.len() as u64;
    state.bound(recorder);
    state.release_drained(recorder);
    Ok(())
}

/// Builds the header, the state at the end of the replaced file, and the position at which the events begin.
fn rest_of(follower: &mut Follower, model: &mut Model, header: &[u8], front: u64) -> io::Result<Vec<u8>> {
    follower.skip_holes();
    while follower.poll(model).map_err(io::Error::other)?.more {}
    loop {
        let mut keyframe = header.to_vec();
        model.write_keyframe(&mut keyframe)?;
        // Informs readers that the gap before the first event stays empty.
        keyframe.extend_from_slice(encode::skip(&mut LineBuffer::<64>::new(), front));
        if (keyframe.len() as u64) < front {
            return Ok(keyframe);
        }
        if !model.shorten_history() {
            return Err(io::Error::other("live memory has become too large meanwhile"));
        }
    }
}

/// Reads the first line of the trace, with which the compacted trace also begins.
fn header_line(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::BufRead;
    let mut line = Vec::new();
    io::BufReader::new(memlab_trace::open_file(path)?).read_until(b'\n', &mut line)?;
    Ok(line)
}

/// Size of the state in bytes, encoded as a keyframe.
fn size_of(model: &Model) -> u64 {
    struct ByteCounter(u64);
    impl Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counted = ByteCounter(0);
    let _ = model.write_keyframe(&mut counted);
    counted.0
}
