//! Settings from `MEMLAB_LIMIT`, `MEMLAB_ON_LIMIT` and `MEMLAB_ON_OOM`.

use memlab_units::parse_limits;

use memlab_protocol::request::{MAX_DEVICES, is_limit};
use memlab_protocol::status::OnLimit;

/// Settings from the variables.
#[derive(Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// Device (`None`: all) and bytes.
    pub limits: Vec<(Option<i32>, u64)>,
    /// The result of an allocation beyond the limit. [`OnLimit::Spill`] also holds when the card is full.
    pub on_limit: OnLimit,
}

/// Parses the variables.
///
/// Also returns the message to the user if one of them is invalid.
pub fn wanted(limit: Option<&str>, on_limit: Option<&str>, on_oom: Option<&str>) -> (LimitSettings, Option<String>) {
    let mut complaints = Vec::new();
    let limits = limit.filter(|text| !text.trim().is_empty()).map_or(Ok(Vec::new()), limits);
    let limits = limits.unwrap_or_else(|error| {
        complaints.push(format!("MEMLAB_LIMIT: {error}; no limit is set"));
        Vec::new()
    });
    let mut spills = false;
    for (variable, value) in [("MEMLAB_ON_LIMIT", on_limit), ("MEMLAB_ON_OOM", on_oom)] {
        let text = value.map(str::trim).unwrap_or_default();
        match OnLimit::parse(&text.to_ascii_lowercase()) {
            Some(wanted) => spills |= wanted == OnLimit::Spill,
            None if text.is_empty() => {}
            None => complaints.push(format!("{variable}={text} is neither oom nor spill: using oom")),
        }
    }
    let on_limit = OnLimit::spilling(spills);
    (LimitSettings { limits, on_limit }, (!complaints.is_empty()).then(|| complaints.join("; ")))
}

/// `8GiB` for all devices, `0:8GiB,1:4GiB` for some.
fn limits(text: &str) -> Result<Vec<(Option<i32>, u64)>, String> {
    let limits = parse_limits(text).map_err(|error| error.to_string())?;
    limits
        .into_iter()
        .map(|limit| match limit.device {
            Some(device) if device as usize >= MAX_DEVICES => Err(format!("no device {device}")),
            _ if !is_limit(limit.bytes) => Err(format!("{text} is more than the memory of any device")),
            device => Ok((device.map(|device| device as i32), limit.bytes)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_documented() {
        let gib = 1 << 30;
        for (text, expected) in [
            ("8GiB", vec![(None, 8 * gib)]),
            ("0:8GiB,1:4GiB", vec![(Some(0), 8 * gib), (Some(1), 4 * gib)]),
            (" 63 : 1gib ", vec![(Some(63), gib)]),
            ("1073741824B", vec![(None, gib)]),
            ("", vec![]),
            ("  ", vec![]),
        ] {
            let (wanted, complaint) = wanted(Some(text), None, None);
            assert_eq!((wanted.limits, complaint), (expected, None), "{text:?}");
        }
        assert_eq!(wanted(None, None, None).0, LimitSettings { limits: Vec::new(), on_limit: OnLimit::Oom });
        assert_eq!(wanted(Some("1GiB"), Some("Spill"), None).0.on_limit, OnLimit::Spill);
        assert_eq!(wanted(None, None, Some("spill")).0, LimitSettings { limits: Vec::new(), on_limit: OnLimit::Spill });
    }

    #[test]
    fn an_invalid_limit_is_reported_and_not_set() {
        for (text, reason) in [
            ("lots", "not a size"),
            ("8", "8 has no unit; did you mean 8GiB?"),
            ("0:0B", "no program runs without memory"),
            ("64:1GiB", "no device 64"),
            ("9EiB", "more than the memory of any device"),
            ("1GiB,2GiB", "two limits for all devices"),
        ] {
            let (wanted, complaint) = wanted(Some(text), None, None);
            assert!(wanted.limits.is_empty(), "{text}");
            let said = complaint.unwrap_or_default();
            assert!(said.starts_with("MEMLAB_LIMIT: ") && said.contains(reason), "{text}: {said}");
            assert!(said.ends_with("no limit is set") && !said.contains('\n'), "{text}: {said}");
        }
        let (wanted, complaint) = wanted(Some("1GiB"), Some("swap"), None);
        assert_eq!((wanted.limits.len(), wanted.on_limit), (1, OnLimit::Oom));
        assert!(complaint.unwrap_or_default().contains("MEMLAB_ON_LIMIT=swap"));
        let (_, complaint) = super::wanted(None, None, Some("stop"));
        assert!(complaint.unwrap_or_default().contains("MEMLAB_ON_OOM=stop"));
    }
}
