//! File descriptors of memlab in a program that may close or reuse any number.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// Moves a descriptor to a high number: programs close and reuse whole ranges of low ones.
pub fn move_up<D: AsFd + From<OwnedFd>>(file: D) -> D {
    let limit = soft_limit(Resource::Nofile);
    for lowest in [1000, 500, 200] {
        if lowest < limit
            && let Ok(moved) = fcntl_dupfd_cloexec(&file, lowest as i32)
        {
            return moved.into();
        }
    }
    file
}

/// Device and inode of a descriptor; zeros if it is closed.
pub fn inode_of(descriptor: impl AsFd) -> (u64, u64) {
    fstat(descriptor).map_or((0, 0), |found| (found.st_dev, found.st_ino))
}

/// The process's soft limit on a resource; `u64::MAX` without a limit.
pub fn soft_limit(resource: Resource) -> u64 {
    getrlimit(resource).current.unwrap_or(u64::MAX)
}
