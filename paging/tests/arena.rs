//! The arena without a pipeline.

use memlab_paging::Arena;

#[test]
fn filled_bytes_are_in_the_arena() {
    // GIVEN more bytes than one thread copies at a time, each different from its neighbours
    let bytes = 40_000_003u64;
    let weights: Vec<u8> = (0..bytes).map(|index| ((index * 0x9e37_79b9) >> 13) as u8).collect();
    let arena = Arena::new(bytes + 512).unwrap();
    // WHEN they are copied in, THEN they are at their offset, and the rest is unchanged.
    // SAFETY: the vector outlives the call and is not written to.
    unsafe { arena.fill(256, weights.as_ptr() as u64, bytes) }.unwrap();
    // SAFETY: the arena's memory, which is no longer written to.
    let all = unsafe { std::slice::from_raw_parts(arena.address() as *const u8, arena.bytes() as usize) };
    assert!(all[256..][..weights.len()] == weights[..]);
    assert!(all[..256].iter().chain(&all[256 + weights.len()..]).all(|&byte| byte == 0));
}

#[test]
fn ranges_outside_the_arena_are_refused() {
    // GIVEN an arena of 100 bytes, WHEN a range goes beyond its end, also by overflow, THEN it is refused.
    let arena = Arena::new(100).unwrap();
    for (offset, bytes) in [(0, 101), (100, 1), (u64::MAX, 2), (2, u64::MAX)] {
        // SAFETY: never read.
        let refused = unsafe { arena.fill(offset, 4096, bytes) }.unwrap_err().to_string();
        assert_eq!(refused, format!("{bytes} bytes at offset {offset} are not inside the arena, which has 100"));
    }
    // WHEN an empty range is at its end, THEN it is accepted.
    // SAFETY: nothing is read.
    unsafe { arena.fill(100, 4096, 0) }.unwrap();
    // WHEN borders are not between pages, or not in order, THEN they are refused.
    for borders in [[100, 8192], [8192, 4096], [4096, 12_288]] {
        assert!(Arena::with_borders(12_288, &borders).err().unwrap().to_string().starts_with("border "));
    }
    assert_eq!(Arena::with_borders(12_288, &[4096, 8192]).unwrap().bytes(), 12_288);
    // WHEN more is requested than the address space, THEN the error contains the requested size.
    let refused = Arena::new(1 << 60).err().unwrap().to_string();
    assert!(refused.starts_with("the system gave no address space for an arena of 1048576.0 TiB"), "{refused}");
}

#[test]
fn an_arena_begins_at_a_huge_page() {
    for bytes in [0, 1, 4096, (2 << 20) + 1, 10 << 20] {
        let arena = Arena::new(bytes).unwrap();
        assert!(arena.address().is_multiple_of(2 << 20), "an arena of {bytes} bytes");
    }
}
