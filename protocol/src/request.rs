//! Requests on the control socket: one line of JSON, fully checked before any action.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::status::OnLimit;

/// Longest line in bytes; longer lines are not read.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time that an operation waits for the program.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// A range of device memory: address and bytes.
pub type Range = (u64, u64);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControlRequest {
    Status,
    /// Stops the program at its next launch, and moves all of its memory to the host.
    Offload {
        timeout: Duration,
    },
    /// Moves ranges to host memory while the program runs.
    Move {
        timeout: Duration,
        ranges: Vec<Range>,
    },
    /// Moves everything back. With `free_host`, then returns the pinned host memory to the system.
    Restore {
        timeout: Duration,
        free_host: bool,
    },
    /// `device` None: all; `bytes` None: no limit; `on_limit` None: unchanged.
    Limit {
        device: Option<i32>,
        bytes: Option<u64>,
        on_limit: Option<OnLimit>,
    },
    /// Searches for what holds the memory, and writes it to the trace.
    Holders,
    /// The driver has taken the process's device memory (true), or returned it (false).
    Checkpointed(bool),
}

/// Upper bound of device ordinals, exclusive.
pub const MAX_DEVICES: usize = 64;

impl ControlRequest {
    /// Parses a line and ignores anything after it. The error is for the client.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let request: Value = serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))?;
        let request = request.as_object().ok_or("not a request: it is not a JSON object")?;
        let command = request.get("command").ok_or("the request has no command")?;
        match command.as_str().ok_or("the request's command must be a string")? {
            "status" => Ok(Self::Status),
            "offload" => offload(request),
            "restore" => {
                let free_host = match given(request, "free_host") {
                    None => false,
                    Some(value) => value.as_bool().ok_or("free_host must be true or false")?,
                };
                Ok(Self::Restore { timeout: timeout(request)?, free_host })
            }
            "limit" => limit(request),
            "holders" => Ok(Self::Holders),
            "checkpointed" => {
                let value = request.get("value").and_then(Value::as_bool);
                Ok(Self::Checkpointed(value.ok_or("checkpointed needs a value, true or false")?))
            }
            other => {
                let start: String = other.chars().take(40).collect();
                Err(format!("unknown command {start:?}: this memlab does not support it"))
            }
        }
    }

    /// Returns the line that [`Self::parse`] reads, without its end. Unchanged settings have no key.
    pub fn to_json(&self) -> Value {
        let mut request = match self {
            Self::Status => json!({"command": "status"}),
            Self::Offload { timeout } => json!({"command": "offload", "timeout_ms": milliseconds(*timeout)}),
            Self::Move { timeout, ranges } => {
                json!({"command": "offload", "timeout_ms": milliseconds(*timeout), "ranges": ranges})
            }
            Self::Restore { timeout, .. } => json!({"command": "restore", "timeout_ms": milliseconds(*timeout)}),
            Self::Limit { device, bytes, .. } => json!({"command": "limit", "device": device, "bytes": bytes}),
            Self::Holders => json!({"command": "holders"}),
            Self::Checkpointed(value) => json!({"command": "checkpointed", "value": value}),
        };
        match self {
            Self::Restore { free_host: true, .. } => request["free_host"] = true.into(),
            Self::Limit { on_limit: Some(on_limit), .. } => request["on_limit"] = json!(on_limit),
            _ => {}
        }
        request
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the value if it is present and not null.
fn given<'a>(request: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    request.get(name).filter(|value| !value.is_null())
}

/// Returns the time that an operation may wait for the program.
fn timeout(request: &Map<String, Value>) -> Result<Duration, String> {
    match given(request, "timeout_ms") {
        None => Ok(DEFAULT_TIMEOUT),
        Some(value) => {
            let milliseconds = value.as_u64().ok_or("timeout_ms must be a whole number of milliseconds")?;
            Ok(Duration::from_millis(milliseconds).min(MAX_TIMEOUT))
        }
    }
}

