//! `memlab limit`: the GPU memory limits of a running program.

use std::fmt::Write as _;
use std::io::Write as _;

use clap::Args;

use memlab_base::arguments::{on_limit, pid, positive_size};
use memlab_base::error::bad_input;
use memlab_base::output;
use memlab_follow::offload::control::{Process, Status};
use memlab_protocol::status::{LimitStatus, OnLimit};
use memlab_units::format::size;

/// A limit given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// No limit.
    Off,
    /// Bytes.
    Bytes(u64),
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().eq_ignore_ascii_case("off") {
            return Ok(Self::Off);
        }
        positive_size(text).map(Self::Bytes)
    }
}

/// Options of `memlab limit`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Options {
    /// The process id.
    #[arg(value_parser = pid)]
    pid: u32,
    /// The most GPU memory the program may have (such as 8GiB), or off; without it, the limits are shown.
    size: Option<Size>,
    /// Limit this device only [default: all devices].
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Action at the limit [default: oom].
    #[arg(long, value_parser = on_limit(), requires = "size", value_name = "WHAT")]
    on_limit: Option<OnLimit>,
}

/// Sets or shows the limits of a process.
///
/// # Errors
///
/// If the process cannot be reached, or refuses.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let Options { pid, size, device, on_limit } = *options;
    let silent = "wait until it continues";
    let (process, mut status) = Process::find(pid).map_err(|error| error.into_error(pid, silent))?;
    let who = status.who();
    if status.moving.is_none() {
        return Err(bad_input(format!(
            "{who} runs under an older memlab, which has no limits: restart it with this one"
        )));
    }
    if let Some(size) = size {
        let bytes = match size {
            Size::Off => None,
            Size::Bytes(bytes) => Some(bytes),
        };
        process.limit(device, bytes, on_limit).map_err(|error| error.into_error(pid, silent))?;
        status = process.status().map_err(|error| error.into_error(pid, silent))?;
    }
    Ok(output::stdout().write_all(table(&status, device).as_bytes())?)
}

fn table(status: &Status, device: Option<u32>) -> String {
    let mut text = String::new();
    let wanted = |limit: &&LimitStatus| device.is_none_or(|device| i64::from(limit.device) == i64::from(device));
    for limit in status.limits.iter().filter(wanted) {
        let LimitStatus { device, limit_bytes, used_bytes, spilled_bytes, on_limit } = limit;
        let most = limit_bytes.map_or_else(|| "no limit".to_owned(), |bytes| format!("limit {}", size(bytes)));
        let _ = write!(text, "cuda:{device}: {most}, {} counted", size(*used_bytes));
        if *spilled_bytes > 0 || *on_limit == OnLimit::Spill {
            let _ = write!(text, ", {} spilled to host memory", size(*spilled_bytes));
        }
        text += match on_limit {
            OnLimit::Oom => "; beyond it allocations fail (oom)\n",
            OnLimit::Spill => "; beyond it allocations use host memory (spill)\n",
            OnLimit::Unknown => "\n",
        };
    }
    if text.is_empty() {
        let which = device.map(|device| format!(" of cuda:{device}")).unwrap_or_default();
        text = format!("{} has no limit{which}: set one with `memlab limit {} 8GiB`\n", status.who(), status.pid);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlab_base::arguments::checked_limits;

    #[test]
    fn limits_are_checked_before_anything_starts() {
        assert_eq!(checked_limits("0:8GiB,1:4GiB"), Ok("0:8GiB,1:4GiB".to_owned()));
        assert_eq!(checked_limits("8"), Err("8 has no unit; did you mean 8GiB?".to_owned()));
        assert_eq!("OFF".parse(), Ok(Size::Off));
        assert_eq!("8GiB".parse(), Ok(Size::Bytes(8 << 30)));
        assert!("0B".parse::<Size>().unwrap_err().contains("no program runs without memory"));
    }

    #[test]
    fn limits_are_printed_by_device() {
        let limit =
            LimitStatus { device: 0, limit_bytes: Some(8 << 30), used_bytes: 4 << 30, ..LimitStatus::default() };
        let spilling = LimitStatus { device: 1, spilled_bytes: 1 << 30, on_limit: OnLimit::Spill, ..limit.clone() };
        let status =
            Status { pid: 42, command: vec!["train".into()], limits: vec![limit, spilling], ..Status::default() };
        assert_eq!(
            table(&status, None),
            "cuda:0: limit 8.00 GiB, 4.00 GiB counted; beyond it allocations fail (oom)\n\
             cuda:1: limit 8.00 GiB, 4.00 GiB counted, 1.00 GiB spilled to host memory; beyond it allocations use host memory (spill)\n"
        );
        assert_eq!(
            table(&status, Some(2)),
            "train (pid 42) has no limit of cuda:2: set one with `memlab limit 42 8GiB`\n"
        );
    }
}
