//! Notices: what a person or a program is told while a recorded program runs, because it ran out of memory, leaks, or
//! leaves little free.

mod command;
mod delivery;
mod due;
mod notice;
mod options;
mod webhook;

pub use delivery::Deliveries;
pub use due::Due;
pub use notice::{Notice, NoticeKind, NoticedProcess};
pub use options::Options;
