//! Arguments shared by several commands.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use memlab_protocol::status::OnLimit;
use memlab_trace::Scope;

use crate::theme::Palette;

/// Appearance of the dashboard.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Appearance {
    /// Colours of the dashboard; NO_COLOR switches them off.
    #[arg(long, value_enum, env = "MEMLAB_THEME")]
    pub theme: Option<Palette>,
}

/// Policy for showing the lines of libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Libraries {
    /// Shows library lines if one of your lines that only calls a library holds more than half of the peak.
    Auto,
    /// Always shows library lines.
    Always,
    /// Never shows library lines.
    Never,
}

impl Libraries {
    /// Returns the scope of the lines to show. `None`: library lines, where the user's lines only call them.
    pub fn scope(asked: Option<Self>) -> Option<Scope> {
        match asked? {
            Self::Auto => None,
            Self::Always => Some(Scope::Libraries),
            Self::Never => Some(Scope::Users),
        }
    }
}

/// Syntax of moments, one form per line.
pub const MOMENTS: &str = "\
\x20 peak           the moment with the most memory allocated
  end            the end of the run
  oom, oom:2     the first out-of-memory error, the second
  step:12        the end of optimizer step 12; step:0 is the first
  12.5s, 850ms, 1m30s, 1:30
                 a time since the start of the trace";

/// Help text on moments, for commands that take one.
pub fn moments_help() -> String {
    format!("Moments:\n{MOMENTS}")
}

/// Parses a process id.
///
/// # Errors
///
/// A message that points to `memlab ps`.
pub fn pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a process ID; `memlab ps` lists them".to_owned())
}

/// Parses a time above 0.
///
/// # Errors
///
/// A message with the expected form.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    match memlab_units::parse_duration(text) {
        Some(ns @ 1..) => Ok(Duration::from_nanos(ns)),
        _ => Err("write it as 30s, 1m30s or 500ms".to_owned()),
    }
}

/// Parses a size above 0.
///
/// # Errors
///
/// A message with the expected form.
pub fn positive_size(text: &str) -> Result<u64, String> {
    memlab_units::parse_limit(text).map_err(|error| error.to_string())
}

/// Checks the argument of `memlab run --limit`, `8GiB` or `0:8GiB,1:4GiB`, which the library gets unchanged.
///
/// # Errors
///
/// A message with the expected form.
pub fn checked_limits(text: &str) -> Result<String, String> {
    memlab_units::parse_limits(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Parser for the argument of `--on-limit`: `oom` or `spill`.
pub fn on_limit() -> impl TypedValueParser<Value = OnLimit> {
    let values = [
        PossibleValue::new("oom").help("The allocation fails, as on a full device"),
        PossibleValue::new("spill").help("The memory comes from the host, which kernels access slowly"),
    ];
    PossibleValuesParser::new(values).try_map(|text| OnLimit::parse(&text).ok_or("expected oom or spill"))
}
