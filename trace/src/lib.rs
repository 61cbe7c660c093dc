//! The memlab trace: what it is made of, how it is written and read, and the model built by replaying it.
//!
//! A trace is a JSON Lines file that a traced process appends to; `docs/trace-format.md` describes it. This
//! crate knows nothing of CUDA, Python or terminals, and can be used alone:
//!
//! - [`record`]: the records, one type each.
//! - [`encode`]: writes them without heap or panic, for hooks inside the traced process.
//! - [`decode_line`]: reads one.
//! - [`load_whole`] and [`Follower`]: read a whole file, finished or still growing.
//! - [`SeekableReplay`]: the state at any moment of a run, and [`Replay`]: the state with its latest events.
//! - [`SnapshotReplay`]: the blocks of a moment, with what became of them later.
//! - [`Model`]: the state of the process: what is allocated now and was at the peak, by line, layer and category.
//!
//! ```
//! use memlab_trace::{Model, decode_line};
//!
//! let trace = [
//!     r#"{"memlab":1,"version":"0.1.0","pid":4242,"command":["python","train.py"]}"#,
//!     r#"{"frame":12,"file":"/home/ada/gpt/train.py","line":31,"function":"GPT.forward"}"#,
//!     r#"{"stack":5,"parent":0,"frame":12}"#,
//!     r#"["a",1834022117,1,0,140213447884800,4718592,5,7,5]"#,
//!     r#"["f",1834031900,1,0,140213447884800]"#,
//! ];
//! let mut model = Model::new();
//! for line in trace {
//!     model.apply(decode_line(line.as_bytes())?);
//! }
//! let lines = model.lines(0);
//! assert_eq!(lines[0].line.as_ref().and_then(|line| line.line), Some(31));
//! assert_eq!((lines[0].live_bytes, lines[0].live_bytes_at_peak), (0, 4718592));
//! # Ok::<(), memlab_trace::DecodeError>(())
//! ```

mod decode;
pub mod encode;
mod model;
mod snapshot_replay;

mod reader;
pub mod record;
mod replay;

pub use decode::{DecodeError, decode_line};
pub use model::*;
pub use snapshot_replay::{Observer, ResolvedSnapshot, SnapshotReplay};

pub use reader::{
    Extent, Follower, FollowerPosition, Loaded, Polled, Progress, ReadError, ReadSummary, SeekOutcome, SeekTarget,
    SeekableReplay, Sink, Skipped, SkippedLine, load, load_whole, open_file, open_file_no_follow, read_header,
    read_whole,
};
pub use record::Record;
pub use replay::{EventKind, EventView, Replay};
