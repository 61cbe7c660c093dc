//! Forecasts the memory of a program at other batch sizes, on other cards and with other allocator settings.
//!
//! A [`Recording`] contains the requests to PyTorch's allocator in a few steps. Request sizes grow linearly with the
//! batch, so two recordings give the requests at any batch ([`Family`]). The model of the allocator
//! ([`crate::allocator`]) replays them for as many steps as it needs to become steady ([`Planned`]). A [`Sequence`] has
//! steps of different lengths. This module reads no files other than traces, and does not depend on processes or
//! terminals.

mod family;
mod growth;
mod matching;
mod order;
mod peak;
mod peak_step;
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
pub use peak_step::PeakStep;
pub use program::{EXTRAPOLATION_LIMIT, Families, Program};
pub use recording::read::RecordingReader;
pub use recording::{Allocation, Event, ReadBacks, Recording, RecordingError, peak_live_bytes};
pub use search::{Needs, SETTINGS_FOR_LENGTHS, SETTINGS_TO_TRY, Search};
pub use sequence::{Sequence, SequenceNeeds, SequenceRun};
pub use stage::{Stage, StagePeak, Stages};
pub use steady::{Planned, Steadiness};
pub use timeline::{PlannedTimeline, TimelineBucket};
