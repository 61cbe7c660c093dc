//! The environment's wishes: `MEMLAB_LIMIT` and `MEMLAB_ON_LIMIT`.

use super::OnLimit;
use crate::config::parse_size;
use crate::request::{DEVICES, is_limit};

#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Device (`None`: all) and bytes; a later one counts for what both name.
    pub limits: Vec<(Option<i32>, u64)>,
    pub on_limit: OnLimit,
}

/// What the two variables ask for, and what to tell the user where one of them is not understood.
pub fn wanted(limit: Option<&str>, on_limit: Option<&str>) -> (Wanted, Option<String>) {
    let mut complaint = None;
    let limits = limit.filter(|text| !text.trim().is_empty()).map_or(Some(Vec::new()), limits);
    let limits = limits.unwrap_or_else(|| {
        let text = limit.unwrap_or_default();
        complaint = Some(format!("MEMLAB_LIMIT={text} is no limit (try 8GiB, or 0:8GiB,1:4GiB): there is none"));
        Vec::new()
    });
    let on_limit = on_limit
        .filter(|text| !text.trim().is_empty())
        .map_or(Some(OnLimit::Oom), self::on_limit)
        .unwrap_or_else(|| {
            let text = on_limit.unwrap_or_default();
            let what = format!("MEMLAB_ON_LIMIT={text} is neither oom nor spill: using oom");
            complaint = Some(complaint.take().map_or(what.clone(), |first| format!("{first}; {what}")));
            OnLimit::Oom
        });
    (Wanted { limits, on_limit }, complaint)
}

/// `8GiB` for all devices, `0:8GiB,1:4GiB` for some.
fn limits(text: &str) -> Option<Vec<(Option<i32>, u64)>> {
    text.split(',')
        .map(|part| {
            let (device, size) = match part.split_once(':') {
                Some((device, size)) => (Some(device.trim().parse::<i32>().ok().filter(|&d| is_device(d))?), size),
                None => (None, part),
            };
            Some((device, parse_size(size).filter(|&bytes| is_limit(bytes))?))
        })
        .collect()
}

fn on_limit(text: &str) -> Option<OnLimit> {
    match text.trim().to_ascii_lowercase().as_str() {
        "oom" => Some(OnLimit::Oom),
        "spill" => Some(OnLimit::Spill),
        _ => None,
    }
}

fn is_device(device: i32) -> bool {
    usize::try_from(device).is_ok_and(|device| device < DEVICES)
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
            (" 2 g , 63 : 1g ", vec![(None, 2 * gib), (Some(63), gib)]),
            ("1073741824", vec![(None, gib)]),
            ("", vec![]),
            ("  ", vec![]),
        ] {
            let (wanted, complaint) = wanted(Some(text), None);
            assert_eq!((wanted.limits, complaint), (expected, None), "{text:?}");
        }
        assert_eq!(wanted(None, None).0, Wanted { limits: Vec::new(), on_limit: OnLimit::Oom });
        assert_eq!(wanted(Some("1g"), Some("Spill")).0.on_limit, OnLimit::Spill);
    }

    #[test]
    fn what_is_no_limit_is_complained_about_and_none_is_set() {
        for text in ["lots", "8GB8", "-1", "1.5GiB", "0", "0:0", ":1g", "64:1g", "-1:1g", "1g,", "x:1g", "99999999999g"]
        {
            let (wanted, complaint) = wanted(Some(text), None);
            assert!(wanted.limits.is_empty(), "{text}");
            let said = complaint.unwrap_or_default();
            assert!(said.contains(text) && said.contains("try 8GiB") && !said.contains('\n'), "{text}: {said}");
        }
        let (wanted, complaint) = wanted(Some("1g"), Some("swap"));
        assert_eq!((wanted.limits.len(), wanted.on_limit), (1, OnLimit::Oom));
        assert!(complaint.unwrap_or_default().contains("MEMLAB_ON_LIMIT=swap"));
    }
}
