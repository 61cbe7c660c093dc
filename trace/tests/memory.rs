//! Memory of the reader in a long run.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use memlab_trace::{Follower, Replay};

use crate::common::heap::live_bytes;

/// Appends the records that `libmemlab.so` writes about the steps of a training with GPU times and a timeline, 20 ms each.
fn append(path: &Path, steps: std::ops::Range<u64>) {
    const STEP: u64 = 20_000_000;
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    let mut lines = Vec::new();
    for step in steps {
        let (begin, end) = (step * STEP, (step + 1) * STEP);
        for block in 0..8 {
            let (time, address) = (begin + block * 1_000_000, 4096 * (1 + block));
            writeln!(lines, r#"["a",{time},1,0,{address},{},{},1,5]"#, 512 * (1 + step % 7), 1 + block % 3).unwrap();
            writeln!(lines, r#"["ran",{time},0,7,{time},1000,1,1,1,{},0]"#, 1 + block % 3).unwrap();
            writeln!(lines, r#"["f",{},1,0,{address}]"#, end - 1).unwrap();
        }
        writeln!(lines, r#"["work",{end},0,{},1,1,{},8,8000,0]"#, 1 + step % 3, 1 + step % 3).unwrap();
        writeln!(lines, r#"["step",{end},1,{step}]"#).unwrap();
        writeln!(lines, r#"["step_work",{end},0,{step},1,8,8000,64,4]"#).unwrap();
        writeln!(
            lines,
            r#"{{"trained":{step},"epoch":{},"batch":{},"samples":8,"duration":{STEP},"loss":0.5,"phase":null,"way":"replay","pieces":2,"offloaded":16}}"#,
            step / 1000,
            step % 1000
        )
        .unwrap();
        writeln!(lines, r#"["busy",{end},0,8000,1000,{}]"#, STEP - 9000).unwrap();
        if step % 50 == 0 {
            writeln!(lines, r#"["used",{end},0,{},150323855360,1073741824]"#, (2 << 30) + step).unwrap();
        }
    }
    file.write_all(&lines).unwrap();
}

#[test]
fn four_times_the_steps_take_no_more_memory() {
    // GIVEN a trace that is followed while it grows, as the dashboard does
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    File::create(&path).unwrap().write_all(b"{\"memlab\":1,\"pid\":7}\n").unwrap();
    let mut follower = Follower::open(&path).unwrap();
    let mut replay = Replay::with_history(5_000);
    let mut steps = 0;
    let mut live_after = |replay: &mut Replay, end: u64| {
        while steps < end {
            append(&path, steps..steps + 400);
            steps += 400;
            follower.poll_at(Instant::now(), replay).unwrap();
        }
        live_bytes()
    };
    // WHEN it has four times as many steps, 27 minutes in total
    let before = live_after(&mut replay, 20_000);
    let after = live_after(&mut replay, 80_000);
    // THEN the reader uses no more memory than before
    assert!(after <= before + before / 10, "{before} bytes, then {after}");
    // AND no step is missing, nor its training progress
    let model = &replay.model;
    assert_eq!((model.steps_ended(), model.device_steps(0).iter().map(|step| step.steps).sum()), (80_000, 80_000));
    let trained = model.device_steps(0).iter().map(|step| model.training(step).map_or(0, |training| training.samples));
    assert_eq!(trained.sum::<u64>(), 8 * 80_000);
    assert_eq!(model.step_work(0).iter().map(|work| work.calls).sum::<u64>(), 8 * 80_000);
}
