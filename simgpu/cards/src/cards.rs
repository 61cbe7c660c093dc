//! The cards as one process sees them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::environment::model;
use crate::model::Model;
use crate::table::{MAX_DEVICES, Slot, Table};
use crate::{file, process, visible};

/// The cards as this process sees them.
pub struct Cards {
    table: *mut Table,
    model: Model,
    /// Card numbers of the devices that this process sees, by device ordinal.
    visible: Vec<usize>,
    /// Index of this process's slot, `u64::MAX` until it holds something.
    slot: AtomicU64,
}

// SAFETY: the mutable part of the table is accessed only under its process-shared lock.
unsafe impl Send for Cards {}
// SAFETY: the mutable part of the table is accessed only under its process-shared lock.
unsafe impl Sync for Cards {}

impl Cards {
    /// Opens the cards that `SIMGPU_CARDS` names.
    ///
    /// The first process creates them: `SIMGPU_DEVICES` (default 1) devices of the kind that `SIMGPU_CARD` names, with
    /// the memory in `SIMGPU_MEMORY` if it is set. If the file cannot be used, the cards are private to the process.
    pub fn open() -> Cards {
        let table = std::env::var_os("SIMGPU_CARDS")
            .and_then(|path| file::open_shared(path.as_ref()))
            .unwrap_or_else(file::private);
        // SAFETY: the table is mapped for the life of the process and this field never changes.
        let devices = unsafe { (*table).devices as usize };
        Cards { table, model: model(), visible: (0..devices).collect(), slot: AtomicU64::new(u64::MAX) }
    }

    /// Opens the cards like [`Cards::open`], but only the devices that `CUDA_VISIBLE_DEVICES` names.
    pub fn open_visible() -> Cards {
        let all = Cards::open();
        let list = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        Cards { visible: visible::select(list.as_deref(), all.devices()), ..all }
    }

    /// Returns the number of devices that this process sees.
    pub fn devices(&self) -> usize {
        self.visible.len()
    }

    /// Returns the card number of a visible device.
    pub fn physical(&self, device: usize) -> usize {
        self.visible[device]
    }

    /// Returns the device ordinal of card number `physical`, if this process sees it.
    pub fn visible(&self, physical: usize) -> Option<usize> {
        self.visible.iter().position(|card| *card == physical)
    }

    /// Returns the model of each device. Its memory can differ from the model's: [`Cards::memory`].
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the memory of each device in bytes.
    pub fn memory(&self) -> u64 {
        // SAFETY: the table is mapped for the life of the process and this field never changes.
        unsafe { (*self.table).memory }
    }

    /// Returns the bytes that living processes hold on `device`.
    pub fn held(&self, device: usize) -> u64 {
        let device = self.physical(device);
        self.with(|table, _| {
            reap(table);
            table.held[device]
        })
    }

    /// Charges `bytes` of `device` to this process; returns false if less is free.
    pub fn take(&self, device: usize, bytes: u64) -> bool {
        let device = self.physical(device);
        self.with(|table, own| {
            let fits = |table: &Table| table.held[device].checked_add(bytes).is_some_and(|sum| sum <= table.memory);
            if !fits(table) {
                reap(table);
            }
            if !fits(table) {
                return false;
            }
            let Some(slot) = own_slot(table, own) else { return false };
            table.held[device] += bytes;
            table.slots[slot].held[device] += bytes;
            true
        })
    }

    /// Returns `bytes` of `device` that this process took.
    pub fn give_back(&self, device: usize, bytes: u64) {
        let device = self.physical(device);
        self.with(|table, own| {
            let Some(slot) = own_slot(table, own) else { return };
            let bytes = bytes.min(table.slots[slot].held[device]);
            table.slots[slot].held[device] -= bytes;
            table.held[device] -= bytes;
        });
    }

    /// Returns the living processes that hold memory on `device`, with their bytes, contexts included.
    pub fn processes(&self, device: usize) -> Vec<(i32, u64)> {
        let device = self.physical(device);
        self.with(|table, _| {
            reap(table);
            let holding = table.slots.iter().filter(|slot| slot.pid != 0 && slot.held[device] > 0);
            holding.map(|slot| (slot.pid, slot.held[device])).collect()
        })
    }

    fn with<R>(&self, body: impl FnOnce(&mut Table, &AtomicU64) -> R) -> R {
        // SAFETY: the mutex was initialised before the table was published and lives as long as the mapping.
        let lock = unsafe { (*self.table).lock.as_mut_ptr() };
        // SAFETY: `lock` is an initialised robust mutex. EOWNERDEAD passes on the lock of a process that died; its
        // incomplete change can only make a sum wrong, and `recount` corrects the sums.
        let died = unsafe {
            let died = libc::pthread_mutex_lock(lock) == libc::EOWNERDEAD;
            if died {
                libc::pthread_mutex_consistent(lock);
            }
            died
        };
        // SAFETY: the lock is held, so this is the only reference to the table's changing part.
        let table = unsafe { &mut *self.table };
        if died {
            recount(table);
        }
        let result = body(table, &self.slot);
        // SAFETY: this thread holds the lock.
        unsafe { libc::pthread_mutex_unlock(lock) };
        result
    }
}

/// Returns the index of this process's slot, claimed at first use.
fn own_slot(table: &mut Table, own: &AtomicU64) -> Option<usize> {
    let known = own.load(Ordering::Relaxed);
    let pid = std::process::id() as i32;
    if known != u64::MAX && table.slots[known as usize].pid == pid {
        return Some(known as usize);
    }
    reap(table);
    let free = table.slots.iter().position(|slot| slot.pid == 0)?;
    table.slots[free] = Slot { pid, start_time: process::start_time(pid).unwrap_or(0), held: [0; MAX_DEVICES] };
    own.store(free as u64, Ordering::Relaxed);
    Some(free)
}

/// Frees the memory of dead processes.
fn reap(table: &mut Table) {
    for slot in &mut table.slots {
        if slot.pid != 0 && !process::is_alive(slot.pid, slot.start_time) {
            for (sum, held) in table.held.iter_mut().zip(slot.held) {
                *sum -= held.min(*sum);
            }
            *slot = Slot { pid: 0, start_time: 0, held: [0; MAX_DEVICES] };
        }
    }
}

/// Recomputes the sums from the slots.
fn recount(table: &mut Table) {
    for device in 0..MAX_DEVICES {
        table.held[device] = table.slots.iter().map(|slot| slot.held[device]).sum();
    }
}
