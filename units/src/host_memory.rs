//! Available host memory.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the bytes available under the tightest bound, and the name of that bound.
///
/// `/proc` and `/sys` are below `root`.
pub fn available_host_memory(root: &Path) -> Option<(u64, String)> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| of_machine(&text));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).map_or_else(|_| Vec::new(), |text| of_groups(&text));
    let in_groups = groups.iter().filter_map(|folder| {
        let folder = root.join(folder);
        of_group(&folder).map(|bytes| (bytes, format!("the control group {}", folder.display())))
    });
    machine.map(|bytes| (bytes, "the machine".to_owned())).into_iter().chain(in_groups).min_by_key(|(bytes, _)| *bytes)
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Returns the folders of the process's memory control groups and all their ancestors, relative to the root.
fn of_groups(cgroup: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => "sys/fs/cgroup",
            list if list.split(',').any(|name| name == "memory") => "sys/fs/cgroup/memory",
            _ => continue,
        };
        let mut path = Path::new(path.trim_start_matches('/'));
        loop {
            folders.push(Path::new(mount).join(path));
            match path.parent() {
                Some(parent) => path = parent,
                None => break,
            }
        }
    }
    folders
}

/// Returns the bytes that a control group's processes may still allocate; `None` without a limit.
///
/// File caches count as free.
fn of_group(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let most = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = statistics.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let cached = cached.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
    Some(most.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_bound_decides() {
        // GIVEN a machine with 8 GiB available, and a group inside another that allows 3 GiB, of which 2 are used
        let root = std::env::temp_dir().join(format!("memlab-host-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
        write("proc/self/cgroup", "0::/outer/inner\n");
        write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
        write("sys/fs/cgroup/outer/inner/memory.current", "2147483648\n");
        write("sys/fs/cgroup/outer/memory.max", "3221225472\n");
        write("sys/fs/cgroup/outer/memory.current", "2147483648\n");
        // THEN 1 GiB is left, and half a GiB more once that part is known to be cached files
        assert_eq!(available_host_memory(&root).unwrap().0, 1 << 30);
        write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 536870912\n");
        let (bytes, whose) = available_host_memory(&root).unwrap();
        assert_eq!(bytes, (1 << 30) + (512 << 20));
        assert!(whose.ends_with("sys/fs/cgroup/outer"), "{whose}");
        // AND without the group's limit, the machine's limit applies
        write("sys/fs/cgroup/outer/memory.max", "max\n");
        assert_eq!(available_host_memory(&root).unwrap(), (8 << 30, "the machine".to_owned()));
        // AND version 1 control groups are read too
        write("proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/job\n");
        write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000\n");
        write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "400\n");
        assert_eq!(available_host_memory(&root).unwrap().0, 600);
        fs::remove_dir_all(root).unwrap();
    }
}
