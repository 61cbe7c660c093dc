//! Holders of memory, from the records of a search.

use memlab_trace::Model;
use memlab_trace::record::SearchReason;

use crate::common::replay;

/// Two blocks, a search, and a list that leads to both.
const LINES: [&str; 7] = [
    r#"{"memlab":1,"version":"0.1.0","pid":4242,"command":["python","train.py"]}"#,
    r#"["a",10,1,0,1000,512,0,0,0]"#,
    r#"["a",11,1,0,2000,512,0,7,0]"#,
    r#"{"holder_search":1,"time":12,"reason":"out_of_memory","pause_ns":3}"#,
    r#"{"holders":1,"nodes":[{"kind":"root"},{"kind":"module","name":"__main__"},{"kind":"sequence","name":"list","items":2}]}"#,
    r#"{"holders":1,"nodes":[{"kind":"tensor","items":2,"memory":[1000,2100]}],"edges":[[0,1,"unnamed","",0],[1,2,"global","kept",7],[2,3,"item","",0]]}"#,
    r#"{"holders":1,"took_ns":5,"last":true}"#,
];

fn releases(model: &Model) -> Vec<(Vec<String>, u64)> {
    let held = model.holders_at(0, Some(SearchReason::OutOfMemory));
    let holders = held.map(|held| held.explanation.holders).unwrap_or_default();
    holders.iter().map(|holder| (holder.names(), holder.releases)).collect()
}

#[test]
fn a_holder_is_of_the_moment_of_its_search() {
    // GIVEN a search whose result arrives after one of the blocks was freed
    let mut lines = LINES.to_vec();
    lines.insert(4, r#"["f",13,1,0,1000]"#);
    // WHEN the holders are asked for, THEN the list holds both blocks: one address lies inside of its block
    let model = replay(&lines);
    assert_eq!(releases(&model), [(vec!["kept".to_owned()], 1024)]);
    assert_eq!(model.search_ended(1), Some(Ok(())));
}

#[test]
fn a_keyframe_keeps_the_searches() {
    // GIVEN a state with a search, as a keyframe
    let mut keyframe = Vec::new();
    replay(LINES).write_keyframe(&mut keyframe).expect("memory takes it");
    let text = String::from_utf8(keyframe).expect("JSON");
    // WHEN it is read again, THEN the answer is the same
    let again = replay(text.lines());
    assert_eq!(releases(&again), releases(&replay(LINES)));
    // AND so is that for the memory of a layer
    let of_layer = again.holders_of_layers(1, 0, &|layer| layer.root == 7).expect("a search");
    assert_eq!((of_layer.bytes, of_layer.explanation.holders[0].bytes), (512, 512));
    // AND a graph whose references lead to no object has no answer
    let broken = text.replace(r#"[2,3,"item","",0]"#, r#"[2,99,"item","",0]"#);
    assert_ne!(broken, text);
    assert_eq!(releases(&replay(broken.lines())), []);
}

#[test]
fn a_search_that_fails_gives_its_reason() {
    // GIVEN a search that found nothing
    let failed = r#"{"holders":1,"last":true,"failed":"no result after 20 s"}"#;
    let model = replay([LINES[0], LINES[3], failed]);
    // THEN its reason is known, also to those who wait for a search, and no holder
    assert_eq!(model.search_since(12), Some(Err("no result after 20 s")));
    assert_eq!(model.search_since(13), None);
    assert_eq!(model.failed_searches().collect::<Vec<_>>(), ["no result after 20 s"]);
    assert_eq!(releases(&model), []);
}