fn offload(request: &Map<String, Value>) -> Result<ControlRequest, String> {
    let timeout = timeout(request)?;
    let Some(ranges) = given(request, "ranges") else { return Ok(ControlRequest::Offload { timeout }) };
    let pair = |range: &Value| match range.as_array().map(Vec::as_slice) {
        Some([address, bytes]) => Some((address.as_u64()?, bytes.as_u64()?)),
        _ => None,
    };
    let ranges: Option<Vec<Range>> = ranges.as_array().and_then(|ranges| ranges.iter().map(pair).collect());
    let ranges = ranges.filter(|ranges| !ranges.is_empty());
    Ok(ControlRequest::Move { timeout, ranges: ranges.ok_or("ranges must be one or more pairs of address and bytes")? })
}

fn limit(request: &Map<String, Value>) -> Result<ControlRequest, String> {
    let device = match given(request, "device") {
        None => None,
        Some(value) => {
            let ordinal = value.as_i64().filter(|device| (0..MAX_DEVICES as i64).contains(device));
            Some(ordinal.ok_or("device must be a number: 0 for the first device of the program")? as i32)
        }
    };
    // Required even if it is null, so that a missing key cannot lift a limit by mistake.
    let bytes = match request.get("bytes").ok_or("bytes must be a number, or null to lift the limit")? {
        Value::Null => None,
        value => Some(value.as_u64().filter(|&bytes| is_limit(bytes)).ok_or("bytes must be a number, not 0, or null")?),
    };
    let on_limit = match given(request, "on_limit") {
        None => None,
        Some(value) => Some(value.as_str().and_then(OnLimit::parse).ok_or("on_limit must be oom or spill")?),
    };
    Ok(ControlRequest::Limit { device, bytes, on_limit })
}

