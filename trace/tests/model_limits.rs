//! Limits on a process's allocations: limits set by memlab, host memory, other processes, a device too small from the start.

use crate::common::replay;
use memlab_trace::{Category, Model};

#[test]
fn out_of_memory_at_the_first_allocation_shows_its_device() {
    // GIVEN a limited card without any allocation, whose driver records come after the out-of-memory
    let model = replay([
        r#"{"device":0,"name":"NVIDIA H200","total_bytes":8192}"#,
        r#"{"limit":0,"bytes":2048,"on_limit":"oom"}"#,
        r#"["oom",5,1,0,4096,0,0,3,7]"#,
        r#"{"others":0,"processes":[[77,1024]]}"#,
        r#"["used",9,0,1536,8192,512]"#,
    ]);
    // THEN the device exists, and the out-of-memory has the limit and the other processes
    let device = &model.devices()[0];
    assert_eq!((device.total_bytes, device.allocations, device.limit_bytes), (8192, 0, Some(2048)));
    let oom = &model.ooms()[0];
    assert_eq!((oom.requested_bytes, oom.total_bytes, oom.used_bytes), (4096, 8192, 1536));
    assert!(oom.categories.contains(&(Category::OtherProcesses, 1024)), "{:?}", oom.categories);
    assert_eq!((oom.limit_bytes, &*oom.others), (Some(2048), [(77, 1024)].as_slice()));
    // AND the device exists without any record of it
    let model = replay([r#"["oom",5,1,2,4096,0,0,0,0]"#]);
    assert_eq!(model.devices().iter().map(|device| device.index).collect::<Vec<_>>(), [2]);
}

#[test]
fn an_out_of_memory_has_the_other_processes_of_its_moment() {
    // GIVEN two devices whose use is sampled, with other processes that come and go before, between and after the
    // out-of-memories of one of them
    let others = |device: i32, processes: &str| format!(r#"{{"others":{device},"processes":{processes}}}"#);
    let lines = [
        r#"["used",1,0,6144,8192,2048]"#.to_owned(),
        r#"["used",1,1,6144,8192,2048]"#.to_owned(),
        others(1, "[[99,4096]]"),
        others(0, "[[77,3072],[78,512]]"),
        r#"["oom",2,1,0,4096,0,0,3,7]"#.to_owned(),
        others(0, "[[78,1024]]"),
        r#"["oom",3,1,0,4096,0,0,3,7]"#.to_owned(),
        others(0, "[]"),
        r#"["oom",4,1,0,4096,0,0,3,7]"#.to_owned(),
        others(0, "[[80,512]]"),
    ];
    let model = replay(&lines);
    // THEN each has the processes of its moment
    let expected: [&[(u32, u64)]; 3] = [&[(77, 3072), (78, 512)], &[(78, 1024)], &[]];
    let others_of = |model: &Model| model.ooms().into_iter().map(|oom| oom.others).collect::<Vec<_>>();
    assert_eq!(others_of(&model), expected);
    assert!(model.ooms()[0].categories.contains(&(Category::OtherProcesses, 4096)), "{:?}", model.ooms()[0].categories);
    // AND a keyframe keeps them
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).unwrap();
    assert_eq!(others_of(&replay(keyframe.split_inclusive(|byte| *byte == b'\n'))), expected);
}

#[test]
fn spilled_memory_is_not_used_on_the_device() {
    // GIVEN a peak that is mostly in host memory, because of a limit that was removed later
    let model = replay([
        r#"{"limit":0,"bytes":2048,"on_limit":"spill"}"#,
        r#"["d+",1,1,0,4096,4096,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#,
        r#"["moved",2,0,3072]"#,
        r#"["a",3,1,0,4096,4096,1,0,0]"#,
        r#"["f",4,1,0,4096]"#,
        r#"["d-",5,1,0,4096,"device"]"#,
        r#"["moved",6,0,0]"#,
    ]);
    // THEN the device held the rest, and the categories sum to both
    let device = model.device(0).unwrap();
    assert_eq!((device.peak_allocated_bytes, device.host_bytes_at_peak, device.used_bytes_at_peak), (4096, 3072, 1024));
    assert_eq!((device.host_bytes, device.peak_host_bytes), (0, 3072));
    assert_eq!(model.categories(0).iter().map(|view| view.bytes_at_peak).sum::<u64>(), 4096);
    assert!(device.spills && device.limit_bytes == Some(2048));
    // AND a removed limit is not shown; memory beyond the device still spills
    let model =
        replay([r#"{"limit":0,"bytes":2048,"on_limit":"spill"}"#, r#"{"limit":0,"bytes":null,"on_limit":"spill"}"#]);
    assert_eq!(model.device(0).map(|device| (device.limit_bytes, device.spills)), Some((None, true)));
}

#[test]
fn other_processes_have_their_maximum() {
    let model = replay([
        r#"{"others":0,"processes":[[77,1024],[78,512]]}"#,
        r#"{"others":0,"processes":[[78,4096]]}"#,
        r#"{"others":0,"processes":[]}"#,
    ]);
    assert_eq!(model.device(0).unwrap().others, [(78, 4096), (77, 1024)]);
}
