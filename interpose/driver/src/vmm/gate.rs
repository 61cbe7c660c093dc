//! Gate in front of every hooked driver call that must not run while memory moves.
//!
//! An open gate costs a few nanoseconds. At a closed gate, threads wait before they enter the driver, until it opens again.
//!
//! A passing thread stores that it is inside *before* it loads the gate's state. The closing thread stores the state
//! *before* it loads which threads are inside. At least one sees the other, provided that neither's store and load are
//! reordered. To spare the passing thread a fence, the closing thread makes every running thread of the process execute one,
//! if the kernel has `membarrier`.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

const OPEN: u32 = 0;
const CLOSED: u32 = 1;

/// A futex: threads wait on it while it is [`CLOSED`].
static STATE: AtomicU32 = AtomicU32::new(OPEN);
/// True if the program was started for offloading; otherwise no gate exists.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// True if `membarrier` replaces the fence of the passing side.
static HAS_MEMBARRIER: AtomicBool = AtomicBool::new(false);

/// Count of the gated calls that one thread is inside.
#[repr(align(128))]
struct Slot {
    inside: AtomicU32,
    /// In use by a living thread.
    taken: AtomicBool,
    next: AtomicPtr<Slot>,
}

/// All slots ever created.
///
/// They are reused and never freed, so the list can be walked without a lock.
static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    static OWN: Cell<*const Slot> = const { Cell::new(ptr::null()) };
    static SLOT_RELEASER: SlotReleaser = const { SlotReleaser };
}

/// Frees a thread's slot for a new thread when the thread ends.
struct SlotReleaser;

impl Drop for SlotReleaser {
    fn drop(&mut self) {
        // SAFETY: null or a slot, which is never freed.
        if let Some(slot) = unsafe { OWN.replace(ptr::null()).as_ref() } {
            slot.taken.store(false, Ordering::Release);
        }
    }
}

/// A thread's passage through a gated call.
pub struct GatePass(Option<&'static Slot>);

impl Drop for GatePass {
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.inside.store(slot.inside.load(Ordering::Relaxed) - 1, Ordering::Release);
        }
    }
}

/// Enables the gate and registers for membarrier.
///
/// Called when the library is loaded, and again in a forked child.
pub fn enable() {
    const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
    // SAFETY: a system call without pointers; fails if the kernel is too old or forbids it.
    let registered = unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) } == 0;
    HAS_MEMBARRIER.store(registered, Ordering::Relaxed);
    ENABLED.store(true, Ordering::Release);
}

/// Returns true if the program's GPU work passes the gate.
#[inline]
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Passes the gate, waiting while it is closed.
///
/// The caller may hold any lock of the program, and the GIL.
#[inline]
pub fn enter() -> GatePass {
    if !is_enabled() {
        return GatePass(None);
    }
    let slot = own_slot();
    let depth = slot.inside.load(Ordering::Relaxed);
    slot.inside.store(depth + 1, Ordering::Relaxed);
    if HAS_MEMBARRIER.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
    // A nested call must not wait: the thread that closed the gate waits for the outer call to end.
    if STATE.load(Ordering::Acquire) != OPEN && depth == 0 {
        wait(slot);
    }
    GatePass(Some(slot))
}

#[cold]
fn wait(slot: &Slot) {
    loop {
        slot.inside.store(0, Ordering::Release);
        // SAFETY: a valid futex word; returns when it is woken, the word has changed, or a signal arrived.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                STATE.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                CLOSED,
                ptr::null::<libc::timespec>(),
            );
        }
        slot.inside.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if STATE.load(Ordering::Acquire) == OPEN {
            return;
        }
    }
}

#[cold]
fn claim_slot() -> &'static Slot {
    // SAFETY: slots are never freed.
    let mut next = unsafe { SLOTS.load(Ordering::Acquire).as_ref() };
    let mut found = None;
    while let Some(slot) = next {
        if slot.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            found = Some(slot);
            break;
        }
        // SAFETY: slots are never freed.
        next = unsafe { slot.next.load(Ordering::Relaxed).as_ref() };
    }
    let slot: &'static Slot = found.unwrap_or_else(|| {
        let slot = Box::leak(Box::new(Slot {
            inside: AtomicU32::new(0),
            taken: AtomicBool::new(true),
            next: AtomicPtr::default(),
        }));
        let mut first = SLOTS.load(Ordering::Relaxed);
        loop {
            slot.next.store(first, Ordering::Relaxed);
            match SLOTS.compare_exchange_weak(first, slot, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break slot,
                Err(now) => first = now,
            }
        }
    });
    OWN.set(slot);
    // A thread whose locals are being destroyed keeps its slot permanently. The slot is empty, and few threads call CUDA at
    // that point.
    let _ = SLOT_RELEASER.try_with(|_| ());
    slot
}

