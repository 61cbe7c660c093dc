//! Work on a GPU, by place.

use crate::common;
use crate::common::{NAMES, replay};
use memlab_trace::{Model, Scope, WorkTotals};

const KERNELS: [&str; 2] = [r#"{"kernel":1,"name":"gemm"}"#, r#"{"kernel":2,"name":"copy pinned to device"}"#];

/// Two steps with their waits, their work, that of the second in two parts, and the busy time of the device.
const BY_STEP: [&str; 9] = [
    r#"["step_wait",4,0,700,null]"#,
    r#"["step",5,1,0]"#,
    r#"["step_wait",9,1,40,55]"#,
    r#"["step",9,1,1]"#,
    r#"["step_work",10,0,0,1,3,5500,4096,0]"#,
    r#"["step_work",10,0,1,1,1,1000,0,0]"#,
    r#"["step_work",20,0,1,1,2,1007,0,4]"#,
    r#"["busy",10,0,5000,300,40]"#,
    r#"["busy",20,0,2000,100,0]"#,
];

/// Two kernels at a line of the model, one in backward, a copy at the script's line, and a kernel without a line.
const WORK: [&str; 5] = [
    r#"["work",10,0,3,7,1,1,2,2000,0]"#,
    r#"["work",10,0,3,7,2,1,1,3000,0]"#,
    r#"["work",10,0,1,0,0,2,1,500,4096]"#,
    r#"["work",20,0,3,7,1,1,2,2000,0]"#,
    r#"["work",20,0,0,0,0,9,1,7,0]"#,
];

fn model() -> Model {
    replay(NAMES.iter().chain(&KERNELS).chain(&WORK).chain(&BY_STEP))
}

#[test]
fn time_counts_at_lines_layers_and_kernels() {
    // GIVEN recorded work; WHEN it is requested; THEN every grouping sums to the same
    let work = model().gpu_work(0).expect("it was recorded");
    assert_eq!(work.total, WorkTotals { calls: 7, nanoseconds: 7507, bytes: 4096 });
    let kernels: Vec<_> =
        work.kernels.iter().map(|row| (&*row.name, row.totals.calls, row.totals.nanoseconds)).collect();
    assert_eq!(kernels, [("gemm", 5, 7000), ("copy pinned to device", 1, 500), ("(other kernels)", 1, 7)]);
    let line = |row: &memlab_trace::LineWorkView| row.line.as_ref().and_then(|line| line.line);
    let lines: Vec<_> =
        work.lines.iter().map(|row| (line(row), row.totals.nanoseconds, row.backward_nanoseconds)).collect();
    assert_eq!(lines, [(Some(12), 7000, 3000), (Some(31), 500, 0), (None, 7, 0)]);
    let layer = |row: &memlab_trace::LayerWorkView| {
        (
            row.name.as_deref().map(str::to_owned),
            row.totals.nanoseconds,
            row.forward_nanoseconds,
            row.backward_nanoseconds,
        )
    };
    let layers: Vec<_> = work.layers.iter().map(layer).collect();
    assert_eq!(layers, [(Some("h.0.mlp.fc".to_owned()), 7000, 4000, 3000), (None, 507, 0, 0)]);
    // AND a layer has the same names as in the memory views
    let named = work.layers[0].to_layer();
    let names = (named.root, named.root_class.as_deref(), named.root_name.as_deref(), named.class.as_deref());
    assert_eq!(names, (3, Some("GPT"), Some("GPT"), Some("Linear")));
    // AND lines are those of the requested scope; AND an idle device has none
    assert_eq!(model().gpu_work_in(0, Scope::Libraries).map(|work| work.lines.len()), Some(3));
    assert_eq!(model().gpu_work(1), None);
}

#[test]
fn time_counts_by_step_and_a_device_is_busy_or_not() {
    let (model, device) = (model(), 0);
    let steps: Vec<_> = model
        .step_work(device)
        .iter()
        .map(|row| (row.step, row.steps, row.calls, row.nanoseconds, row.to_device_bytes, row.to_host_bytes))
        .collect();
    assert_eq!(steps, [(0, 1, 3, 5500, 4096, 0), (1, 1, 3, 2007, 0, 4)]);
    let waits: Vec<_> = model
        .steps()
        .iter()
        .filter_map(|step| model.step_wait(step))
        .map(|wait| (wait.step, wait.data_ns_per_step(), wait.launch_ns_per_step()))
        .collect();
    assert_eq!(waits, [(0, 700, None), (1, 40, Some(55))]);
    let busy = model.gpu_work(device).expect("it was recorded").busy;
    assert_eq!((busy.busy, busy.waiting, busy.idle, busy.total()), (7000, 400, 40, 7440));
}

#[test]
fn a_keyframe_holds_the_sums() {
    let model = model();
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).unwrap();
    let lines = keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let restored = replay(NAMES[..1].iter().map(|line| line.as_bytes()).chain(lines));
    assert_eq!(restored.gpu_work(0), model.gpu_work(0));
    assert_eq!(common::all_views(&restored), common::all_views(&model));
    assert_eq!(restored.anomalies().total(), 0);
}
