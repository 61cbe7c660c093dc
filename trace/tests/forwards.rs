//! Memory of an earlier forward that is still allocated when a forward allocates the same again.

use memlab_trace::Model;

use crate::common::replay;

const NAMES: &[&str] = &[
    r#"{"memlab":1,"version":"0.1.0","pid":1}"#,
    r#"{"frame":1,"file":"/home/ada/train.py","line":10,"function":"Net.forward"}"#,
    r#"{"frame":2,"file":"/home/ada/train.py","line":20,"function":"Net.forward"}"#,
    r#"{"frame":3,"file":"/home/ada/train.py","line":30,"function":"main"}"#,
    r#"{"stack":1,"parent":0,"frame":1}"#,
    r#"{"stack":2,"parent":0,"frame":2}"#,
    r#"{"stack":3,"parent":0,"frame":3}"#,
    r#"{"layer":1,"parent":0,"type":"Net","name":""}"#,
];

/// A batch, and a forward with two activations of 1 MiB, from stacks 1 and 2. A search is made after the first.
const BESIDE_AN_EARLIER_ONE: &[&str] = &[
    r#"["a",1,1,0,100,512,3,0,0]"#,
    r#"["a",2,1,0,1000,1048576,1,1,5]"#,
    r#"["a",3,1,0,2000,1048576,2,1,5]"#,
    r#"["a",4,1,0,200,512,3,0,0]"#,
    r#"["a",5,1,0,3000,1048576,1,1,5]"#,
    r#"{"holder_search":1,"time":6,"reason":"forward","pause_ns":1}"#,
];

/// Search, stacks, bytes, and bytes that a backward used.
fn found(model: &Model) -> Option<(u32, Vec<u32>, u64, u64, u64)> {
    let found = model.earlier_forwards(0)?;
    Some((found.search, found.stacks.iter().copied().collect(), found.bytes, found.used_bytes, found.top_bytes >> 20))
}

fn after(events: &[&str]) -> Model {
    let model = replay([NAMES, BESIDE_AN_EARLIER_ONE, events].concat());
    // Also where a keyframe was written at the search.
    let mut keyframe = Vec::new();
    replay([NAMES, BESIDE_AN_EARLIER_ONE].concat()).write_keyframe(&mut keyframe).expect("memory takes it");
    let text = String::from_utf8(keyframe).expect("JSON");
    assert_eq!(found(&replay(text.lines().chain(events.iter().copied()))), found(&model));
    model
}

#[test]
fn what_a_forward_allocates_a_second_time_is_found() {
    // GIVEN a forward beside the memory of an earlier one, which is freed after it
    let model = after(&[
        r#"["a",7,1,0,4000,1048576,2,1,5]"#,
        r#"["a",8,1,0,300,512,3,0,0]"#,
        r#"["f",9,1,0,1000]"#,
        r#"["f",10,1,0,2000]"#,
    ]);
    // THEN both activations existed twice, also the one that was allocated before the search; no backward used them
    assert_eq!(found(&model), Some((1, vec![1, 2], 2 << 20, 0, 4)));
}

#[test]
fn what_a_backward_uses_is_told_apart() {
    // GIVEN a backward that frees both forwards
    let model = after(&[
        r#"["a",7,1,0,4000,1048576,2,1,5]"#,
        r#"["a",8,1,0,300,512,3,1,18]"#,
        r#"["f",9,1,0,1000]"#,
        r#"["f",10,1,0,2000]"#,
    ]);
    assert_eq!(found(&model), Some((1, vec![1, 2], 2 << 20, 2 << 20, 4)));
}

#[test]
fn what_is_freed_first_did_not_exist_twice() {
    // GIVEN a forward that frees the second activation of the earlier one before it allocates its own
    let model = after(&[r#"["f",7,1,0,2000]"#, r#"["a",8,1,0,4000,1048576,2,1,5]"#]);
    // THEN only the first existed twice
    assert_eq!(found(&model).map(|(_, stacks, bytes, ..)| (stacks, bytes)), Some((vec![1, 2], 1 << 20)));
}
