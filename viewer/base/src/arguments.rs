//! Arguments that several commands have.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use memlab_protocol::status::OnLimit;
use memlab_trace::Scope;

use crate::theme::Palette;

/// How the dashboard looks.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Appearance {
    /// Colours of the dashboard; NO_COLOR switches them off.
    #[arg(long, value_enum, env = "MEMLAB_THEME")]
    pub theme: Option<Palette>,
}

/// When the lines of libraries are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Libraries {
    /// Where your lines only call libraries.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Libraries {
    /// Whose lines are shown; `None`: the libraries' where the user's lines only call them.
    pub fn scope(asked: Option<Self>) -> Option<Scope> {
        match asked? {
            Self::Auto => None,
            Self::Always => Some(Scope::Libraries),
            Self::Never => Some(Scope::Users),
        }
    }
}

/// How moments are written, one a line.
pub const MOMENTS: &str = "\
\x20 peak           when most memory was allocated
  end            the end of the run
  oom, oom:2     the first out-of-memory error, the second
  step:12        the end of optimizer step 12; step:0 is the first
  12.5s, 850ms, 1m30s, 1:30
                 a time since the start of the trace";

/// The help on moments, for commands that take one.
pub fn moments_help() -> String {
    format!("Moments:\n{MOMENTS}")
}

/// The number of a process.
///
/// # Errors
///
/// What to write instead.
pub fn pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write the number of a process; `memlab ps` lists them".to_owned())
}

/// A time above 0.
///
/// # Errors
///
/// How to write it.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    match memlab_units::parse_duration(text) {
        Some(ns @ 1..) => Ok(Duration::from_nanos(ns)),
        _ => Err("write it as 30s, 1m30s or 500ms".to_owned()),
    }
}

/// A size above 0.
///
/// # Errors
///
/// What to write instead.
pub fn positive_size(text: &str) -> Result<u64, String> {
    memlab_units::parse_limit(text).map_err(|error| error.to_string())
}

/// The argument of `memlab run --limit`, `8GiB` or `0:8GiB,1:4GiB`: passed to the library as it is, once it is known to
/// be right.
///
/// # Errors
///
/// What to write instead.
pub fn checked_limits(text: &str) -> Result<String, String> {
    memlab_units::parse_limits(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// `oom` or `spill`, the argument of `--on-limit`.
pub fn on_limit() -> impl TypedValueParser<Value = OnLimit> {
    let values = [
        PossibleValue::new("oom").help("The allocation fails, as on a full device"),
        PossibleValue::new("spill").help("The memory is taken on the host, where kernels reach it slowly"),
    ];
    PossibleValuesParser::new(values).try_map(|text| OnLimit::parse(&text).ok_or("neither oom nor spill"))
}
