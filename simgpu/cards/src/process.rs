//! Distinguishes a living process from a dead one whose pid was reused.

/// Returns the start time of `pid` in clock ticks since boot (field 22 of `/proc/pid/stat`, see proc(5)).
///
/// Returns `None` if no such process exists or it is a zombie.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold spaces and parentheses: fields are counted after the last one.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

/// Returns true if the process with `pid` that started at `started` is still alive.
pub fn is_alive(pid: i32, started: u64) -> bool {
    start_time(pid) == Some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_counts_as_dead() {
        // GIVEN a process that has ended and has not been waited for
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        // WHEN it is polled until it is a zombie, THEN it has no start time: its memory can be freed.
        while start_time(pid).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        // AND this process is alive, at its own start time only.
        let own = std::process::id() as i32;
        let started = start_time(own).unwrap();
        assert!(is_alive(own, started));
        assert!(!is_alive(own, started + 1));
    }
}
