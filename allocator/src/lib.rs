//! PyTorch's caching allocator as a model: which segments it takes from a card, and which blocks it cuts from them, for a
//! sequence of requests. It knows nothing of CUDA, traces and programs.
//!
//! The rules are those of `c10/cuda/CUDACachingAllocator.cpp` and `c10/core/AllocatorConfig.cpp` of PyTorch 2.1 to 2.15: pools by
//! size, stream and private pool; best fit, split and merge; garbage collection, `max_split_size_mb`, power-of-two rounding and
//! expandable segments; what is given back to a full card, and in which order. `tests/know/test_allocator.py` compares segments and
//! blocks with those of PyTorch itself.
//!
//! - [`Allocator`]: the state, changed request by request.
//! - [`replay()`]: a whole sequence, with what a plan asks of it.
//! - [`Settings`]: what `PYTORCH_ALLOC_CONF` says.
//!
//! # Layers
//!
//! ```text
//! replay                 a sequence of requests
//! allocator              one request at a time
//! allocator::find        the search for a free block
//! allocator::release     what goes back to the card
//! allocator::expandable  segments that grow
//! allocator::state       blocks, free blocks, pools and counters, and how they change together
//! free_blocks            the best fit
//! blocks, card, counters
//! address_space          where a card's driver puts segments
//! request                what is asked
//! settings               the user's choices
//! sizes                  constants and roundings
//! ```

#![warn(missing_docs)]

mod address_space;
mod allocator;
mod blocks;
mod card;
mod counters;
mod free_blocks;
mod replay;
mod request;
mod settings;
mod sizes;

pub use address_space::AddressSpace;
pub use allocator::{Allocator, BlockState, SegmentBlock, SegmentState};
pub use card::{Card, Placement};
pub use counters::{Counter, Counters};
pub use replay::{Outcome, Replayed, replay};
pub use request::{OutOfMemory, Place, Request, Requests};
pub use settings::{Settings, SettingsError};
pub use sizes::ROUND_LARGE;
