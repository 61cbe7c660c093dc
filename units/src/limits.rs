//! Limits of GPU memory: one size for all devices, or one size per device.

use std::fmt;

use crate::size::{ParseError, parse_size};

/// A limit for one device, or for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Number of the device; `None` for all devices.
    pub device: Option<u32>,
    /// Limit in bytes, at least 1.
    pub bytes: u64,
}

/// Error in a list of limits. `Display` names the correct form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitError {
    /// The size is not valid.
    Size(ParseError),
    /// A limit of 0 bytes.
    Zero(String),
    /// The text before the colon is not a number.
    NotADevice(String),
    /// The device, or all of them, has two limits.
    Twice(Option<u32>),
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Size(error) => error.fmt(f),
            Self::Zero(text) => write!(f, "{text:?}: no program runs without memory: give it some, as in 8GiB"),
            Self::NotADevice(text) => write!(f, "{text:?} is not a device: write its number, as in 0:8GiB"),
            Self::Twice(Some(device)) => write!(f, "device {device} has two limits: give it one"),
            Self::Twice(None) => write!(f, "two limits for all devices: give one, or write 0:8GiB,1:4GiB"),
        }
    }
}

impl std::error::Error for LimitError {}

/// Reads a list of limits.
///
/// `8GiB` is a limit for every device, `0:8GiB,1:4GiB` are limits for two devices. Both forms combine: `4GiB,0:8GiB` is 4
/// GiB for every device but the first. The result has the limit for every device first.
///
/// ```
/// use memlab_units::{Limit, parse_limits};
///
/// assert_eq!(parse_limits("8GiB"), Ok(vec![Limit { device: None, bytes: 8 << 30 }]));
/// assert_eq!(parse_limits("1:4GiB"), Ok(vec![Limit { device: Some(1), bytes: 4 << 30 }]));
/// ```
///
/// # Errors
///
/// If a size or a device is not valid, a size is 0, or a device has two limits.
pub fn parse_limits(text: &str) -> Result<Vec<Limit>, LimitError> {
    let mut limits: Vec<Limit> = Vec::new();
    for part in text.split(',') {
        let (device, size) = match part.split_once(':') {
            Some((device, size)) => {
                let device = device.trim();
                (Some(device.parse().map_err(|_| LimitError::NotADevice(device.to_owned()))?), size)
            }
            None => (None, part),
        };
        if limits.iter().any(|limit| limit.device == device) {
            return Err(LimitError::Twice(device));
        }
        limits.push(Limit { device, bytes: parse_limit(size)? });
    }
    limits.sort_by_key(|limit| limit.device.is_some());
    Ok(limits)
}

/// Reads one limit: a size above 0.
///
/// # Errors
///
/// If the text is not a size, or the size is 0.
pub fn parse_limit(text: &str) -> Result<u64, LimitError> {
    match parse_size(text).map_err(LimitError::Size)? {
        0 => Err(LimitError::Zero(text.trim().to_owned())),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_for_all_devices_or_for_those_named() {
        let limit = |device, bytes| Limit { device, bytes };
        for (text, limits) in [
            ("8GiB", vec![limit(None, 8 << 30)]),
            (" 512 MiB", vec![limit(None, 512 << 20)]),
            ("0:8GiB,1: 4gib", vec![limit(Some(0), 8 << 30), limit(Some(1), 4 << 30)]),
            ("0:8GiB,4GiB", vec![limit(None, 4 << 30), limit(Some(0), 8 << 30)]),
            ("3:1.5GB", vec![limit(Some(3), 1_500_000_000)]),
        ] {
            assert_eq!(parse_limits(text), Ok(limits), "{text}");
        }
    }

    #[test]
    fn errors_explain_wrong_limits() {
        for (text, said) in [
            ("", "not a size"),
            ("much", "\"much\" is not a size"),
            ("8", "8 has no unit; did you mean 8GiB?"),
            ("0:8", "8 has no unit; did you mean 8GiB?"),
            ("0GiB", "no program runs without memory"),
            ("-1GiB", "not a size"),
            ("8GiB,4GiB", "two limits for all devices"),
            ("gpu:8GiB", "\"gpu\" is not a device"),
            ("-1:8GiB", "\"-1\" is not a device"),
            ("0:8GiB,0:4GiB", "device 0 has two limits"),
            ("0:", "\"\" is not a size"),
            ("0:1GiB,", "\"\" is not a size"),
        ] {
            let error = parse_limits(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
