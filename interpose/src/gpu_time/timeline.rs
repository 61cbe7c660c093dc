//! Individual pieces of GPU work: those of the last seconds, written at the end, or all of them.

use std::collections::VecDeque;
use std::sync::OnceLock;

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::{Flags, Ran};

use super::finished_work::FinishedWork;
use crate::attribution::result::Attribution;
use crate::recorder::Recorder;
use interpose_base::config::config;

/// Pieces of work that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retention {
    /// Pieces that began at most `nanoseconds` before the end, and at most `pieces` of them.
    Last {
        nanoseconds: u64,
        pieces: usize,
    },
    All,
}

/// About a megabyte of trace.
const BY_DEFAULT: Retention = Retention::Last { nanoseconds: 5_000_000_000, pieces: 1 << 14 };

/// Maximum number of pieces if the user set the seconds.
const MAX_PIECES: usize = 1 << 20;

static WANTED: OnceLock<Retention> = OnceLock::new();

/// Reads the retention from `MEMLAB_TIMELINE`.
pub fn choose(recorder: &Recorder) {
    let wanted = match config().timeline.as_deref() {
        None | Some("") => BY_DEFAULT,
        Some(text) => read(text).unwrap_or_else(|| {
            recorder.warn(&format!(
                "MEMLAB_TIMELINE is {text:?}, neither a number of seconds nor 'all': the default is used"
            ));
            BY_DEFAULT
        }),
    };
    let _ = WANTED.set(wanted);
}

fn read(text: &str) -> Option<Retention> {
    if text == "all" {
        return Some(Retention::All);
    }
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=1e9).contains(seconds))?;
    Some(Retention::Last { nanoseconds: (seconds * 1e9) as u64, pieces: MAX_PIECES })
}

fn wanted() -> Retention {
    WANTED.get().copied().unwrap_or(BY_DEFAULT)
}

/// A piece of work.
///
/// Its start is in nanoseconds of [`clock`](interpose_base::clock).
#[derive(Clone, Copy)]
struct Piece {
    device: u32,
    stream: u32,
    start: u64,
    nanoseconds: u64,
    place: Attribution,
    kernel: u32,
    bytes: u64,
}

#[derive(Default)]
pub struct Timeline(VecDeque<Piece>);

impl Timeline {
    pub fn add(&mut self, place: Attribution, kernel: u32, done: &FinishedWork<'_>) {
        let FinishedWork { device, stream, start, nanoseconds, bytes, .. } = *done;
        match wanted() {
            Retention::Last { nanoseconds: 0, .. } => return,
            Retention::Last { pieces, .. } if self.0.len() >= pieces => drop(self.0.pop_front()),
            Retention::Last { .. } | Retention::All => {}
        }
        self.0.push_back(Piece { device, stream, start, nanoseconds, place, kernel, bytes });
    }

    /// Writes the retained pieces: with [`Retention::All`] at every call, otherwise only if `is_last`.
    pub fn write(&mut self, recorder: &Recorder, now: u64, is_last: bool) {
        let latest = self.0.iter().map(|piece| piece.start + piece.nanoseconds).max().unwrap_or(0);
        let from = match wanted() {
            Retention::All => 0,
            Retention::Last { .. } if !is_last => return,
            Retention::Last { nanoseconds, .. } => latest.saturating_sub(nanoseconds),
        };
        for piece in self.0.drain(..).filter(|piece| piece.start >= from) {
            let ran = Ran {
                time: now,
                device: piece.device as i32,
                stream: piece.stream,
                start: recorder.since_start(piece.start),
                nanoseconds: piece.nanoseconds,
                stack: piece.place.stack,
                layer: piece.place.layer,
                flags: Flags(piece.place.flags),
                kernel: piece.kernel,
                bytes: piece.bytes,
            };
            recorder.log.append(encode::ran(&mut LineBuffer::<256>::new(), &ran));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_is_seconds_or_all() {
        let seconds = |nanoseconds| Some(Retention::Last { nanoseconds, pieces: MAX_PIECES });
        assert_eq!(read("all"), Some(Retention::All));
        assert_eq!(read("2.5"), seconds(2_500_000_000));
        assert_eq!(read("0"), seconds(0));
        for text in ["-1", "much", "inf", "nan", "2s"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
