//! The memlab command: its screens, its output, its commands.
//!
//! One binary for all integration tests of the crate: each binary would link the whole crate again.

mod advise;
mod checkpoint;
mod colors;
mod command;
mod common;
mod diff;
mod docs;
mod events;
mod export;
mod following;
mod holders;
mod html;
mod job;
mod libraries;
mod moments;
mod moving;
mod ranks;
mod report;
mod screens;
mod segments;
mod segments_events;
mod steps_ranks;
mod terminal;
mod time;
