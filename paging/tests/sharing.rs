//! Memory that several processes share. (Here one process joins several times. tests/page/test_page_shared.py tests several
//! processes.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlab_paging::arena::PAGE_SIZE;
use memlab_paging::{Arena, HostShare};

const BYTES: u64 = 4 * PAGE_SIZE;

/// Returns a name that no other test uses, and no other process of this test.
fn name(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

fn join(name: &str) -> HostShare {
    HostShare::join(name, BYTES, &mut |_| true).unwrap().unwrap()
}

fn arena(share: &HostShare) -> Arena {
    // The shared bytes, and one private page.
    Arena::sharing(BYTES + PAGE_SIZE, &[BYTES], Arc::clone(share.memory()), share.is_first()).unwrap()
}

fn bytes(address: u64, count: u64) -> &'static mut [u8] {
    // SAFETY: the tests call it for memory of a live arena, and write to no slice while they use another.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, count as usize) }
}

fn fill(arena: &Arena, offset: u64, with: &[u8]) -> memlab_paging::Result<()> {
    // SAFETY: a slice, which no thread writes to meanwhile.
    unsafe { arena.fill(offset, with.as_ptr() as u64, with.len() as u64) }
}

#[test]
fn one_fills_what_all_have_and_nobody_changes() {
    // GIVEN a process that fills the memory, and a process that waits for it
    let name = name("fill");
    let first = join(&name);
    assert!(first.is_first());
    let ours = arena(&first);
    let weights: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let waited = Arc::new(AtomicBool::new(false));
    let other = std::thread::spawn({
        let (name, waited) = (name.clone(), Arc::clone(&waited));
        move || {
            HostShare::join(&name, BYTES, &mut |holder| {
                assert!(holder == std::process::id() as i32 || holder == 0);
                waited.store(true, Ordering::Release);
                true
            })
        }
    });
    while !waited.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
    fill(&ours, 0, &weights).unwrap();
    assert!(!other.is_finished());
    // WHEN the first publishes it
    ours.protect().unwrap();
    first.publish().unwrap();
    // THEN the other has the same bytes
    let second = other.join().unwrap().unwrap().unwrap();
    assert!(!second.is_first());
    let theirs = arena(&second);
    assert_eq!(bytes(theirs.address(), BYTES), weights);
    assert_eq!((first.members(), theirs.shared_bytes()), (2, BYTES));
    // WHEN one writes to its view, THEN only it sees the change
    let view = ours.view_address().unwrap();
    bytes(view, BYTES)[5000] ^= 1;
    assert_eq!(bytes(theirs.address(), BYTES), weights);
    assert_eq!(bytes(ours.address(), BYTES), weights);
    assert_eq!(bytes(theirs.view_address().unwrap(), BYTES), weights);
    // AND a comparison finds the byte
    // SAFETY: views of these arenas, which are no longer written to.
    let differs = |arena: &Arena, view, start, count| unsafe { arena.differs(start, view + start, count) }.unwrap();
    assert!(differs(&ours, view, 0, BYTES) && differs(&ours, view, 5000, 1) && !differs(&ours, view, 0, 5000));
    assert!(!differs(&theirs, theirs.view_address().unwrap(), 0, BYTES));
    // AND published memory cannot be filled again, but private memory can
    for arena in [&ours, &theirs] {
        let refused = fill(arena, BYTES - 1, &[1, 2]).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("2 bytes at offset {} are shared with other processes, and were filled already", BYTES - 1)
        );
        fill(arena, BYTES, &weights[..PAGE_SIZE as usize]).unwrap();
    }
    assert!(first.publish().is_err() && second.publish().is_err());
    // WHEN the first is gone, THEN the second sends the memory
    drop((ours, first));
    let third = join(&name);
    assert!(!third.is_first());
    assert_eq!(bytes(arena(&third).address(), BYTES), weights);
}

#[test]
fn unfilled_memory_is_created_again() {
    // GIVEN a member that gives up, and one that is dropped, before the memory is filled
    let name = name("anew");
    let gave_up = join(&name);
    gave_up.abandon();
    assert!(gave_up.publish().is_err());
    drop(join(&name));
    // THEN the next is the first again
    let first = join(&name);
    assert!(first.is_first());
    // WHEN a process stops waiting for it, THEN it gets nothing
    assert!(HostShare::join(&name, BYTES, &mut |_| false).unwrap().is_none());
    // WHEN the first has published, THEN giving up does nothing
    first.publish().unwrap();
    first.abandon();
    assert!(!join(&name).is_first());
    // WHEN all are gone, THEN the memory is gone too, once their threads have ended
    drop(first);
    while !join(&name).is_first() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn wrong_names_and_sizes_are_refused() {
    for wrong in ["", "a/b", "a b", &"x".repeat(65)] {
        let refused = HostShare::join(wrong, BYTES, &mut |_| true).err().unwrap().to_string();
        assert!(refused.ends_with("is no name of 1 to 64 letters, digits and dashes"), "{refused}");
    }
    for bytes in [0, PAGE_SIZE + 1] {
        let refused = HostShare::join(&name("size"), bytes, &mut |_| true).err().unwrap().to_string();
        assert_eq!(refused, format!("{bytes} bytes to share are not a multiple of {PAGE_SIZE}"));
    }
    // GIVEN shared memory that ends between the borders of an arena, THEN the arena is refused.
    let share = join(&name("borders"));
    let refused = Arena::sharing(8 * PAGE_SIZE, &[PAGE_SIZE], Arc::clone(share.memory()), true).err().unwrap();
    assert_eq!(refused.to_string(), "16384 shared bytes of an arena of 32768 end at none of its borders");
}
