//! A copy of this process that does one task and writes its result to a pipe.
//!
//! The program does not notice it: it has no exit signal, so that the program receives no SIGCHLD and its `wait` does not
//! return it, and neither Python's nor the C library's fork handlers run. It has the only thread of the calling thread's
//! copy, closes the program's descriptors and ends without cleaning up.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use interpose_base::background::with_signals_blocked;

/// Describes the end of a child without a result: `signal 11`.
fn ending(status: libc::c_int) -> String {
    if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("exit code {}", libc::WEXITSTATUS(status))
    }
}

/// A child at work.
pub struct Child {
    pid: libc::pid_t,
    output: File,
    /// Time for which the calling thread stood still.
    pub pause: Duration,
}

/// Makes a copy of this process that calls `work` with the pipe's end, and then ends.
///
/// # Errors
///
/// If the kernel refuses a pipe or a process.
///
/// # Safety
///
/// `work` runs in the copy: it must not use what another thread may have been changing, and no lock that another may have
/// held.
pub unsafe fn spawn(work: impl FnOnce(&mut dyn Write)) -> io::Result<Child> {
    let (output, input) = pipe()?;
    let started = Instant::now();
    // No handler of the program runs in the copy. Without CLONE_VM it has its own memory, and without an exit signal it is
    // waited for by `__WALL` only.
    let pid = with_signals_blocked(|| {
        // SAFETY: all arguments are plain integers; the copy runs `work`, as the caller allows, and does not return.
        unsafe {
            match libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) as libc::pid_t {
                0 => run(input.as_raw_fd(), work),
                pid if pid < 0 => Err(io::Error::last_os_error()),
                pid => Ok(pid),
            }
        }
    })?;
    Ok(Child { pid, output: File::from(output), pause: started.elapsed() })
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors, which are new and ours.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Runs in the copy.
unsafe fn run(output: RawFd, work: impl FnOnce(&mut dyn Write)) -> ! {
    // SAFETY: plain system calls, on descriptors of the copy only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        // The pipe's end becomes number 3, so that all others can be closed: the program may wait for their end.
        for number in 0..3 {
            libc::dup2(null, number);
        }
        libc::dup2(output, 3);
        libc::syscall(libc::SYS_close_range, 4, u32::MAX, 0);
        let mut pipe = File::from_raw_fd(3);
        // If memory runs out, the kernel ends this process, not the program.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut pipe)));
        // Not `_exit`, which libmemlab intercepts.
        loop {
            libc::syscall(libc::SYS_exit_group, i32::from(done.is_err()));
        }
    }
}

impl Child {
    /// Reads all that the child writes, until it ends.
    ///
    /// # Errors
    ///
    /// If the child has not ended after `limit`: it is killed.
    pub fn read(mut self, limit: Duration) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + limit;
        let mut bytes = Vec::new();
        let mut piece = vec![0; 64 << 10];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no result after {} s", limit.as_secs())));
            }
            let mut waited = libc::pollfd { fd: self.output.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, which is open.
            let ready = unsafe { libc::poll(&raw mut waited, 1, left.as_millis().min(1000) as i32) };
            if ready <= 0 {
                continue;
            }
            match self.output.read(&mut piece)? {
                0 if bytes.is_empty() => {
                    return Err(io::Error::other(format!("the search ended with {}", self.ended())));
                }
                0 => return Ok(bytes),
                count => bytes.extend_from_slice(&piece[..count]),
            }
        }
    }

    /// Waits for the end of a child that has closed its pipe.
    fn ended(&mut self) -> String {
        let mut status = 0;
        // SAFETY: as for `drop`, which does not wait again.
        unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
        self.pid = 0;
        ending(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.pid == 0 {
            return;
        }
        let mut status = 0;
        // SAFETY: the child is ours: it has no exit signal, so no `wait` of the program takes it. After its end the kill
        // reaches a process that is not reaped yet.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, &raw mut status, libc::__WALL);
        }
    }
}