/// Exempts the exiting thread from the gate, and keeps the gate from counting as empty: nothing could open it any more.
pub fn exempt_this_thread() {
    if is_enabled() {
        let slot = own_slot();
        slot.inside.store(slot.inside.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

#[inline]
fn own_slot() -> &'static Slot {
    match OWN.get() {
        own if own.is_null() => claim_slot(),
        // SAFETY: slots are never freed.
        own => unsafe { &*own },
    }
}

/// Closes the gate: threads that reach it from now on wait.
pub fn close() {
    STATE.store(CLOSED, Ordering::SeqCst);
    if HAS_MEMBARRIER.load(Ordering::Relaxed) {
        const PRIVATE_EXPEDITED: i32 = 1 << 3;
        // SAFETY: a system call without pointers; registered for in `enable`.
        unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) };
    }
    fence(Ordering::SeqCst);
}

/// Opens the gate and wakes the waiting threads.
pub fn open() {
    STATE.store(OPEN, Ordering::SeqCst);
    // SAFETY: a valid futex word.
    unsafe {
        libc::syscall(libc::SYS_futex, STATE.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX);
    }
}

/// Returns true while the gate is closed.
pub fn is_closed() -> bool {
    STATE.load(Ordering::Relaxed) == CLOSED
}

/// Waits until no thread is inside a gated call; returns false if `deadline` came first.
pub fn wait_until_empty(deadline: Instant) -> bool {
    let mut pause = Duration::from_micros(20);
    loop {
        if is_empty() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

fn is_empty() -> bool {
    // SAFETY: slots are never freed.
    let mut next = unsafe { SLOTS.load(Ordering::Acquire).as_ref() };
    while let Some(slot) = next {
        if slot.inside.load(Ordering::Acquire) != 0 {
            return false;
        }
        // SAFETY: slots are never freed.
        next = unsafe { slot.next.load(Ordering::Relaxed).as_ref() };
    }
    true
}

/// Resets the gate in a forked child, where no thread would open it, and the other threads' slots are free.
pub fn reset_in_child() {
    if !is_enabled() {
        return;
    }
    STATE.store(OPEN, Ordering::SeqCst);
    let own = OWN.get();
    // SAFETY: slots are never freed.
    let mut next = unsafe { SLOTS.load(Ordering::Acquire).as_ref() };
    while let Some(slot) = next {
        if !ptr::eq(slot, own) {
            slot.inside.store(0, Ordering::Relaxed);
            slot.taken.store(false, Ordering::Relaxed);
        }
        // SAFETY: slots are never freed.
        next = unsafe { slot.next.load(Ordering::Relaxed).as_ref() };
    }
    enable();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn no_thread_is_inside_while_it_is_closed() {
        // GIVEN threads that pass the gate repeatedly, and record its state inside
        enable();
        static IS_ALONE: AtomicBool = AtomicBool::new(false);
        static ENTRIES: AtomicU64 = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let seen_inside = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut seen = 0u64;
                        while !stop.load(Ordering::Relaxed) {
                            let _pass = enter();
                            ENTRIES.fetch_add(1, Ordering::Relaxed);
                            seen += u64::from(IS_ALONE.load(Ordering::SeqCst));
                            let _nested = enter();
                        }
                        seen
                    })
                })
                .collect();
            while ENTRIES.load(Ordering::Relaxed) < 100 {
                std::thread::yield_now();
            }
            // WHEN it is closed and opened
            for _ in 0..2000 {
                close();
                assert!(wait_until_empty(Instant::now() + Duration::from_secs(20)));
                IS_ALONE.store(true, Ordering::SeqCst);
                let before = ENTRIES.load(Ordering::SeqCst);
                std::hint::spin_loop();
                // THEN no thread enters while it is closed
                assert_eq!(ENTRIES.load(Ordering::SeqCst), before);
                IS_ALONE.store(false, Ordering::SeqCst);
                open();
            }
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
        });
        assert_eq!(seen_inside, 0);
    }

    #[test]
    fn the_thread_that_ends_the_process_does_not_wait() {
        // GIVEN a gate that stays closed
        enable();
        std::thread::spawn(|| {
            exempt_this_thread();
            // SAFETY: the slot is never freed.
            let depth = unsafe { (*OWN.get()).inside.load(Ordering::Relaxed) };
            assert_eq!(depth, 1);
            drop(enter());
            // SAFETY: the slot is never freed.
            assert_eq!(unsafe { (*OWN.get()).inside.load(Ordering::Relaxed) }, depth);
            // Reset the slot for other tests.
            // SAFETY: the slot is never freed.
            unsafe { (*OWN.get()).inside.store(0, Ordering::Relaxed) };
        })
        .join()
        .unwrap();
    }
}
