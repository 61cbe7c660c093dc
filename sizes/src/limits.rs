//! Limits of GPU memory: one size for all devices, or one for each that is named.

use std::fmt;

use crate::size::{self, ParseError};

/// A limit for one device, or for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The device's number; `None` for all devices.
    pub device: Option<u32>,
    /// At least 1.
    pub bytes: u64,
}

/// Why a text is not a list of limits. `Display` says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitError {
    /// The size is not one.
    Size(ParseError),
    /// A limit of 0 bytes.
    Zero(String),
    /// A part of a list has no `device:` before its size.
    NoDevice(String),
    /// What stands before the colon is not a number.
    NotADevice(String),
    /// The device is named twice.
    Twice(u32),
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Size(error) => error.fmt(f),
            Self::Zero(text) => write!(f, "{text:?}: no program runs without memory: give it some, as in 8GiB"),
            Self::NoDevice(part) => {
                write!(f, "{part:?} names no device: write 0:8GiB,1:4GiB, or one size for all devices")
            }
            Self::NotADevice(text) => write!(f, "{text:?} is not a device: write its number, as in 0:8GiB"),
            Self::Twice(device) => write!(f, "device {device} has two limits: give it one"),
        }
    }
}

impl std::error::Error for LimitError {}

/// Reads `8GiB` (a limit for every device) or `0:8GiB,1:4GiB` (limits for some).
///
/// ```
/// use memlab_sizes::{Limit, parse_limits};
///
/// assert_eq!(parse_limits("8GiB"), Ok(vec![Limit { device: None, bytes: 8 << 30 }]));
/// assert_eq!(parse_limits("1:4GiB"), Ok(vec![Limit { device: Some(1), bytes: 4 << 30 }]));
/// ```
///
/// # Errors
///
/// If a size or a device is not one, a size is 0, or a device is named twice.
pub fn parse_limits(text: &str) -> Result<Vec<Limit>, LimitError> {
    if !text.contains([':', ',']) {
        return Ok(vec![Limit { device: None, bytes: bytes(text)? }]);
    }
    let mut limits: Vec<Limit> = Vec::new();
    for part in text.split(',') {
        let (device, size) = part.split_once(':').ok_or_else(|| LimitError::NoDevice(part.trim().to_owned()))?;
        let device = device.trim();
        let device: u32 = device.parse().map_err(|_| LimitError::NotADevice(device.to_owned()))?;
        if limits.iter().any(|limit| limit.device == Some(device)) {
            return Err(LimitError::Twice(device));
        }
        limits.push(Limit { device: Some(device), bytes: bytes(size)? });
    }
    Ok(limits)
}

fn bytes(text: &str) -> Result<u64, LimitError> {
    match size::parse(text).map_err(LimitError::Size)? {
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
            ("3:1.5GB", vec![limit(Some(3), 1_500_000_000)]),
        ] {
            assert_eq!(parse_limits(text), Ok(limits), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_limit_is_answered_with_what_to_write() {
        for (text, said) in [
            ("", "not a size"),
            ("much", "\"much\" is not a size"),
            ("8", "8 what? 8GiB?"),
            ("0:8", "8 what? 8GiB?"),
            ("0GiB", "no program runs without memory"),
            ("-1GiB", "not a size"),
            ("0:8GiB,4GiB", "\"4GiB\" names no device"),
            ("gpu:8GiB", "\"gpu\" is not a device"),
            ("-1:8GiB", "\"-1\" is not a device"),
            ("0:8GiB,0:4GiB", "device 0 has two limits"),
            ("0:", "\"\" is not a size"),
            ("1GiB,", "names no device"),
        ] {
            let error = parse_limits(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
