//! The model's views of small programs of known memory.

use crate::common;
use crate::common::{NAMES, TRAINING, category, layer, line, model_of, replay};
use memlab_trace::{Category, Framework, HOST, Model, Scope, StepView};

#[test]
fn a_folder_beside_torch_is_not_torch() {
    let model = model_of(&[r#"["a",1,1,0,4096,512,5,0,4]"#]);
    assert_eq!(line(&model, 7).live_bytes, 512);
}

#[test]
fn categories_sum_to_the_used_bytes() {
    // GIVEN a segment, a library's own memory, a pinned buffer, another process's memory, and a block
    let events = [
        r#"["d+",1,1,0,4096,20480,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#,
        r#"["a",2,1,0,4096,8192,1,0,0]"#,
        r#"["d+",3,1,0,90000,3000,"device","cudaMalloc","libnccl.so",1,0,0]"#,
        r#"["d+",4,1,-1,91000,5000,"pinned","cudaHostAlloc","libtorch_cuda.so",1,0,0]"#,
        r#"["d+",5,1,0,92000,7000,"imported","cudaIpcOpenMemHandle","libtorch_cuda.so",1,0,0]"#,
        r#"["used",6,0,100000,1048576,40000]"#,
    ];
    let model = model_of(&events);
    // THEN the first sample of the driver explains the rest, also at an earlier peak
    let device = model.device(0).unwrap();
    assert_eq!((device.used_bytes, device.used_is_known, device.process_is_known), (100_000, true, true));
    assert_eq!(category(&model, Category::Context), (40_000 - 23_480, 40_000 - 23_480));
    assert_eq!(category(&model, Category::OtherProcesses), (60_000, 60_000));
    assert_eq!(category(&model, Category::Nccl), (3000, 0));
    assert_eq!(category(&model, Category::Cached), (20480 - 8192, 20480 - 8192));
    assert_eq!(model.categories(0).iter().map(|view| view.bytes).sum::<u64>(), 100_000);
    assert_eq!((device.used_bytes_at_peak, device.peak_used_bytes), (97_000, 100_000));
    let driver = model.driver_memory(0);
    assert_eq!((&*driver[0].library, driver[0].live_bytes, driver.len()), ("libtorch_cuda.so", 7000, 2));
    assert_eq!(model.driver_memory(HOST)[0].live_bytes, 5000);

    // WHERE the driver does not report processes separately, everything else is context
    let model = model_of(&[&events[..5], &[r#"["used",6,0,100000,1048576,null]"#]].concat());
    assert_eq!(category(&model, Category::OtherProcesses), (0, 0));
    assert_eq!(category(&model, Category::Context).0, 100_000 - 23_480);
    assert!(!model.device(0).unwrap().process_is_known);
}

#[test]
fn without_pytorch_the_peak_is_that_of_the_used_bytes() {
    let model = model_of(&[
        r#"["d+",1,1,0,4096,1000,"device","cudaMalloc","saxpy",0,0,0]"#,
        r#"["d+",2,1,0,8192,5000,"async","cudaMallocAsync","saxpy",0,0,0]"#,
        r#"["used",3,0,20000,1048576,9000]"#,
        r#"["d-",4,1,0,8192,"async"]"#,
        r#"["d-",5,1,0,4096,"device"]"#,
    ]);
    let device = model.device(0).unwrap();
    assert_eq!((device.peak_allocated_bytes, device.peak_used_bytes, device.peak_time), (0, 20_000, 2));
    assert_eq!(category(&model, Category::OtherArrays), (0, 6000));
    assert_eq!(category(&model, Category::Workspace), (0, 0));
    assert_eq!(category(&model, Category::Context), (3000, 3000));
    assert_eq!(device.used_bytes_at_peak, 20_000);
}

#[test]
fn a_first_sample_that_comes_late_is_no_peak() {
    // GIVEN a program without PyTorch whose use is sampled for the first time when an array is gone
    let model = model_of(&[
        r#"["d+",1,1,0,4096,1000,"device","cuMemAlloc_v2","mine.so",3,0,0]"#,
        r#"["d+",2,1,0,8192,5000,"device","cuMemAlloc_v2","mine.so",1,0,0]"#,
        r#"["d-",3,1,0,8192,"device"]"#,
        r#"["used",4,0,10000,1048576,10000]"#,
    ]);
    // THEN the peak is when both arrays were live, with the context from the sample
    let device = model.device(0).unwrap();
    assert_eq!((device.peak_time, device.peak_used_bytes, device.used_bytes_at_peak), (2, 15_000, 15_000));
    assert_eq!(category(&model, Category::OtherArrays), (1000, 6000));
    assert_eq!(line(&model, 31).live_bytes_at_peak, 5000);
}

#[test]
fn segments_show_their_blocks_and_holes() {
    let model = model_of(&[
        r#"["d+",1,1,0,100000,10240,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#,
        r#"["d+",2,1,0,7,4096,"physical","cuMemCreate","libc10_cuda.so",1,0,128]"#,
        r#"["d+",2,1,0,8,4096,"physical","cuMemCreate","libc10_cuda.so",1,0,128]"#,
        r#"["d+",2,1,0,9,4096,"physical","cuMemCreate","libnccl.so",1,0,0]"#,
        r#"["map",3,1,0,500000,4096,7]"#,
        r#"["map",3,1,0,504096,4096,8]"#,
        r#"["map",3,1,0,900000,4096,9]"#,
        r#"["a",4,1,0,101024,1024,1,0,4]"#,
        r#"["a",5,1,0,103072,2048,1,0,4]"#,
        r#"["a",6,1,0,502048,4096,1,0,4]"#,
        r#"["a",7,1,0,777777,512,1,0,4]"#,
    ]);
    let map = model.segments(0);
    let shape: Vec<_> = map.segments.iter().map(|s| (s.address, s.bytes, s.blocks.len(), s.free_bytes)).collect();
    assert_eq!(shape, [(100_000, 10240, 2, 7168), (500_000, 8192, 1, 4096)]);
    assert_eq!((map.free_bytes, map.largest_free_bytes, map.stray_blocks), (11264, 5120, 1));
    assert!((map.fragmentation_percent - 100.0 * (1.0 - 5120.0 / 11264.0)).abs() < 1e-9);
    let device = model.device(0).unwrap();
    assert_eq!((device.reserved_bytes, device.segments), (10240 + 8192, 3));
    // WHEN a range in the middle is unmapped, two segments are left
    let unmapped = [
        r#"["d+",2,1,0,7,16384,"physical","cuMemCreate","libc10_cuda.so",1,0,128]"#,
        r#"["map",3,1,0,500000,16384,7]"#,
        r#"["unmap",4,1,0,504096,4096]"#,
        r#"["unmap",5,1,0,499000,1512]"#,
    ];
    let segments = model_of(&unmapped).segments(0).segments;
    assert_eq!(segments.iter().map(|s| (s.address, s.bytes)).collect::<Vec<_>>(), [(500_512, 3584), (508_192, 8192)]);
}

#[test]
fn an_out_of_memory_has_the_request_and_the_holders() {
    let oom = [
        r#"["d+",14,1,0,100000,65536,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#,
        r#"["used",14,0,900000,1048576,500000]"#,
        r#"["oom",15,1,0,4294967296,25000,65536,3,7]"#,
    ];
    let events = [&TRAINING[..11], &oom, &TRAINING[11..]].concat();
    let model = model_of(&events);
    let ooms = model.ooms();
    let oom = &ooms[0];
    assert_eq!((ooms.len(), oom.device, oom.time, oom.step), (1, 0, 15, 0));
    assert_eq!((oom.requested_bytes, oom.allocated_bytes, oom.reserved_bytes), (4_294_967_296, 25_000, 65_536));
    assert_eq!((oom.line.as_ref().unwrap().line, oom.layer.as_deref()), (Some(12), Some("h.0.mlp.fc")));
    assert_eq!((oom.largest_free_block_bytes, oom.used_bytes, oom.total_bytes), (65_536, 900_000, 1_048_576));
    assert_eq!(oom.lines[0].0.as_ref().unwrap().line, Some(12));
    assert_eq!((oom.lines[0].1, oom.lines.len()), (8192 + 8192 + 4096, 2));
    assert_eq!(oom.layers[0], (Some("h.0.mlp.fc".into()), 4096 + 8192 + 8192 + 4096));
    assert!(oom.categories.contains(&(Category::Parameter, 4096)));
}

#[test]
fn a_step_has_the_data_of_its_training() {
    // GIVEN two steps, and a record of the first that arrives after the second
    let steps = [
        r#"["step",17,1,0]"#,
        r#"["step",29,1,1]"#,
        r#"{"trained":0,"epoch":0,"batch":0,"samples":512,"duration":250000000,"loss":"NaN","phase":"d","way":"replay","pieces":8,"offloaded":4096}"#,
    ];
    let model = model_of(&[TRAINING, &steps].concat());
    // THEN the first step has it, and the second has none
    let trained: Vec<_> = model.device_steps(0).iter().map(|step| model.training(step)).collect();
    let first = trained[0].clone().expect("it is known");
    assert_eq!((first.samples, first.samples_per_second(), first.pieces), (512, Some(2048.0), 8));
    assert_eq!(
        (first.way.as_deref(), first.phase.as_deref(), first.offloaded_bytes),
        (Some("replay"), Some("d"), 4096)
    );
    assert!(first.loss.is_some_and(f64::is_nan));
    assert_eq!(trained.last(), Some(&None));
    // AND a record without some fields has the fields that it contains
    let model = model_of(&[TRAINING, &[r#"{"trained":0,"loss":1,"colour":"red"}"#]].concat());
    assert_eq!(model.training(&model.steps()[0]).and_then(|training| training.loss), Some(1.0));
}

#[test]
fn a_thousand_out_of_memory_events_keep_the_first_and_the_last() {
    let mut events = vec![r#"["a",1,1,0,4096,512,3,7,5]"#.to_owned()];
    events.extend((0..1000).map(|index| format!(r#"["oom",{index},1,0,{index},512,512,3,7]"#)));
    let model = replay(NAMES.iter().map(|line| (*line).to_owned()).chain(events));
    let ooms = model.ooms();
    assert_eq!((model.oom_count(), ooms.len()), (1000, 64));
    assert_eq!(model.devices().iter().map(|device| device.ooms).collect::<Vec<_>>(), [1000]);
    assert_eq!((ooms[0].requested_bytes, ooms[63].requested_bytes), (0, 999));
    assert!(!ooms[63].lines.is_empty());
}

/// Steps in each of which line 31 allocates one block that stays and line 12 one that is freed.
fn leaking(steps: u64) -> Model {
    let mut model = replay(NAMES);
    let mut apply = |line: String| model.apply(memlab_trace::decode_line(line.as_bytes()).unwrap());
    for step in 0..steps {
        let time = step * 1_000_000;
        apply(format!(r#"["a",{time},1,0,{},1024,1,0,0]"#, 1_000_000 + step * 4096));
        apply(format!(r#"["a",{time},1,0,512,8192,3,7,5]"#));
        apply(format!(r#"["f",{time},1,0,512]"#));
        apply(format!(r#"["step",{time},1,{step}]"#));
    }
    model
}

#[test]
fn steady_growth_is_found_by_line() {
    let model = leaking(100);
    let growth = model.growth(0);
    assert_eq!(growth.len(), 1, "{growth:?}");
    let leak = &growth[0];
    assert_eq!(leak.line.as_ref().unwrap().line, Some(31));
    assert_eq!((leak.from_step, leak.to_step, leak.from_bytes, leak.to_bytes), (2, 100, 2048, 102_400));
    assert!((leak.bytes_per_step - 1024.0).abs() < 1e-6);
    let step = model.steps()[7];
    assert_eq!((step.index, step.steps, step.end_time), (7, 1, 7_000_000));
    assert_eq!((step.peak_allocated_bytes, step.allocated_bytes_at_end), (8 * 1024 + 8192, 8 * 1024));
    assert_eq!(model.device_steps(0), model.steps());
    // With fewer steps than the warm-up, the existing ones are compared.
    assert!(leaking(1).growth(0).is_empty());
    assert_eq!(leaking(2).growth(0)[0].from_step, 1);
}

#[test]
fn the_peak_of_a_step_includes_what_it_began_with() {
    // GIVEN a step that ends with two blocks, and one that frees the larger before it allocates a small one
    let model = replay([
        r#"["a",1,1,0,4096,8192,1,0,0]"#,
        r#"["a",2,1,1,4096,512,1,0,0]"#,
        r#"["a",3,1,0,16384,1024,1,0,0]"#,
        r#"["step",4,1,0]"#,
        r#"["f",5,1,0,4096]"#,
        r#"["a",6,1,0,4096,512,1,0,0]"#,
        r#"["step",7,1,1]"#,
        r#"["step",8,1,2]"#,
    ]);
    let peaks = |steps: &[StepView]| steps.iter().map(|step| step.peak_allocated_bytes).collect::<Vec<_>>();
    // THEN the second step peaks at its start, also on the device without any event, and the third at its remaining bytes
    assert_eq!(peaks(model.device_steps(0)), [9216, 9216, 1536]);
    assert_eq!(peaks(model.device_steps(1)), [512, 512, 512]);
    assert_eq!(peaks(model.steps()), [9728, 9728, 2048]);
}

#[test]
fn steps_and_time_take_bounded_memory() {
    let model = leaking(200_000);
    assert_eq!(model.steps_ended(), 200_000);
    assert!(model.steps().len() <= 65_536);
    assert_eq!(model.steps().iter().map(|step| step.steps).sum::<u64>(), 200_000);
    assert_eq!(model.steps().last().unwrap().index, 199_999);
    let leak = &model.growth(0)[0];
    assert!((leak.bytes_per_step - 1024.0).abs() < 1e-3, "{leak:?}");
    let timeline = model.timeline(0);
    assert!((2048..=4096).contains(&timeline.points.len()), "{}", timeline.points.len());
    assert_eq!(timeline.points.last().unwrap().allocated.last, 200_000 * 1024);
    let peak = timeline.points.iter().map(|point| point.allocated.max).max().unwrap();
    assert_eq!(peak, model.device(0).unwrap().peak_allocated_bytes);
    assert!(timeline.points.is_sorted_by_key(|point| point.time));
}

#[test]
fn several_outermost_modules_are_separate() {
    let model = replay(NAMES.iter().chain(&[
        r#"{"layer":20,"parent":0,"type":"Discriminator","name":""}"#,
        r#"{"layer":21,"parent":20,"type":"Linear","name":"h.0.mlp.fc"}"#,
        r#"["a",1,1,0,4096,512,3,7,5]"#,
        r#"["a",2,1,0,8192,1024,3,21,5]"#,
        r#"["tag",3,0,8192,"buffer",1024,0,"h.0.mlp.fc.x"]"#,
    ]));
    let rows: Vec<_> = model.layers(0).into_iter().map(|row| (row.root, row.name, row.live_bytes)).collect();
    let name = || Some("h.0.mlp.fc".into());
    assert_eq!(rows, [(0, name(), 1024), (3, name(), 512), (20, name(), 0)]);
}

#[test]
fn a_gradient_is_where_it_was_tagged_last() {
    // GIVEN DDP's first bucket with two gradients, and the buckets that follow it while the first still exists
    let lines = [
        r#"["a",1,1,0,4096,2048,1,0,32770]"#,
        r#"["tag",2,0,4096,"gradient",1000,3,"fc.weight"]"#,
        r#"["tag",3,0,5120,"gradient",1000,3,"fc.bias"]"#,
        r#"["a",4,1,0,8192,1024,1,0,32770]"#,
        r#"["tag",5,0,8192,"gradient",1000,3,"fc.weight"]"#,
    ];
    let tensors = |model: &Model, block| -> Vec<String> {
        model.tensors_in(0, block).into_iter().map(|tensor| tensor.name.to_string()).collect()
    };
    let owned = |model: &Model| model.layers(0).iter().map(|row| row.gradient_bytes).sum::<u64>();
    let model = replay(NAMES.iter().chain(&lines));
    // THEN each gradient is in one block and counts once, and the old bucket is still gradient memory
    assert_eq!((tensors(&model, 4096), tensors(&model, 8192)), (vec!["fc.bias".into()], vec!["fc.weight".into()]));
    assert_eq!(owned(&model), 2048);
    assert_eq!(model.categories(0).iter().find(|row| row.category == Category::Gradient).unwrap().bytes, 3072);
    // AND gradients with parts of other sizes, or outside modules and thus without a unique name, keep both
    let part = lines.map(|line| line.replace("8192,\"gradient\",1000", "8192,\"gradient\",999"));
    let in_no_module = lines.map(|line| line.replace("1000,3", "1000,0"));
    for lines in [part, in_no_module] {
        let model = replay(NAMES.iter().map(|line| (*line).to_owned()).chain(lines));
        assert!(tensors(&model, 4096).len() == 2 && tensors(&model, 8192).len() == 1);
    }
}

#[test]
fn inconsistencies_are_counted() {
    let model = model_of(&[
        r#"["a",1,1,0,4096,512,1,0,0]"#,
        r#"["a",2,1,0,4096,1024,1,0,0]"#,
        r#"["f",3,1,0,8192]"#,
        r#"["d-",4,1,0,8192,"device"]"#,
        r#"["d-",4,1,0,4096,"device"]"#,
        r#"["zz",4]"#,
    ]);
    let anomalies = model.anomalies();
    assert_eq!((anomalies.lost_frees, anomalies.unknown_frees, anomalies.unknown_driver_frees), (1, 1, 2));
    assert_eq!((anomalies.unknown_records, anomalies.total()), (1, 5));
    assert_eq!(model.device(0).unwrap().allocated_bytes, 1024);
}

#[test]
fn the_exit_and_the_warnings_are_kept() {
    let model = model_of(&[
        r#"{"warning":"no Python lines"}"#,
        r#"{"warning":"no Python lines"}"#,
        r#"["end",12934022117,null,9]"#,
    ]);
    assert_eq!(model.warnings(), ["no Python lines"]);
    assert_eq!(model.end().unwrap().signal, Some(9));
    assert_eq!(model.header().unwrap().directory, "/home/ada/gpt");
    assert_eq!(model.software()[0].version, "2.15.0");
    assert!(model_of(&[]).end().is_none());
}

/// A compiled graph called from line 31, whose generated line is later mapped to line 12 of the user's model.
fn compiled(named_after: u64) -> Model {
    let mut model = replay(NAMES);
    let mut apply = |line: String| model.apply(memlab_trace::decode_line(line.as_bytes()).unwrap());
    apply(r#"{"frame":9,"file":"<eval_with_key>.5","line":8,"function":"forward"}"#.into());
    apply(r#"{"stack":9,"parent":1,"frame":9}"#.into());
    apply(r#"["a",1,1,0,100000,1024,1,0,4]"#.into());
    for step in 0..6_u64 {
        let time = 10 * step;
        apply(format!(r#"["a",{time},1,0,512,8192,9,7,5]"#));
        apply(format!(r#"["a",{time},1,0,16384,2048,9,7,5]"#));
        if step == named_after {
            apply(r#"{"frame":9,"file":"/home/ada/gpt/model.py","line":12,"function":"MLP.forward"}"#.into());
        }
        apply(format!(r#"["f",{time},1,0,512]"#));
        apply(format!(r#"["step",{time},1,{step}]"#));
        if step < 5 {
            apply(format!(r#"["f",{time},1,0,16384]"#));
        }
    }
    model
}

#[test]
fn a_late_line_mapping_moves_the_memory() {
    let expected = compiled(0);
    // GIVEN a line that is mapped late: before the first step ended, in the middle or in the last step
    for named_after in [1, 3, 5] {
        let model = compiled(named_after);
        // THEN the calling line has only its own memory, and the real line has the rest
        let (caller, real) = (line(&model, 31), line(&model, 12));
        assert_eq!((caller.live_bytes, caller.live_bytes_at_peak, caller.allocations), (1024, 1024, 1));
        assert_eq!((real.live_bytes, real.live_bytes_at_peak), (2048, 10240));
        for view in model.lines(0) {
            assert!(view.peak_live_bytes >= view.live_bytes_at_peak, "{view:?}");
        }
        assert_eq!(model.lines(0), expected.lines(0), "named after {named_after}");
        // AND nothing appears to grow
        assert!(model.growth(0).is_empty(), "named after {named_after}: {:?}", model.growth(0));
    }
}

#[test]
fn generated_code_counts_at_the_users_line() {
    // GIVEN frames of generated code below a user's frame, and one without a caller
    let model = model_of(&[
        r#"{"frame":20,"file":"<string>","line":2,"function":"__init__"}"#,
        r#"{"frame":21,"file":"<frozen importlib._bootstrap>","line":3,"function":"_load"}"#,
        r#"{"frame":22,"file":"/tmp/ipykernel_7/1.py","line":4,"function":"<module>"}"#,
        r#"{"stack":20,"parent":2,"frame":20}"#,
        r#"{"stack":21,"parent":0,"frame":21}"#,
        r#"{"stack":22,"parent":21,"frame":22}"#,
        r#"["a",1,1,0,1000,512,20,0,4]"#,
        r#"["a",2,1,0,2000,1024,21,0,4]"#,
        r#"["a",3,1,0,3000,2048,22,0,4]"#,
    ]);
    // THEN the line is the innermost of the user's; without one it is the generated line
    let held: Vec<_> =
        model.lines(0).iter().map(|view| (view.line.as_ref().and_then(|l| l.line), view.live_bytes)).collect();
    assert_eq!(held, [(Some(4), 2048), (Some(3), 1024), (Some(12), 512)]);
}

/// Blocks from stacks of these frames, outermost first; each letter is the owner of the frame's code.
fn blocks_of_stacks(stacks: &[&str]) -> Vec<String> {
    let files = [
        ('u', "/home/ada/train.py"),
        ('l', "/v/lib/python3.11/site-packages/trainer/loop.py"),
        ('m', "/v/lib/python3.11/site-packages/models/gpt.py"),
        ('t', "/src/pytorch/torch/nn/linear.py"),
        ('s', "/usr/lib/python3.11/copy.py"),
        ('g', "<frozen runpy>"),
    ];
    let mut lines: Vec<String> = std::iter::zip(1.., files)
        .map(|(line, (_, file))| format!(r#"{{"frame":{line}0,"file":"{file}","line":{line},"function":"f"}}"#))
        .collect();
    for (row, stack) in std::iter::zip(1.., stacks) {
        let mut parent = 0;
        for (depth, letter) in std::iter::zip(1.., stack.chars()) {
            let frame = files.iter().position(|(known, _)| *known == letter).map_or(0, |index| (index + 1) * 10);
            let id = row * 100 + depth;
            lines.push(format!(r#"{{"stack":{id},"parent":{parent},"frame":{frame}}}"#));
            parent = id;
        }
        lines.push(format!(r#"["a",{row},1,0,{}000,{},{parent},0,0]"#, row, 1 << row));
    }
    lines
}

#[test]
fn a_stack_counts_at_its_best_frame() {
    // GIVEN stacks with frames of the user, of libraries, of PyTorch, of Python and of generated code
    let stacks = ["gut", "gulmt", "lsmt", "sts", "gsg", "gg"];
    let events = blocks_of_stacks(&stacks);
    let (names, events): (Vec<_>, Vec<_>) = events.iter().partition(|line| line.starts_with('{'));
    let expected = [("train.py", 2 + 4), ("gpt.py", 8), ("linear.py", 16), ("copy.py", 32), ("<frozen runpy>", 64)];
    let first = NAMES.iter().map(|line| (*line).to_owned());
    // WHEN definitions come before the events, or after them
    let early =
        first.clone().chain(names.iter().map(|line| (*line).clone())).chain(events.iter().map(|e| (*e).clone()));
    let late = events.iter().map(|e| (*e).clone()).chain(names.iter().map(|line| (*line).clone())).chain(first);
    for model in [replay(early), replay(late)] {
        // THEN each is counted at the innermost frame of the best kind, and all have a line
        let mut held: Vec<_> = model
            .lines(0)
            .iter()
            .map(|view| (view.line.as_ref().map_or("none", |line| &*line.file).to_owned(), view.live_bytes))
            .collect();
        held.sort_by_key(|(_, bytes)| *bytes);
        assert_eq!(held.len(), expected.len(), "{held:?}");
        for ((file, bytes), (expected_file, expected_bytes)) in std::iter::zip(&held, expected) {
            assert!(file.ends_with(expected_file), "{file} is not {expected_file}");
            assert_eq!(*bytes, expected_bytes, "{file}");
        }
        // AND the tree of the user's lines agrees
        let tree = model.calls(0).in_scope(Scope::Users);
        let none = tree.calls.iter().filter(|call| call.line.is_none()).count();
        assert_eq!((none, tree.roots.len()), (0, expected.len()));
    }
}

#[test]
fn a_stack_whose_line_is_lost_keeps_its_bytes() {
    // GIVEN a block of a stack whose outer part is never defined, and a frame that becomes generated code
    let model = replay([
        r#"{"frame":1,"file":"/home/ada/train.py","line":3,"function":"f"}"#,
        r#"{"stack":1,"parent":2,"frame":1}"#,
        r#"["a",1,1,0,4096,512,1,1,1]"#,
        r#"{"frame":1,"file":"<generated>","line":3,"function":"f"}"#,
        r#"["a",2,1,0,8192,512,9,1,2]"#,
    ]);
    // THEN its line is unknown, and no bytes are missing
    let held: Vec<_> = model.lines(0).iter().map(|view| (view.line.is_some(), view.live_bytes)).collect();
    assert_eq!(held.iter().map(|(_, bytes)| bytes).sum::<u64>(), 1024, "{held:?}");
    assert!(held.contains(&(false, 1024)), "{held:?}");
}

#[test]
fn a_stack_that_is_defined_twice_keeps_its_bytes_at_the_peak() {
    // GIVEN a stack of an unknown frame, which is defined again as an empty one
    let model = replay([
        r#"["a",2,1,0,8192,512,3,9,4]"#,
        r#"{"stack":3,"parent":0,"frame":1}"#,
        r#"{"stack":3,"parent":0,"frame":0}"#,
        r#"["a",2,1,0,8192,5,3,9,4]"#,
    ]);
    // THEN its bytes at the peak are kept
    assert_eq!(model.device(0).map(|device| device.peak_allocated_bytes), Some(512));
    assert_eq!(model.lines(0).iter().map(|view| view.live_bytes_at_peak).sum::<u64>(), 512);
}

#[test]
fn compiled_code_counts_where_it_was_compiled_from() {
    // GIVEN compiled code called by the user's line 3: one of its lines stands for line 14, one is unknown, and one becomes
    // known later; and a benchmark that the first line runs
    let wrapper = |frame: u32, line: u32, stands_for: &str| {
        format!(
            r#"{{"frame":{frame},"stands_for":[{stands_for}],"file":"/tmp/x/ab/cab.py","line":{line},"function":"call"}}"#
        )
    };
    let user = |frame: u32, line: u32| {
        format!(r#"{{"frame":{frame},"file":"/gpt/net.py","line":{line},"function":"forward"}}"#)
    };
    let mut lines = vec![user(1, 3), user(2, 14), wrapper(10, 603, "2"), wrapper(11, 604, ""), wrapper(12, 605, "")];
    lines.push(r#"{"frame":4,"file":"(torch.compile's benchmarks)","line":null,"function":""}"#.to_owned());
    lines.push(wrapper(13, 7, "4"));
    lines.extend(
        [(1, 0, 1), (2, 1, 10), (3, 1, 11), (4, 1, 12), (5, 2, 13)]
            .map(|(stack, parent, frame)| format!(r#"{{"stack":{stack},"parent":{parent},"frame":{frame}}}"#)),
    );
    lines.extend([2, 3, 4, 5].map(|stack| format!(r#"["a",{stack},1,0,{stack}000,{},{stack},0,0]"#, 1 << stack)));
    let held = |model: &Model| {
        let mut held: Vec<_> = (model.lines(0).iter())
            .map(|view| {
                (view.live_bytes, view.line.clone().map(|line| (line.file.to_string(), line.line)), view.is_compiled)
            })
            .collect();
        held.sort();
        held
    };
    let place = |file: &str, line| Some((file.to_owned(), line));
    let unknown = |bytes| (bytes, place("(compiled code, unknown line)", None), false);
    let benchmarks = (32, place("(torch.compile's benchmarks)", None), false);
    // WHEN it is replayed THEN the bytes are at those lines
    assert_eq!(
        held(&replay(lines.clone())),
        [(4, place("/gpt/net.py", Some(14)), true), unknown(8 + 16), benchmarks.clone()]
    );
    // AND once the line is known, at that line
    lines.extend([user(3, 15), wrapper(12, 605, "3")]);
    let model = replay(lines.clone());
    let expected =
        [(4, place("/gpt/net.py", Some(14)), true), unknown(8), (16, place("/gpt/net.py", Some(15)), true), benchmarks];
    assert_eq!(held(&model), expected);
    // AND stacks have the generated line and the line it stands for, also after a keyframe
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).unwrap();
    let restored = replay(String::from_utf8(keyframe).unwrap().lines().map(str::to_owned));
    for model in [&model, &restored] {
        let frames: Vec<_> = model.frames(4).iter().map(|line| line.line).collect();
        assert_eq!(frames, [Some(15), Some(605), Some(3)]);
        assert_eq!(held(model), expected);
    }
}

#[test]
fn library_lines_are_shown_if_the_users_lines_only_call_them() {
    let file_of = |view: &memlab_trace::LineView| view.line.as_ref().map_or("none", |line| &*line.file).to_owned();
    // GIVEN a user's line that holds most memory by calling a library, and one that allocates little itself
    let first = NAMES.iter().map(|line| (*line).to_owned());
    let mut model = replay(first.clone().chain(blocks_of_stacks(&["ut", "sl", "ulmt", "ulmt"])));
    // WHEN the model chooses the lines to show
    model.set_scope(None);
    // THEN it chooses the libraries' innermost lines, which have the same sum
    assert_eq!((model.scope(), model.dominant_library_call(0).is_some()), (Scope::Libraries, true));
    let lines = model.lines(0);
    let held: Vec<_> = lines.iter().map(|view| (file_of(view), view.live_bytes, view.live_bytes_at_peak)).collect();
    let library = |name: &str| format!("/v/lib/python3.11/site-packages/{name}");
    let (models, trainer) = (library("models/gpt.py"), library("trainer/loop.py"));
    let expected = [(models, 24, 24), (trainer, 4, 4), ("/home/ada/train.py".to_owned(), 2, 2)];
    assert_eq!(held, expected);
    let tree = model.calls(0).in_scope(Scope::Libraries);
    assert_eq!(tree.total().live_bytes, 30);
    assert!(tree.calls.iter().all(|call| call.line.is_some()));
    // WHEN the user's lines are selected THEN they are shown
    model.set_scope(Some(Scope::Users));
    assert_eq!(model.lines(0).len(), 2);
    // GIVEN a user's line that allocates most itself THEN the model chooses the user's lines
    let mut model = replay(first.chain(blocks_of_stacks(&["ulmt", "ut"])));
    model.set_scope(None);
    assert_eq!((model.scope(), model.dominant_library_call(0)), (Scope::Users, None));
}

#[test]
fn an_installed_program_counts_as_the_users() {
    // GIVEN a program in site-packages, which the trace identifies late as the program
    let mut lines: Vec<String> = NAMES.iter().map(|line| (*line).to_owned()).collect();
    lines.extend(blocks_of_stacks(&["glmt"]));
    let line_of = |model: &Model| model.lines(0)[0].line.as_ref().map(|line| line.file.to_string());
    assert_eq!(line_of(&replay(&lines)).as_deref(), Some("/v/lib/python3.11/site-packages/models/gpt.py"));
    lines.push(r#"{"code":"program","root":"/v/lib/python3.11/site-packages/trainer"}"#.to_owned());
    // THEN its lines count as the user's, ahead of those of other packages
    let model = replay(&lines);
    assert_eq!(line_of(&model).as_deref(), Some("/v/lib/python3.11/site-packages/trainer/loop.py"));
    assert_eq!(model.lines(0).len(), 1);
}

#[test]
fn an_out_of_memory_before_the_first_sample_is_marked_incomplete() {
    // GIVEN an out-of-memory before the first sample
    let events = [
        r#"["d+",1,1,0,100000,65536,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#,
        r#"["a",2,1,0,100000,8192,1,0,0]"#,
        r#"["oom",3,1,0,4294967296,8192,65536,3,7]"#,
        r#"["used",4,0,400000,1048576,300000]"#,
        r#"["used",5,0,900000,1048576,300000]"#,
    ];
    // THEN the used bytes are this process's, and are marked as incomplete
    let oom = &model_of(&events[..3]).ooms()[0];
    assert_eq!((oom.used_bytes, oom.used_is_known), (65536, false));
    // WHEN samples follow THEN the first one is used, and later ones change nothing
    let oom = &model_of(&events).ooms()[0];
    assert_eq!((oom.used_bytes, oom.used_is_known), (400_000, true));
    assert!(oom.categories.contains(&(Category::Context, 300_000 - 65536)), "{:?}", oom.categories);
    assert!(oom.categories.contains(&(Category::OtherProcesses, 100_000)), "{:?}", oom.categories);
    assert!(oom.categories.is_sorted());
}

#[test]
fn blocks_of_the_asynchronous_backend_are_blocks() {
    blocks_from_the_driver("async", "cudaMallocAsync", 0);
}

#[test]
fn uncached_blocks_are_blocks() {
    blocks_from_the_driver("device", "cudaMalloc", 1024);
}

fn blocks_from_the_driver(kind: &str, call: &str, flag: u32) {
    // GIVEN a program whose allocator takes every block from the driver, and a library that also allocates there
    let d = |time: u64, address: u64, bytes: u64, stack: u32, layer: u32, flags: u32| {
        let flags = flags + flag;
        format!(r#"["d+",{time},1,0,{address},{bytes},"{kind}","{call}","libc10_cuda.so",{stack},{layer},{flags}]"#)
    };
    let model = replay(NAMES.iter().map(|line| (*line).to_owned()).chain([
        d(1, 1000, 4000, 1, 0, 64),
        r#"["tag",2,0,1000,"parameter",4000,3,"h.0.mlp.fc.weight"]"#.into(),
        d(3, 20000, 8000, 3, 7, 5),
        r#"["d+",4,1,0,90000,3000,"async","cudaMallocAsync","libmine.so",1,0,0]"#.into(),
        d(5, 40000, 600, 3, 7, 5),
        format!(r#"["d-",6,1,0,40000,"{kind}"]"#),
        r#"["d-",7,1,0,90000,"async"]"#.into(),
    ]));
    // THEN they are blocks, with line, layer and category; the library's memory is that of other arrays
    let device = model.device(0).unwrap();
    assert_eq!((device.allocated_bytes, device.reserved_bytes, device.used_bytes), (12_000, 12_000, 12_000));
    assert_eq!((device.peak_allocated_bytes, device.async_allocations, device.live_blocks), (12_600, 3, 2));
    assert_eq!((line(&model, 12).live_bytes, line(&model, 31).live_bytes), (8000, 4000));
    assert_eq!(layer(&model, "h.0.mlp.fc").activation_bytes, 8000);
    assert_eq!(category(&model, Category::Parameter), (4000, 4000));
    assert_eq!(category(&model, Category::OtherArrays), (0, 3000));
    assert_eq!((model.anomalies().total(), model.driver_memory(0).len()), (0, 0));
    assert!(model.segments(0).segments.is_empty());
    // AND a keyframe contains the same
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).unwrap();
    let restored = replay(
        NAMES[..1]
            .iter()
            .map(|line| line.as_bytes())
            .chain(keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())),
    );
    assert_eq!(common::all_views(&restored), common::all_views(&model));
}

#[test]
fn private_pools_of_graphs_are_distinguished() {
    // GIVEN a common segment, two graphs with separate pools, one of them in mapped memory, and a third graph that shares
    // the first one's pool
    let events = [
        r#"["d+",1,1,0,100000,20000,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#,
        r#"["a",2,1,0,100000,8000,1,0,0]"#,
        r#"["d+",3,1,0,200000,20000,"device","cudaMalloc","libc10_cuda.so",1,0,128,11]"#,
        r#"["a",4,1,0,200000,5000,1,0,0]"#,
        r#"["a",5,1,0,205000,7000,1,0,0]"#,
        r#"["f",6,1,0,205000]"#,
        r#"["g+",7,1,0,11,0,1,3]"#,
        r#"["d+",8,1,0,1,30000,"physical","cuMemCreate","libc10_cuda.so",1,0,128,12]"#,
        r#"["map",9,1,0,300000,30000,1]"#,
        r#"["a",10,1,0,300000,1000,1,0,0]"#,
        r#"["g+",11,1,0,12,0,2,3]"#,
        r#"["d+",12,1,0,400000,2000,"device","cudaMalloc","libc10_cuda.so",1,0,128,13]"#,
        r#"["g+",13,1,0,13,0,1,3]"#,
    ];
    let model = model_of(&events);
    // THEN each pool has its segments and graphs, AND its free bytes are separate from the rest
    let pools = |model: &Model| -> Vec<_> {
        let pools = model.private_pools(0).into_iter();
        pools.map(|p| (p.pool, p.id, p.graphs, p.captured, p.segments, p.reserved_bytes, p.free_bytes)).collect()
    };
    let first = (11, Some((0, 1)), 2, 2, 2, 22000, 17000);
    assert_eq!(pools(&model), [(12, Some((0, 2)), 1, 1, 1, 30000, 29000), first]);
    let map = model.segments(0);
    assert_eq!((map.free_bytes, map.private_free_bytes, map.largest_common_free_bytes), (58000, 46000, 12000));
    let device = model.device(0).unwrap();
    assert_eq!((device.private_reserved_bytes_at_peak, device.private_allocated_bytes_at_peak), (20000, 12000));
    // AND a keyframe contains the same
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).unwrap();
    let restored = replay(keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()));
    assert_eq!(pools(&restored), pools(&model));
    assert_eq!(common::all_views(&restored), common::all_views(&model));
    // AND a pool whose graphs are gone exists until its memory goes back
    let gone = [r#"["f",14,1,0,300000]"#, r#"["g-",15,1,0,12]"#];
    let model = model_of(&[&events[..], &gone].concat());
    assert_eq!(pools(&model), [(12, Some((0, 2)), 0, 1, 1, 30000, 30000), first]);
    let given_back = [r#"["unmap",16,1,0,300000,30000]"#, r#"["d-",17,1,0,1,"physical"]"#];
    assert_eq!(pools(&model_of(&[&events[..], &gone, &given_back].concat())), [first]);
}

#[test]
fn the_size_of_a_keyframe_is_bounded() {
    // GIVEN 20,000 live blocks, half of them tagged, and thousands of steps
    let mut lines = vec![r#"{"memlab":1,"pid":1,"start_unix_ns":1}"#.to_owned()];
    for block in 0..20_000_u64 {
        lines.push(format!(r#"["a",{},1,0,{},4718592,0,0,0]"#, 1_000_000_000 + block * 70_003, (block + 1) << 23));
        if block % 2 == 0 {
            let tag = r#""parameter",4718592,0,"h.0.weight""#;
            lines.push(format!(r#"["tag",{},0,{},{tag}]"#, 1_000_000_001 + block * 70_003, (block + 1) << 23));
        }
        if block % 4 == 0 {
            lines.push(format!(r#"["step",{},1,{}]"#, 1_000_000_002 + block * 70_003, block / 4));
        }
    }
    let mut model = common::replay(lines.iter().map(|line| line.as_bytes()));
    let keyframe = |model: &Model| {
        let mut keyframe = Vec::new();
        model.write_keyframe(&mut keyframe).unwrap();
        keyframe
    };
    // THEN the size of the keyframe is bounded
    let whole = keyframe(&model).len();
    assert!(whole < 3 << 20, "{whole}");
    // AND with a shorter history it is smaller, with the same present state and totals
    let before = (model.device(0), model.lines(0), model.categories(0));
    while model.shorten_history() {}
    let short = keyframe(&model);
    assert!(short.len() < 1_300_000, "{}", short.len());
    let restored = common::replay(short.split_inclusive(|byte| *byte == b'\n'));
    assert_eq!((restored.device(0), restored.lines(0), restored.categories(0)), before);
}

#[test]
fn mesh_position_and_sharding_survive_a_compaction() {
    // GIVEN a rank in a mesh and a pipeline, with a sharded parameter, in a trace that is compacted
    let model = model_of(&[
        r#"{"mesh":[["dp",1,4],["tp",0,2]]}"#,
        r#"{"stages":[1,3],"of":4}"#,
        r#"["a",1,1,0,4096,1024,1,0,0]"#,
        r#"["tag",2,0,4096,"parameter",1000,1,"fc.weight","Shard(0)/4 on dp"]"#,
    ]);
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).unwrap();
    // THEN the compacted trace contains the same
    for model in [&model, &replay(keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()))] {
        let mesh: Vec<_> = model.mesh().iter().map(|of| (of.name.as_str(), of.coordinate, of.size)).collect();
        assert_eq!(mesh, [("dp", 1, 4), ("tp", 0, 2)]);
        assert_eq!((&model.stages().stages[..], model.stages().of), (&[1, 3][..], 4));
        let tensors = model.tensors_in(0, 4096);
        let [weight] = &tensors[..] else { panic!("{tensors:?}") };
        assert_eq!(
            (&*weight.name, weight.bytes, weight.shard.as_deref()),
            ("fc.weight", 1000, Some("Shard(0)/4 on dp"))
        );
    }
}

#[test]
fn a_framework_is_known_by_its_loop() {
    // GIVEN a loop of the Trainer with an optimizer of Accelerate, a hand-written loop, and an import of the Trainer
    let frame = |id: u32, file: &str, function: &str| {
        format!(r#"{{"frame":{id},"file":"/venv/site-packages/{file}","line":1,"function":"{function}"}}"#)
    };
    let stack = |id: u32, parent: u32| format!(r#"{{"stack":{id},"parent":{parent},"frame":{id}}}"#);
    let mut records = vec![
        frame(901, "transformers/trainer.py", "Trainer.training_step"),
        frame(902, "accelerate/optimizer.py", "AcceleratedOptimizer.step"),
        frame(903, "transformers/trainer.py", "<module>"),
        frame(904, "x/transformers/trainer.pyc", "Trainer.train"),
    ];
    records.extend([stack(901, 0), stack(902, 901), stack(903, 0), stack(904, 0)]);
    let model = model_of(&records.iter().map(String::as_str).collect::<Vec<_>>());
    let of = |stacks: &[(u32, u64)]| model.framework(0, stacks.iter().copied());
    // THEN the Trainer is the framework of its loop, AND none is that of an import or of another file
    assert_eq!(of(&[(902, 100)]), Some(Framework::Transformers));
    assert_eq!([of(&[(903, 100)]), of(&[(904, 100)]), of(&[])], [None; 3]);
    // AND the framework is that of most bytes
    assert_eq!([of(&[(901, 60), (904, 40)]), of(&[(901, 40), (904, 60)])], [Some(Framework::Transformers), None]);
    // AND the program's loop is Accelerate's if its optimizer allocated
    records.extend([frame(905, "accelerate/optimizer.py", "AcceleratedOptimizer.step"), stack(905, 0)]);
    records.push(r#"["a",1,1,0,4096,512,905,0,0]"#.to_owned());
    let model = model_of(&records.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(model.framework(0, [(904, 100)].into_iter()), Some(Framework::Accelerate));
}
