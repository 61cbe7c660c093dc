//! Contents of the card file.

use std::mem::MaybeUninit;

/// Maximum number of devices of one set of cards.
pub const MAX_DEVICES: usize = 16;

/// Maximum number of processes that can hold memory at the same time.
pub(crate) const MAX_PROCESSES: usize = 512;

/// Written last when a card file is created: a file without it is not a finished card file.
pub(crate) const MAGIC: u64 = 0x5349_4d47_5055_3031;

/// Memory of one process.
#[repr(C)]
pub(crate) struct Slot {
    /// 0 when the slot is free.
    pub(crate) pid: i32,
    pub(crate) start_time: u64,
    /// Bytes held on each device, contexts included.
    pub(crate) held: [u64; MAX_DEVICES],
}

/// Contents of the card file, shared by all processes.
#[repr(C)]
pub(crate) struct Table {
    pub(crate) magic: u64,
    pub(crate) devices: u64,
    pub(crate) memory: u64,
    /// Robust and process-shared: it can be locked again after a process died holding it.
    pub(crate) lock: MaybeUninit<libc::pthread_mutex_t>,
    pub(crate) held: [u64; MAX_DEVICES],
    pub(crate) slots: [Slot; MAX_PROCESSES],
}
