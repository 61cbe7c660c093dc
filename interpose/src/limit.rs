//! A limit on the process's memory on a device, as if the card were that small.
//!
//! The whole footprint counts: everything that a card of that size would have to hold, including the context and the
//! program's kernels. It has three parts. Allocations that hooks see individually are *charged*, rounded as the driver
//! rounds. Pools of stream-ordered memory and graphs' memory are queried for their *reserved* bytes, since they keep freed
//! memory. The rest is *overhead* (see [`overhead`]).
//!
//! A hook calls [`admission::admit`] before the real call. The granted bytes are charged at once, so that two threads at the
//! limit cannot both succeed. Beyond the limit a call fails as on a full card, or its memory comes from the host
//! ([`spill`]).

pub mod admission;
pub mod calls;
pub mod card;
mod environment;
pub mod in_flight;
pub mod overhead;
pub mod settings;
pub mod spill;