/// Returns true for a valid limit: above zero, and small enough that sums of bytes fit in signed numbers.
pub fn is_limit(bytes: u64) -> bool {
    bytes > 0 && i64::try_from(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_documented() {
        let timeout = DEFAULT_TIMEOUT;
        for (text, request) in [
            (r#"{"command": "status"}"#, ControlRequest::Status),
            (r#"{"command": "status", "whatever": [1]}"#, ControlRequest::Status),
            ("{\"command\": \"status\"}\nwhat comes later", ControlRequest::Status),
            (r#"{"command": "offload"}"#, ControlRequest::Offload { timeout }),
            (r#"{"command": "offload", "timeout_ms": null, "ranges": null}"#, ControlRequest::Offload { timeout }),
            (
                r#"{"command": "offload", "timeout_ms": 5}"#,
                ControlRequest::Offload { timeout: Duration::from_millis(5) },
            ),
            (
                r#"{"command": "offload", "timeout_ms": 18446744073709551615, "ranges": [[1, 2], [3, 4]]}"#,
                ControlRequest::Move { timeout: MAX_TIMEOUT, ranges: vec![(1, 2), (3, 4)] },
            ),
            (r#"{"command": "restore"}"#, ControlRequest::Restore { timeout, free_host: false }),
            (r#"{"command": "restore", "free_host": true}"#, ControlRequest::Restore { timeout, free_host: true }),
            (
                r#"{"command": "limit", "device": 0, "bytes": 4096, "on_limit": "oom"}"#,
                ControlRequest::Limit { device: Some(0), bytes: Some(4096), on_limit: Some(OnLimit::Oom) },
            ),
            (
                r#"{"command": "limit", "device": null, "bytes": null}"#,
                ControlRequest::Limit { device: None, bytes: None, on_limit: None },
            ),
            (
                r#"{"command": "limit", "bytes": 1, "on_limit": "spill"}"#,
                ControlRequest::Limit { device: None, bytes: Some(1), on_limit: Some(OnLimit::Spill) },
            ),
            (r#"{"command": "checkpointed", "value": false}"#, ControlRequest::Checkpointed(false)),
        ] {
            let parsed = ControlRequest::parse(text.as_bytes());
            assert_eq!(parsed.as_ref(), Ok(&request), "{text}");
            // AND the written request parses to the same value
            assert_eq!(ControlRequest::parse(request.to_json().to_string().as_bytes()), parsed, "{text}");
        }
    }

    #[test]
    fn invalid_limits_are_refused() {
        for wrong in [
            r#""device": 64, "bytes": 1"#,
            r#""device": -1, "bytes": 1"#,
            r#""device": "0", "bytes": 1"#,
            r#""bytes": 0"#,
            r#""bytes": -5"#,
            r#""bytes": 1.5"#,
            r#""bytes": 18446744073709551615"#,
            r#""bytes": 1, "on_limit": "explode""#,
            r#""bytes": 1, "on_limit": 1"#,
            r#""bytes": 1, "on_limit": "OOM""#,
            r#""on_limit": "spill""#,
        ] {
            let refused = ControlRequest::parse(format!(r#"{{"command": "limit", {wrong}}}"#).as_bytes());
            assert!(refused.is_err_and(|why| why.contains("must be")), "{wrong}");
        }
    }

    #[test]
    fn a_million_malformed_requests() {
        // GIVEN valid requests
        let right = [
            r#"{"command": "status", "more": {"a": [null, -1, 1e300, "é😀"]}}"#,
            r#"{"command": "offload", "timeout_ms": 30000, "ranges": [[140187732541440, 2097152], [0, 1]]}"#,
            r#"{"command": "restore", "timeout_ms": 1, "free_host": true}"#,
            r#"{"command": "limit", "device": 1, "bytes": 8589934592, "on_limit": "spill"}"#,
            r#"{"command": "checkpointed", "value": true}"#,
        ];
        let mut generator = fastrand::Rng::with_seed(1);
        let mut random = |below: usize| generator.usize(..below);
        let pieces =
            ["{", "}", "[", "]", "\"", ":", ",", "null", "-", "1e999", "99999999999999999999", "true", "\\u0000"];
        let mut understood = 0;
        for _ in 0..1_000_000 {
            // WHEN they are corrupted in a few places
            let mut text = right[random(right.len())].as_bytes().to_vec();
            for _ in 0..1 + random(4) {
                let at = random(text.len());
                match random(6) {
                    0 => text.truncate(at + 1),
                    1 => text[at] = random(256) as u8,
                    2 => drop(text.remove(at)),
                    3 => drop(text.splice(at..at, pieces[random(pieces.len())].bytes())),
                    4 => drop(text.splice(at..(at + random(20)).min(text.len()), [])),
                    _ => {
                        let copied = text[at..(at + random(30)).min(text.len())].to_vec();
                        drop(text.splice(at..at, copied));
                    }
                }
                if text.is_empty() {
                    text.push(b' ');
                }
            }
            // THEN each is parsed, or refused with a short message
            match ControlRequest::parse(&text) {
                Ok(ControlRequest::Move { ranges, .. }) => assert!(!ranges.is_empty()),
                Ok(_) => understood += 1,
                Err(why) => assert!(!why.is_empty() && why.len() < 300, "{why}"),
            }
        }
        assert!(understood > 1000, "{understood}: spoilt beyond what tells anything");
        // AND so are large and deeply nested texts
        for text in [
            "[".repeat(MAX_REQUEST_BYTES),
            r#"{"a":"#.repeat(MAX_REQUEST_BYTES / 5),
            "x".repeat(MAX_REQUEST_BYTES),
            "9".repeat(MAX_REQUEST_BYTES),
        ] {
            assert!(ControlRequest::parse(text.as_bytes()).is_err());
        }
        let long = format!(r#"{{"command": "{}"}}"#, "\\u0000".repeat(MAX_REQUEST_BYTES / 8));
        assert!(ControlRequest::parse(long.as_bytes()).is_err_and(|why| why.len() < 1000));
    }
}
