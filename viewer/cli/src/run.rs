//! `memlab run`: starts a program with libmemlab.so preloaded and prints a memory summary at its end.

mod created;
mod ending;
mod keyboard;
mod launch;
mod live;
mod notice_thread;
mod options;
pub mod output;
mod pty;
mod start;
mod summary;
mod traces;
mod untraced;

pub use launch::ExitOutcome;
pub use options::{Allowed, HELP, Options};
pub use start::run;
