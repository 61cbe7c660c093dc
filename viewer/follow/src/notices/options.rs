//! Options of `memlab run` for notices.

use std::ffi::OsString;

use clap::{ArgGroup, Args, ValueHint};

use super::webhook::Address;
use memlab_base::arguments::positive_size;

/// Recipients and conditions of notices.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "notices")]
#[command(group(ArgGroup::new("told").args(["notify", "webhook"]).multiple(true)))]
pub struct Options {
    /// Run this command with sh when the program runs out of memory or leaks.
    #[arg(long, value_name = "CMD", value_hint = ValueHint::CommandString)]
    pub notify: Option<OsString>,
    /// POST notices as JSON to this address, http or https. Chats that accept a `text` field show it.
    #[arg(long, value_name = "URL", env = "MEMLAB_WEBHOOK", hide_env_values = true, value_hint = ValueHint::Url)]
    pub webhook: Option<Address>,
    /// Also send a notice when less than this is free on a device; memory cached by PyTorch is not free.
    #[arg(long, value_name = "SIZE", value_parser = positive_size, requires = "told")]
    pub notify_free: Option<u64>,
    /// Number of optimizer steps over which memory must grow to count as a leak.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..), requires = "told")]
    pub notify_leak_steps: u64,
}

impl Options {
    /// Returns true if a recipient is set.
    pub fn has_recipient(&self) -> bool {
        self.notify.is_some() || self.webhook.is_some()
    }
}
