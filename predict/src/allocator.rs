//! Model of PyTorch's caching allocator: the segments it takes from a card, and the blocks it cuts from them, for a
//! sequence of requests.
//!
//! The model does not depend on CUDA, traces or programs.
//!
//! The rules follow `c10/cuda/CUDACachingAllocator.cpp` and `c10/core/AllocatorConfig.cpp` of PyTorch 2.1 to 2.15:
//! pools by size, stream and private pool; best fit, split and merge; garbage collection, `max_split_size_mb`,
//! power-of-two rounding and expandable segments; memory returned to a full card, and its order.
//! `tests/know/test_allocator.py` compares segments and blocks with those of PyTorch itself.
//!
//! - [`Allocator`]: the state, changed request by request.
//! - [`replay()`]: a whole sequence, with the figures that a plan needs.
//! - [`Settings`]: the settings in `PYTORCH_ALLOC_CONF`.

mod address_space;
mod blocks;
mod caching;
mod card;
mod counters;
mod free_blocks;
mod replay;
mod request;
mod settings;
mod sizes;

pub use address_space::AddressSpace;
pub use caching::{Allocator, BlockState, SegmentBlock, SegmentState};
pub use card::{Card, Placement};
pub use counters::{Counter, Counters};
pub use replay::{Outcome, Replayed, replay};
pub use request::{OutOfMemory, PoolKey, Request, Requests};
pub use settings::{Settings, SettingsError};
pub use sizes::ROUND_LARGE;
