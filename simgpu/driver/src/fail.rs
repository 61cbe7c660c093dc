//! Injected failures for tests: `SIMGPU_FAIL`, `SIMGPU_OOM_AT` and `SIMGPU_HANG_SYNC`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::code::{Answer, Code};

/// One element of `SIMGPU_FAIL`: `cuName:code`, `cuName:code@n` or `cuName:code@n+`.
struct Failure {
    name: String,
    code: Code,
    when: FailingCalls,
    calls: AtomicU64,
}

/// Calls that fail, counted from 1.
#[derive(Clone, Copy)]
enum FailingCalls {
    At(u64),
    From(u64),
}

impl FailingCalls {
    fn parse(text: &str) -> Option<FailingCalls> {
        match text.strip_suffix('+') {
            Some(first) => first.parse().ok().map(FailingCalls::From),
            None => text.parse().ok().map(FailingCalls::At),
        }
    }

    fn includes(self, call: u64) -> bool {
        match self {
            FailingCalls::At(n) => call == n,
            FailingCalls::From(n) => call >= n,
        }
    }
}

/// Returns the failure to inject into this call of `name` (an ABI name such as `cuMemAlloc_v2`), if any.
pub fn injected(name: &str) -> Answer {
    static FAILURES: OnceLock<Vec<Failure>> = OnceLock::new();
    let failures = FAILURES.get_or_init(|| {
        let list = std::env::var("SIMGPU_FAIL").unwrap_or_default();
        list.split(',').filter_map(|element| parse(element.trim())).collect()
    });
    for failure in failures {
        if failure.name == name || failure.name == plain(name) {
            let call = failure.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if failure.when.includes(call) {
                return Err(failure.code);
            }
        }
    }
    Ok(())
}

fn parse(element: &str) -> Option<Failure> {
    let (name, rest) = element.split_once(':')?;
    let (code, when) = match rest.split_once('@') {
        Some((code, when)) => (code, FailingCalls::parse(when)?),
        None => (rest, FailingCalls::From(1)),
    };
    Some(Failure { name: name.to_owned(), code: Code(code.parse().ok()?), when, calls: AtomicU64::new(0) })
}

/// Returns `cuMemAlloc` for `cuMemAlloc_v2`.
fn plain(name: &str) -> &str {
    name.find("_v").map_or(name, |end| &name[..end])
}

/// Counts an allocation of device memory and fails it if `SIMGPU_OOM_AT` (`n` or `n+`) selects it.
pub fn count_allocation() -> Answer {
    static WHEN: OnceLock<Option<FailingCalls>> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    match WHEN.get_or_init(|| FailingCalls::parse(std::env::var("SIMGPU_OOM_AT").ok()?.trim())) {
        Some(when) if when.includes(call) => Err(Code::OUT_OF_MEMORY),
        _ => Ok(()),
    }
}

/// Delays a synchronisation by `SIMGPU_HANG_SYNC`: forever for `1`, else by a time such as `250ms` or `3s`.
///
/// Called without a lock held.
pub fn hang_synchronise() {
    static HANG: OnceLock<Option<Duration>> = OnceLock::new();
    let hang = HANG.get_or_init(|| {
        let text = std::env::var("SIMGPU_HANG_SYNC").ok()?;
        let text = text.trim();
        if let Some(ms) = text.strip_suffix("ms") {
            return ms.parse().ok().map(Duration::from_millis);
        }
        if let Some(seconds) = text.strip_suffix('s') {
            return seconds.parse().ok().map(Duration::from_secs_f64);
        }
        (text == "1").then_some(Duration::MAX)
    });
    match hang {
        Some(duration) if *duration == Duration::MAX => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        Some(duration) => std::thread::sleep(*duration),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_parsed_as_documented() {
        // GIVEN the three forms, WHEN they are parsed, THEN each selects its calls.
        let always = parse("cuMemCreate:2").unwrap();
        assert!(always.when.includes(1) && always.when.includes(9));
        let second = parse("cuMemMap:1@2").unwrap();
        assert!(!second.when.includes(1) && second.when.includes(2) && !second.when.includes(3));
        let later = parse("cuMemMap:1@2+").unwrap();
        assert!(!later.when.includes(1) && later.when.includes(3));
        assert_eq!(later.code.0, 1);
        // AND a plain name matches every version.
        assert_eq!(plain("cuMemAlloc_v2"), "cuMemAlloc");
        assert!(parse("cuMemMap").is_none());
    }
}
