//! The categories of single blocks sum to the model's own figures at the peak, and the moment is the requested one.

use std::ops::ControlFlow;
use std::path::Path;

use memlab_trace::{Category, Model, ResolvedSnapshot, SeekTarget, SnapshotReplay, load_whole, read_whole};

/// A training step: parameters that are tagged late, an activation, scratch that is freed within forward,
/// gradients, state allocated in the optimizer and tagged after it.
const TRAINING: &str = r#"{"memlab":1,"pid":1}
{"device":0,"name":"NVIDIA H200","total_bytes":1000000}
{"frame":1,"file":"/gpt/train.py","line":3,"function":"main"}
{"stack":1,"parent":0,"frame":1}
{"layer":1,"parent":0,"type":"GPT","name":null}
["d+",5,1,0,4096,65536,"device","cudaMalloc","libc10_cuda.so",1,0,128]
["a",10,1,0,4096,1024,1,0,0]
["a",20,1,0,8192,2048,1,1,5]
["a",30,1,0,12288,512,1,1,5]
["f",40,1,0,12288]
["tag",50,0,4096,"parameter",1024,1,"h.0.weight"]
["a",60,2,0,16384,1024,1,1,18]
["f",70,1,0,8192]
["a",80,1,0,20480,4096,1,0,3]
["a",90,1,0,28672,512,1,0,3]
["f",100,1,0,28672]
["step",110,1,0]
["tag",120,0,20480,"optimizer_state",4096,1,"h.0.weight:exp_avg"]
["used",130,0,500000,1000000,400000]
["f",140,1,0,16384]
{"layer":1,"parent":0,"type":"GPT","name":""}
["end",150,0,null]
"#;

fn resolve(path: &Path, at: SeekTarget) -> ResolvedSnapshot {
    let mut observer = ();
    let mut replay = SnapshotReplay::new(at, &mut observer);
    read_whole(path, &mut replay, &mut |_| ControlFlow::Continue(())).unwrap();
    replay.finish()
}

fn trace(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn categories(snapshot: &ResolvedSnapshot) -> Vec<(Category, u64)> {
    snapshot.categories(0).into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

#[test]
fn blocks_have_their_final_category() {
    let file = trace(TRAINING);
    // GIVEN a moment within forward before any tag or free
    let snapshot = resolve(file.path(), SeekTarget::Time(30));
    // THEN the model at that moment has the parameter as an input and the scratch as an activation
    let then: Vec<_> = snapshot.model.blocks(0).iter().map(|block| block.category).collect();
    assert_eq!(then, [Category::Input, Category::Activation, Category::Activation]);
    // AND the resolved snapshot has the final categories
    let now: Vec<_> = snapshot.blocks.iter().map(|(_, block)| block.category).collect();
    assert_eq!(now, [Category::Parameter, Category::Activation, Category::Temporary]);
    // AND the owner is known, with its latest name
    assert_eq!(snapshot.final_model.layer_of(&snapshot.blocks[0].1).name.as_deref(), Some("h.0"));
    assert_eq!(snapshot.final_model.layer_of(&snapshot.blocks[1].1).name.as_deref(), Some(""));
    // AND the driver's first sample gives the context at that moment
    assert_eq!(
        categories(&snapshot),
        [
            (Category::Parameter, 1024),
            (Category::Activation, 2048),
            (Category::Temporary, 512),
            (Category::Cached, 65536 - 3584),
            (Category::Context, 400_000 - 65536),
            (Category::OtherProcesses, 100_000),
        ]
    );
    assert_eq!(snapshot.used_bytes(0), 500_000);
}

#[test]
fn categories_at_the_peak_sum_to_the_models_figures() {
    let file = trace(TRAINING);
    let whole = load_whole(file.path(), &mut |_| ControlFlow::Continue(())).unwrap().model;
    let device = whole.device(0).unwrap();
    assert_eq!((device.peak_allocated_bytes, device.peak_event), (6656, 10));
    let snapshot = resolve(file.path(), SeekTarget::Event(device.peak_event));
    assert!(snapshot.is_available);
    assert_eq!(snapshot.model.time(), 90);
    let peak = whole.categories(0).map(|view| (view.category, view.bytes_at_peak));
    assert_eq!(snapshot.categories(0), peak);
    let optimizer = snapshot.blocks.iter().map(|(_, block)| (block.address, block.category)).collect::<Vec<_>>();
    assert_eq!(optimizer[2..], [(20480, Category::OptimizerState), (28672, Category::Temporary)]);
}

#[test]
fn steps_and_out_of_memory_events_resolve_to_their_event() {
    let text = format!("{TRAINING}[\"oom\",160,1,0,9000,5120,65536,1,1]\n");
    let whole: Model = load_whole(trace(&text).path(), &mut |_| ControlFlow::Continue(())).unwrap().model;
    assert_eq!((whole.steps()[0].end_event, whole.ooms()[0].event), (12, 17));
    let snapshot = resolve(trace(&text).path(), SeekTarget::Event(12));
    assert_eq!((snapshot.model.steps_ended(), snapshot.model.events()), (1, 12));
}

#[test]
fn condensed_moments_are_not_available() {
    // GIVEN a trace that starts with a keyframe of all earlier events
    let model = load_whole(trace(TRAINING).path(), &mut |_| ControlFlow::Continue(())).unwrap().model;
    let mut condensed = b"{\"memlab\":1,\"pid\":1}\n".to_vec();
    model.write_keyframe(&mut condensed).unwrap();
    let text = String::from_utf8(condensed).unwrap() + "[\"a\",200,1,0,40960,512,1,0,0]\n";
    let file = trace(&text);
    // THEN the moment is not available, and the earliest state is returned instead
    let snapshot = resolve(file.path(), SeekTarget::Event(10));
    assert!(!snapshot.is_available);
    assert_eq!((snapshot.model.time(), snapshot.blocks.len()), (150, 2));
    assert!(resolve(file.path(), SeekTarget::Time(200)).is_available);
}

#[test]
fn the_sums_agree_for_an_inconsistent_trace() {
    // GIVEN lost frees, unknown frees, a lost step, and blocks outside any segment
    let text = TRAINING.replace("[\"f\",70,1,0,8192]\n", "[\"a\",71,1,0,16384,512,1,1,1]\n[\"f\",72,1,0,999]\n");
    let file = trace(&text);
    let whole = load_whole(file.path(), &mut |_| ControlFlow::Continue(())).unwrap().model;
    let snapshot = resolve(file.path(), SeekTarget::Event(whole.device(0).unwrap().peak_event));
    assert_eq!(snapshot.categories(0), whole.categories(0).map(|view| (view.category, view.bytes_at_peak)));
}
