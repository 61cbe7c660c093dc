//! How much memory a program will take at other batch sizes, on other cards and with other settings of the allocator.
//!
//! A [`Recording`] is what PyTorch's allocator was asked for in a few steps. Sizes of requests grow linearly with the batch, so
//! two recordings give the requests at any batch ([`Family`]); the model of the allocator (`memlab-allocator`) then says
//! what they take, after as many steps as it needs to become steady ([`Planned`]). This crate knows nothing of processes, files
//! other than traces, and terminals. Steps of different lengths are a [`Sequence`].
//!
//! # Layers
//!
//! ```text
//! sequence                     steps of different lengths
//! search                       the smallest card, the largest batch
//! program                      several families
//! course, peak                 memory over the steps; what is held at the peak: categories, lines, layers
//! steady                       replay until steps repeat exactly
//! family                       the requests at any batch
//! matching                     which requests of two recordings are the same
//! growth                       the size of a request at any batch
//! order                        orders of lengths
//! period                       the part of a recording that repeats
//! recording::read              a recording from a trace
//! recording                    what was asked for, and where
//! stage                        training, evaluation, saving
//! ```

#![warn(missing_docs)]

mod course;
mod family;
mod growth;
mod matching;
mod order;
mod peak;
mod period;
mod program;
mod recording;
mod search;
mod sequence;
mod stage;
mod steady;

pub use course::{Course, Stretch};
pub use family::{Family, FamilyError};
pub use order::{Order, thinned};
pub use peak::{Holding, PeakView};
pub use program::{FAR, Families, Program};
pub use recording::{Allocation, Event, ReadBacks, Recording, RecordingError, most_at_once};
pub use search::{Needs, SETTINGS_FOR_LENGTHS, SETTINGS_TO_TRY, Search};
pub use sequence::{Sequence, SequenceNeeds, SequenceRun};
pub use stage::{Stage, StagePeak, Stages};
pub use steady::{Planned, Steadiness};
