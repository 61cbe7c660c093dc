//! Host memory that the processes of one user on one host share.
//!
//! Processes that [`join`](HostShare::join) under one name get the same memory. The first process gets it empty, fills it
//! and [publishes](HostShare::publish) it. The others wait, and receive it from any process that has it. The memory is a
//! memfd without a name in the file system. It is freed when the last process ends, even after a crash.
//!
//! Two kinds of names exist, both of abstract Unix sockets, which vanish with the process that holds them:
//!
//! ```text
//! memlab/UID/NAME/gate   held by the one process that looks for the memory, or creates it; the others wait until it is free
//! memlab/UID/NAME/0      seats: each process that has the memory listens on one, and sends it to processes that connect
//! memlab/UID/NAME/1
//! …
//! ```
//!
//! A process holds the gate while it looks for the memory, so no two processes create it at once. If the process dies while
//! it fills the memory, the gate becomes free and the next process creates the memory again. A dead member needs no
//! successor, because every other member sends the memory too.
//!
//! Any user can take the name of an abstract socket, so both ends of a connection ask the kernel for the other end's user.

mod handing;
mod listener;
mod names;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use self::handing::{connect, is_own, receive, wait_for_answer, wait_for_hangup};
use self::listener::Listener;
use self::names::{GATE, MAX_SHARING_PROCESSES, Name};
use crate::arena::MemoryFile;
use crate::error::{Error, Result, size};

/// Share of this process in memory that several processes hold.
pub struct HostShare {
    name: Name,
    memory: Arc<MemoryFile>,
    place: Mutex<ListenAddress>,
}

/// Socket on which a process listens.
enum ListenAddress {
    /// It fills the memory, and holds the gate.
    Founding(#[expect(dead_code, reason = "held until it is dropped")] Arc<Listener>),
    /// It has the memory, and sends it to others.
    ///
    /// It has no seat if all are taken.
    Seated(Option<Arc<Listener>>),
    /// It gave up before the memory was filled.
    Left,
}

impl HostShare {
    /// Joins the processes that share `bytes` under a name of letters, digits and dashes, at most 64.
    ///
    /// Waits while another process fills the memory or does not answer. Meanwhile calls `keep_waiting` about ten times a
    /// second with that process's number (0 if unknown). If `keep_waiting` returns false, the call ends and returns `None`.
    ///
    /// # Errors
    ///
    /// If another user's process holds the name, or the system refuses.
    pub fn join(name: &str, bytes: u64, keep_waiting: &mut dyn FnMut(i32) -> bool) -> Result<Option<Self>> {
        let name = Name::checked(name)?;
        let Some(gate) = gate(&name, keep_waiting)? else { return Ok(None) };
        for seat in 0..MAX_SHARING_PROCESSES {
            let Ok(connection) = connect(&name.seat(seat)) else { continue };
            // A member that does not answer, because it is stopped, counts as absent. So does another user's process.
            if !is_own(&connection) {
                continue;
            }
            let member = handing::process_of(&connection);
            if !wait_for_answer(&connection, &mut || keep_waiting(member)) {
                return Ok(None);
            }
            if let Some(memory) = receive(&connection, bytes)? {
                let share = Self { name, memory: Arc::new(memory), place: Mutex::new(ListenAddress::Seated(None)) };
                share.take_seat()?;
                return Ok(Some(share)); // Drops the gate: from now on this process sends the memory too.
            }
        }
        let memory = Arc::new(MemoryFile::new(bytes)?);
        Ok(Some(Self { name, memory, place: Mutex::new(ListenAddress::Founding(Arc::new(gate))) }))
    }

    /// Returns true if this process is the first, which has to fill the memory.
    pub fn is_first(&self) -> bool {
        matches!(*self.place.lock(), ListenAddress::Founding(_))
    }

    /// The shared memory.
    pub fn memory(&self) -> &Arc<MemoryFile> {
        &self.memory
    }

    /// Makes the filled memory available to the other processes.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn publish(&self) -> Result<()> {
        if !self.is_first() {
            return Err(Error::Failed("shared memory was published already, or given up".into()));
        }
        self.take_seat()
    }

    /// Gives up before the memory is filled, so that the next process creates it again.
    ///
    /// Has no effect after [`publish`](Self::publish).
    pub fn abandon(&self) {
        let mut place = self.place.lock();
        if matches!(*place, ListenAddress::Founding(_)) {
            *place = ListenAddress::Left;
        }
    }

    /// Number of processes that hold the memory now.
    ///
    /// A process that joined twice counts twice.
    pub fn members(&self) -> usize {
        let is_member = |seat: &u32| connect(&self.name.seat(*seat)).is_ok_and(|connection| is_own(&connection));
        (0..MAX_SHARING_PROCESSES).filter(is_member).count()
    }

    fn take_seat(&self) -> Result<()> {
        for seat in 0..MAX_SHARING_PROCESSES {
            if let Some(listener) = Listener::bind(&self.name.seat(seat)).map_err(refused)? {
                let listener = Arc::new(listener);
                let (theirs, memory) = (Arc::clone(&listener), Arc::clone(&self.memory));
                let serve = move || theirs.serve(|connection| handing::send(connection, &memory));
                let thread = thread::Builder::new().name("memlab-share".to_owned());
                thread.spawn(serve).map_err(|error| Error::Failed(format!("no thread to share memory ({error})")))?;
                *self.place.lock() = ListenAddress::Seated(Some(listener));
                return Ok(());
            }
        }
        *self.place.lock() = ListenAddress::Seated(None);
        Ok(())
    }
}

impl Drop for HostShare {
    fn drop(&mut self) {
        if let ListenAddress::Seated(Some(listener)) = &*self.place.lock() {
            listener.close(); // The serving thread has the other reference, and ends.
        }
    }
}

/// Waits for the gate and takes it.
///
/// Returns `None` if the caller stops waiting.
fn gate(name: &Name, keep_waiting: &mut dyn FnMut(i32) -> bool) -> Result<Option<Listener>> {
    let address = name.gate();
    loop {
        if let Some(listener) = Listener::bind(&address).map_err(refused)? {
            return Ok(Some(listener));
        }
        let holder = match connect(&address) {
            Ok(connection) if !is_own(&connection) => return Err(foreign(name, &connection)),
            Ok(connection) => {
                let holder = handing::process_of(&connection);
                wait_for_hangup(&connection);
                holder
            }
            Err(_) => {
                // The holder is gone or about to listen, or its queue is full.
                thread::sleep(Duration::from_millis(5));
                0
            }
        };
        if !keep_waiting(holder) {
            return Ok(None);
        }
    }
}

fn foreign(name: &Name, connection: &std::os::fd::OwnedFd) -> Error {
    Error::Failed(format!(
        "process {} of another user holds the name {name}/{GATE}, under which memory would be shared: share it under another \
         name, or not at all",
        handing::process_of(connection)
    ))
}

fn refused(error: rustix::io::Errno) -> Error {
    Error::Failed(format!("no socket could be made to share memory ({error})"))
}

impl std::fmt::Display for HostShare {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} shared as {}", size(self.memory.bytes()), self.name)
    }
}
