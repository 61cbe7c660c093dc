//! Format, encoder, decoder and readers of memlab traces, and the model that replays them.
//!
//! A traced process appends to its trace, a JSON Lines file; `docs/trace-format.md` describes the format. This crate depends
//! on neither CUDA, Python nor a terminal, and you can use it alone:
//!
//! - [`record`]: the records, one type each.
//! - [`encode`]: writes records without heap or panic, for hooks inside the traced process.
//! - [`decode_line`]: reads one record.
//! - [`Model`]: the state of the process: memory now and at the peak, by line, layer and category.
//! - [`load_whole`] and [`Follower`]: replay a file into a model, whether the file is finished or still growing.
//! - [`SeekableReplay`]: the state at any moment of a run; [`Replay`]: the state with its latest events.
//! - [`SnapshotReplay`]: the blocks of one moment, in their final categories.
//!
//! # Which lines hold the memory at the peak
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use memlab_trace::load_whole;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("memlab-doc-load-{}.jsonl", std::process::id()));
//! # std::fs::write(&path, r#"{"memlab":1,"version":"0.1.0","pid":4242,"command":["python","train.py"]}
//! # {"frame":12,"file":"/home/ada/gpt/train.py","line":31,"function":"GPT.forward"}
//! # {"stack":5,"parent":0,"frame":12}
//! # ["a",1834022117,1,0,140213447884800,4718592,5,7,5]
//! # ["f",1834031900,1,0,140213447884800]
//! # "#)?;
//! let loaded = load_whole(&path, &mut |_progress| ControlFlow::Continue(()))?;
//! let lines = loaded.model.lines(0);
//! let largest = lines[0].line.as_ref().expect("a line of the program");
//! assert_eq!((&*largest.file, largest.line), ("/home/ada/gpt/train.py", Some(31)));
//! assert_eq!((lines[0].live_bytes, lines[0].live_bytes_at_peak), (0, 4718592));
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # The state at a moment
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use memlab_trace::{Extent, SeekOutcome, SeekTarget, SeekableReplay};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("memlab-doc-seek-{}.jsonl", std::process::id()));
//! # std::fs::write(&path, r#"{"memlab":1,"version":"0.1.0","pid":4242,"command":["python","train.py"]}
//! # ["a",1834022117,1,0,140213447884800,4718592,0,0,0]
//! # ["f",1834031900,1,0,140213447884800]
//! # "#)?;
//! let mut replay = SeekableReplay::open(&path, 100)?;
//! let outcome = replay.seek(SeekTarget::Event(1), Extent::WHOLE, &mut |_progress| ControlFlow::Continue(()))?;
//! assert_eq!(outcome, SeekOutcome::Found);
//! assert_eq!(replay.model().totals(0).allocated_bytes, 4718592);
//!
//! replay.seek(SeekTarget::End, Extent::WHOLE, &mut |_progress| ControlFlow::Continue(()))?;
//! assert_eq!(replay.model().totals(0).allocated_bytes, 0);
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! ```text
//! reader                                  files: whole, growing, at any moment
//! snapshot_replay, replay                 one moment with final categories; the state with its latest events
//! seek_target, sink                       moments to stop at; consumers of records
//! model                                   the state of the process, by the modules below
//! model::framework                        frameworks and habits of libraries, by stacks
//! model::queries, model::lines            queries of the model
//! model::apply                            application of records to the state
//! model::keyframe                         the state as lines of a trace
//! model::process_state                    all devices, threads, names
//! model::ooms, model::holders             out-of-memory events; searches for what holds memory
//! model::call_tree, model::accumulation   figures by stack
//! model::gpu_work_views                   work on a device, grouped
//! model::device_views, model::long_lived  figures of one device; blocks kept over many steps
//! model::device                           one device: blocks, books, driver memory
//! model::gpu_work                         work on a device, by place
//! model::step_work                        work on a device, by step
//! model::passes, model::forwards          accumulation over forward passes; memory of earlier ones beside a forward
//! model::growth, model::driver_memory     lines that grow over steps; memory taken from the driver
//! model::windows                          growth that a release ended
//! model::snapshots                        bytes of lines and cells at comparable moments
//! model::private_pools                    segments of CUDA graphs
//! model::trainings                        training progress by step
//! model::blocks, model::tags, model::timeline, model::category_timeline, model::steps, model::device_totals
//! model::ledger                           bytes by stack, layer and category, now and at the peak
//! model::line_book                        bytes by line
//! model::cell, model::symbols             the finest sums; names of stacks, lines and layers
//! model::tensor_names, model::classification, model::time_bins, model::sources, model::scope, model::allocation_totals
//! model::views, model::history_views, model::code_origin
//! model::line, model::category, model::anomalies
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]

mod model;
mod reader;
mod replay;
mod seek_target;
mod sink;
mod snapshot_replay;

pub use memlab_format::Record;
pub use memlab_format::{DecodeError, decode_line, encode, record};
pub use memlab_holders as holders;
pub use model::*;
pub use reader::*;
pub use replay::{EventKind, EventView, Replay};
pub use seek_target::SeekTarget;
pub use sink::Sink;
pub use snapshot_replay::{Observer, ResolvedSnapshot, SnapshotReplay};
