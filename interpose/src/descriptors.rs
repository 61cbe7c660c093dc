//! File descriptors of memlab's own, among those of a program that may close or reuse any number.

use std::os::fd::{AsRawFd, FromRawFd};

/// Moves a descriptor to a high number: programs close and reuse low ones wholesale.
pub fn move_up<D: AsRawFd + FromRawFd>(file: D) -> D {
    let limit = soft_limit(libc::RLIMIT_NOFILE);
    for lowest in [1000, 500, 200] {
        if lowest < limit {
            // SAFETY: an open descriptor; the new one is owned by the returned file.
            let moved = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest as libc::c_int) };
            if moved >= 0 {
                // SAFETY: just made, and owned by nothing else.
                return unsafe { D::from_raw_fd(moved) };
            }
        }
    }
    file
}

/// Device and inode that a descriptor refers to; zeros if it is closed.
pub fn inode_of(descriptor: &impl AsRawFd) -> (u64, u64) {
    // SAFETY: zeros are a valid stat; the kernel fills it, or leaves it where there is no such descriptor.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        libc::fstat(descriptor.as_raw_fd(), &mut found);
        (found.st_dev, found.st_ino)
    }
}

/// The process's soft limit on a resource; `u64::MAX` for none.
pub fn soft_limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the structure.
    match unsafe { libc::getrlimit(resource, &mut limits) } {
        0 => limits.rlim_cur, // RLIM_INFINITY is the largest value.
        _ => u64::MAX,
    }
}
