//! Notices to a person or a program while a recorded program runs: it ran out of memory, leaks, or leaves little memory
//! free.

mod command;
mod delivery;
mod notice;
mod options;
mod process_notices;
mod webhook;

pub use delivery::Deliveries;
pub use notice::{Notice, NoticeKind, NoticedProcess};
pub use options::Options;
pub use process_notices::ProcessNotices;
