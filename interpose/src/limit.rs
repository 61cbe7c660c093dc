//! A limit on what the process may hold on a device, as if the card were of that size.
//!
//! What counts is the whole footprint: everything a card of that size would have to hold, the context and the program's
//! kernels included. Three parts make it up. Allocations that hooks see one by one are *charged*, rounded as the driver
//! rounds. Pools of stream-ordered memory and the memory of graphs are asked for what they have *reserved*, since they
//! keep what was freed. The rest is *overhead* ([`overhead`] says how that is known).
//!
//! A hook asks [`admission::admit`] before the real call. The bytes that it is granted are charged at once, so that two
//! threads at the limit cannot both succeed. Beyond the limit a call is refused as a full card refuses it, or its memory is
//! the host's ([`spill`]).

pub mod admission;
pub mod calls;
pub mod card;
mod environment;
pub mod in_flight;
pub mod overhead;
pub mod settings;
pub mod spill;
