//! How much memory a program will take at other batch sizes, on other cards and with other settings of the allocator.
//!
//! A [`Recording`] is what PyTorch's allocator was asked for in a few steps. Sizes of requests grow linearly with the batch, so
//! two recordings give the requests at any batch ([`Family`]); the model of the allocator (`memlab-allocator`) then says
//! what they take, after as many steps as it needs to become steady ([`Planned`]). This crate knows nothing of processes, files
//! other than traces, and terminals. Steps of different lengths are a [`Sequence`].

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
mod timeline;

pub use family::{Family, FamilyError};
pub use order::{Order, thinned};
pub use peak::{Holding, PeakView};
pub use program::{EXTRAPOLATION_LIMIT, Families, Program};
pub use recording::read::RecordingReader;
pub use recording::{Allocation, Event, ReadBacks, Recording, RecordingError, peak_live_bytes};
pub use search::{Needs, SETTINGS_FOR_LENGTHS, SETTINGS_TO_TRY, Search};
pub use sequence::{Sequence, SequenceNeeds, SequenceRun};
pub use stage::{Stage, StagePeak, Stages};
pub use steady::{Planned, Steadiness};
pub use timeline::{PlannedTimeline, TimelineBucket};
