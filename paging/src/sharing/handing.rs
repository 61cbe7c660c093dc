//! Sends memory from process to process: the messages on a connection.

use std::io::{IoSlice, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};
use rustix::process::geteuid;

use crate::arena::MemoryFile;
use crate::error::Result;

/// Greeting that a member sends with the memory, before its size.
///
/// Other programs, or another version of the protocol, send something else.
const GREETING: [u8; 8] = *b"memlab 1";
const MESSAGE_BYTES: usize = GREETING.len() + mem::size_of::<u64>();

/// Longest wait before a process decides again whether to continue.
const WAIT_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time that a live member needs to answer, on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects, and fails instead of waiting for a place in the queue.
pub(super) fn connect(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&connection, address)?;
    Ok(connection)
}

/// Returns true if the process at the other end has the same user.
pub(super) fn is_own(connection: &OwnedFd) -> bool {
    peer(connection).is_some_and(|peer| peer.uid == geteuid().as_raw())
}

/// Number of the process at the other end; 0 if it is not visible from here.
pub(super) fn process_of(connection: &OwnedFd) -> i32 {
    peer(connection).map_or(0, |peer| peer.pid)
}

/// Credentials of the process at the other end. rustix's type does not allow process number 0, which a process outside the
/// container has.
fn peer(connection: &OwnedFd) -> Option<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = mem::size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut found).cast();
    // SAFETY: the kernel writes at most `length` bytes to a local of this size.
    let code =
        unsafe { libc::getsockopt(connection.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut length) };
    (code == 0).then_some(found)
}

/// Waits until the other end is closed, or one interval has passed.
pub(super) fn wait_for_hangup(connection: &OwnedFd) {
    wait_for(connection, PollFlags::RDHUP);
}

/// Waits until the member at the other end has answered, is gone, or has taken too long.
///
/// Calls `keep_waiting` about ten times a second. Returns false as soon as `keep_waiting` does.
pub(super) fn wait_for_answer(connection: &OwnedFd, keep_waiting: &mut dyn FnMut() -> bool) -> bool {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    while !wait_for(connection, PollFlags::IN) && Instant::now() < deadline {
        if !keep_waiting() {
            return false;
        }
    }
    true
}

/// Waits for an event, at most one interval.
///
/// A signal also ends the wait, and the caller checks again.
fn wait_for(connection: &OwnedFd, event: PollFlags) -> bool {
    let most = Timespec { tv_sec: 0, tv_nsec: i64::from(WAIT_INTERVAL.subsec_nanos()) };
    poll(&mut [PollFd::new(connection, event)], Some(&most)).is_ok_and(|ready| ready > 0)
}

/// Sends the memory to a process of the same user.
pub(super) fn send(connection: OwnedFd, memory: &MemoryFile) {
    if !is_own(&connection) {
        return;
    }
    let mut message = [0; MESSAGE_BYTES];
    message[..GREETING.len()].copy_from_slice(&GREETING);
    message[GREETING.len()..].copy_from_slice(&memory.bytes().to_le_bytes());
    let descriptors = [memory.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    // A closed connection does not matter. The message is shorter than any buffer, so this never blocks.
    let _ = sendmsg(&connection, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
}

/// Receives the memory from the member at the other end.
///
/// Returns `None` if the member has sent nothing.
///
/// # Errors
///
/// If the member sends something else.
pub(super) fn receive(connection: &OwnedFd, bytes: u64) -> Result<Option<MemoryFile>> {
    let mut message = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(connection, &mut [IoSliceMut::new(&mut message)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let whole = received.is_ok_and(|received| received.bytes == MESSAGE_BYTES);
    let descriptor = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match descriptor {
        Some(descriptor) if whole && message[..GREETING.len()] == GREETING => {
            MemoryFile::received(descriptor, bytes).map(Some)
        }
        _ => Ok(None),
    }
}
