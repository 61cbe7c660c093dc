//! Clients of the control socket.
//!
//! One thread serves all of them without blocking, so that a slow or silent client delays no other.

use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use interpose_base::descriptors::{inode_of, move_up};
use memlab_protocol::request::MAX_REQUEST_BYTES;

/// Time from connecting until the client must have received its whole reply.
const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum number of clients served at a time; each uses one of the process's descriptors.
///
/// A further client replaces the one connected longest. A well-behaved client sends its request as it connects, so it is
/// served at once.
const MAX_CLIENTS: usize = 32;
/// Maximum number of waiting clients accepted before the connected ones are polled again.
const ACCEPT_BATCH: usize = 8;

/// A socket, and the inode that reveals whether its descriptor is still memlab's.
struct OwnedSocket<S: AsFd> {
    socket: ManuallyDrop<S>,
    inode: (u64, u64),
}

impl<S: AsFd + From<OwnedFd>> OwnedSocket<S> {
    fn new(socket: S) -> Self {
        let socket = move_up(socket);
        Self { inode: inode_of(&socket), socket: ManuallyDrop::new(socket) }
    }
}

impl<S: AsFd> OwnedSocket<S> {
    /// Returns false once the program has closed the descriptor, even if its number was reused.
    fn is_ours(&self) -> bool {
        inode_of(&*self.socket) == self.inode
    }
}

impl<S: AsFd> Drop for OwnedSocket<S> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped only here; the field is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}

/// The control socket's descriptor (-1: none) and inode, for a forked child.
static LISTENER: (AtomicI32, AtomicU64) = (AtomicI32::new(-1), AtomicU64::new(0));

/// Closes the parent's socket in a forked child.
///
/// Otherwise, after the parent has ended, clients would connect to it and wait for an answer until the child ends.
pub fn reset_in_child() {
    let descriptor = LISTENER.0.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        // SAFETY: used only for fstat, which fails if the descriptor is closed.
        let inode = inode_of(unsafe { BorrowedFd::borrow_raw(descriptor) });
        if inode.1 == LISTENER.1.load(Ordering::Relaxed) {
            // SAFETY: the listener's descriptor, which the child does not use.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Returns the error line for a client that may not send requests.
///
/// It is sent at once, so that the client takes no place.
pub type Refusal = fn(&UnixStream) -> Option<String>;

/// The control socket and the connected clients, the oldest first.
pub struct Clients {
    listener: OwnedSocket<UnixListener>,
    refusal: Refusal,
    clients: Vec<Client>,
}

impl Clients {
    pub fn new(listener: UnixListener, refusal: Refusal) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = OwnedSocket::new(listener);
        LISTENER.1.store(listener.inode.1, Ordering::Relaxed);
        LISTENER.0.store(listener.socket.as_raw_fd(), Ordering::Relaxed);
        Ok(Self { listener, refusal, clients: Vec::with_capacity(MAX_CLIENTS) })
    }

    /// Returns true if memlab still owns a socket to listen on.
    pub fn can_listen(&self) -> bool {
        self.listener.is_ours()
    }

    /// Answers every request that arrives before `until`; `reply` creates the reply line of a request.
    pub fn serve_until(&mut self, until: Instant, reply: impl Fn(&[u8]) -> String) {
        let mut listens = true;
        loop {
            let now = Instant::now();
            self.clients.retain(|client| client.deadline > now && client.stream.is_ours());
            if now >= until || !self.can_listen() {
                return; // The thread's other work is due, regardless of the number of clients.
            }
            let mut polled = [libc::pollfd { fd: -1, events: 0, revents: 0 }; MAX_CLIENTS + 1];
            if listens {
                polled[0].fd = self.listener.socket.as_raw_fd();
                polled[0].events = libc::POLLIN;
            }
            for (entry, client) in polled[1..].iter_mut().zip(&self.clients) {
                entry.fd = client.stream.socket.as_raw_fd();
                entry.events = if client.reply.is_empty() { libc::POLLIN } else { libc::POLLOUT };
            }
            let next = self.clients.iter().map(|client| client.deadline).fold(until, Instant::min);
            let left_ms = next.saturating_duration_since(now).as_micros().div_ceil(1000);
            // SAFETY: the array has that many valid entries; poll ignores negative descriptors.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, left_ms as i32) };
            if ready <= 0 {
                continue;
            }
            let mut entries = polled[1..].iter();
            self.clients
                .retain_mut(|client| entries.next().is_none_or(|entry| entry.revents == 0) || client.advance(&reply));
            if polled[0].revents != 0 {
                listens = self.accept_some(&reply);
            }
        }
    }

    /// Accepts some of the waiting clients.
    ///
    /// Returns false if that is not possible now.
    fn accept_some(&mut self, reply: impl Fn(&[u8]) -> String) -> bool {
        for _ in 0..ACCEPT_BATCH {
            if !self.can_listen() {
                return false;
            }
            match self.listener.socket.accept() {
                Ok((stream, _)) => {
                    let refusal = (self.refusal)(&stream);
                    let mut client = Client::new(stream, refusal.unwrap_or_default().into_bytes());
                    // Most clients have sent their request by now, and are not kept.
                    if client.stream.socket.set_nonblocking(true).is_ok() && client.advance(&reply) {
                        if self.clients.len() == MAX_CLIENTS {
                            self.clients.remove(0);
                        }
                        self.clients.push(client);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The process may be out of descriptors: retry later.
                Err(_) => return false,
            }
        }
        true
    }
}

/// A connection.
struct Client {
    stream: OwnedSocket<UnixStream>,
    deadline: Instant,
    request: Vec<u8>,
    /// The unsent part of the reply; empty while the request is incomplete.
    reply: Vec<u8>,
}

impl Client {
    fn new(stream: UnixStream, reply: Vec<u8>) -> Self {
        let deadline = Instant::now() + DEADLINE;
        Self { stream: OwnedSocket::new(stream), deadline, request: Vec::new(), reply }
    }

    /// Reads and writes as much as possible without blocking.
    ///
    /// Returns false when the client is done.
    fn advance(&mut self, reply: impl Fn(&[u8]) -> String) -> bool {
        if self.reply.is_empty() {
            match self.read() {
                Ok(true) => self.reply = reply(&self.request).into_bytes(),
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        while !self.reply.is_empty() {
            match (&*self.stream.socket).write(&self.reply) {
                Ok(0) => return false,
                Ok(count) => drop(self.reply.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    /// Reads the request.
    ///
    /// Returns true once it is complete: at a newline, at the end of input, or at the size limit.
    fn read(&mut self) -> io::Result<bool> {
        let mut piece = [0; 4096];
        while self.request.len() < MAX_REQUEST_BYTES {
            match (&*self.stream.socket).read(&mut piece) {
                Ok(0) => return Ok(true),
                Ok(count) => {
                    self.request.extend_from_slice(&piece[..count]);
                    if memchr::memchr(b'\n', &piece[..count]).is_some() {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
