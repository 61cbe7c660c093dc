//! The categories of blocks in small programs of known memory.

use crate::common::{NAMES, TRAINING, category, layer, line, model_of, replay};
use memlab_trace::Category;

#[test]
fn a_training_step_has_every_category() {
    let model = model_of(TRAINING);
    // The peak is after the allocation of the gradient, with backward's temporary still live.
    let peak = 4096 + 1024 + 8192 + 512 + 8192 + 4096;
    let device = model.device(0).unwrap();
    assert_eq!((device.peak_allocated_bytes, device.peak_time, device.peak_step), (peak, 11, 0));
    assert_eq!(category(&model, Category::Parameter), (4096, 4096));
    assert_eq!(category(&model, Category::Gradient), (4096, 4096));
    assert_eq!(category(&model, Category::OptimizerState), (4096, 0));
    assert_eq!(category(&model, Category::Input), (1024, 1024));
    assert_eq!(category(&model, Category::Activation), (512, 8192 + 512));
    assert_eq!(category(&model, Category::Temporary), (0, 8192));
    assert_eq!(category(&model, Category::Other), (0, 0));

    let fc = layer(&model, "h.0.mlp.fc");
    assert_eq!((fc.root, fc.class.as_deref()), (3, Some("Linear")));
    assert_eq!((fc.forward_bytes, fc.backward_bytes), (2048 + 8192, 8192 + 4096));
    assert_eq!((fc.parameter_bytes, fc.gradient_bytes, fc.optimizer_state_bytes), (4096, 4096, 4096));
    assert_eq!(fc.activation_bytes, 8192);
    assert_eq!(fc.live_bytes_at_peak, 4096 + 8192 + 8192 + 4096);
    assert_eq!(fc.live_bytes, 3 * 4096);

    // Frames in torch and dist-packages are skipped; backward's blocks count on their forward line.
    let forward = line(&model, 12);
    assert_eq!((forward.live_bytes_at_peak, forward.backward_bytes_at_peak), (3 * 8192 - 4096, 8192 + 4096));
    assert_eq!((forward.live_bytes, forward.backward_bytes), (4096, 4096));
    assert_eq!(forward.peak_live_bytes, 8192 + 8192 + 4096);
    assert_eq!(line(&model, 31).live_bytes, 4096 + 1024 + 512 + 4096);
}

#[test]
fn pending_blocks_have_a_provisional_category() {
    assert_eq!(category(&model_of(&TRAINING[..7]), Category::Activation), (2048 + 8192, 2048 + 8192));
    assert_eq!(category(&model_of(&TRAINING[..11]), Category::Gradient), (8192 + 4096, 8192 + 4096));
    assert_eq!(category(&model_of(&TRAINING[..15]), Category::Temporary).0, 4096 + 1536);
    assert_eq!(category(&model_of(&TRAINING[..4]), Category::Other), (1536, 1536));
    assert_eq!(category(&model_of(&TRAINING[..6]), Category::Input), (1024, 1024));
}

#[test]
fn checkpointing_recomputes_activations_in_backward() {
    let model = model_of(&[
        r#"["a",1,2,0,1000,512,3,7,18]"#,
        r#"["a",2,2,0,2000,1024,3,7,34]"#,
        r#"["a",3,2,0,3000,2048,3,7,18]"#,
        r#"["f",4,2,0,2000]"#,
    ]);
    assert_eq!(category(&model, Category::Activation), (0, 1024));
    assert_eq!(layer(&model, "h.0.mlp.fc").activation_bytes, 1024);
}

#[test]
fn a_flat_block_has_the_category_of_most_of_its_bytes() {
    let model = model_of(&[
        r#"["a",1,1,0,1000,10240,1,0,0]"#,
        r#"["tag",2,0,1000,"buffer",1000,3,"running_mean"]"#,
        r#"["tag",3,0,2024,"parameter",4000,3,"h.0.mlp.fc.weight"]"#,
        r#"["tag",4,0,6120,"parameter",100,3,"h.0.mlp.fc.bias"]"#,
        r#"["tag",5,0,99999,"parameter",100,3,"nowhere"]"#,
    ]);
    assert_eq!(category(&model, Category::Parameter), (10240, 10240));
    assert_eq!(layer(&model, "h.0.mlp.fc").parameter_bytes, 4096 + 512);
    assert_eq!(layer(&model, "h.0.mlp.fc").live_bytes_at_peak, 10240);
    assert_eq!(layer(&model, "").buffer_bytes, 1024);
    assert_eq!(model.anomalies().unknown_tags, 1);
}

#[test]
fn a_layer_holds_the_block_that_its_parameter_was_given() {
    // GIVEN a parameter in a larger block, as PyTorch splits off no small rest, and a block mostly for other tensors
    let model = model_of(&[
        r#"["a",1,1,0,1000,10240,1,0,0]"#,
        r#"["tag",2,0,1000,"parameter",8000,3,"h.0.mlp.fc.weight"]"#,
        r#"["a",3,1,0,20000,10240,1,0,0]"#,
        r#"["tag",4,0,20000,"buffer",1000,3,"running_mean"]"#,
    ]);
    // THEN the layer of the first has its whole block, AND that of the second only its tensor
    assert_eq!(layer(&model, "h.0.mlp.fc").parameter_bytes, 10240);
    assert_eq!(layer(&model, "").buffer_bytes, 1024);
}

#[test]
fn a_module_that_is_called_later_is_counted_once() {
    // GIVEN a parameter tagged in a list that is not called, and then in its module, which is called
    let model = model_of(&[
        r#"["a",1,1,0,1000,1024,1,0,0]"#,
        r#"["tag",2,0,1000,"parameter",1024,0,"ModuleList.1.weight"]"#,
        r#"["tag",3,0,1000,"parameter",1024,3,"h.0.mlp.fc.weight"]"#,
    ]);
    // THEN it counts for the module only
    assert_eq!(layer(&model, "h.0.mlp.fc").parameter_bytes, 1024);
    assert_eq!(model.layers(0).iter().map(|layer| layer.parameter_bytes).sum::<u64>(), 1024);
}

#[test]
fn a_program_that_ends_in_its_first_forward_has_activations() {
    // GIVEN a layer with a temporary, and two results that are live when the trace ends
    let model = model_of(&[
        r#"["a",1,1,0,1000,4096,3,7,5]"#,
        r#"["f",2,1,0,1000]"#,
        r#"["a",3,1,0,2000,1024,3,7,5]"#,
        r#"["a",4,1,0,3000,512,3,7,5]"#,
    ]);
    // THEN the layer counts the live results as activations, and not the freed temporary
    assert_eq!(category(&model, Category::Activation).0, 1536);
    assert_eq!(layer(&model, "h.0.mlp.fc").activation_bytes, 1536);
}

#[test]
fn communication_buffers_are_not_activations() {
    // GIVEN a bucket allocated in forward, parameters gathered there, and a bucket that holds the gradients
    let model = model_of(&[
        r#"["a",1,1,0,1000,4096,3,7,257]"#,
        r#"["a",2,1,0,10000,2048,3,7,257]"#,
        r#"["tag",3,0,10000,"parameter",2048,3,"h.0.mlp.fc.weight"]"#,
        r#"["a",4,2,0,20000,1024,3,7,258]"#,
        r#"["tag",5,0,20000,"gradient",1024,3,"h.0.mlp.fc.weight"]"#,
        r#"["step",6,1,0]"#,
    ]);
    // THEN buckets and copies are communication buffers, independent of their content, and gradients are gradients
    assert_eq!(category(&model, Category::Communication), (6144, 6144));
    assert_eq!(category(&model, Category::Gradient), (1024, 1024));
    assert_eq!(category(&model, Category::Activation), (0, 0));
    assert_eq!(layer(&model, "h.0.mlp.fc").parameter_bytes, 0);
}

#[test]
fn communication_buffers_are_distinguished_by_purpose() {
    // GIVEN gathered parameters, gradients for a reduce-scatter, a bucket, and another buffer
    let model = model_of(&[
        r#"["a",1,1,0,1000,1024,3,7,8449]"#,
        r#"["tag",2,0,1000,"parameter",1024,3,"h.0.mlp.fc.weight"]"#,
        r#"["a",3,1,0,3000,2048,3,7,16642]"#,
        r#"["a",4,1,0,6000,4096,3,7,33025]"#,
        r#"["a",5,1,0,20000,512,3,7,257]"#,
        r#"["d+",6,1,0,50000,33554432,"device","cuMemAlloc_v2","libnccl.so.2",3,7,1]"#,
        r#"["d+",7,1,0,60000,4194304,"device","cuMemAlloc_v2","libcublas.so.13",3,7,1]"#,
    ]);
    // THEN each has a separate category, also NCCL's own memory
    let held = |of| category(&model, of).0;
    assert_eq!(
        [held(Category::Gathered), held(Category::ReduceScatter), held(Category::DdpBucket)],
        [1024, 2048, 4096]
    );
    assert_eq!([held(Category::Communication), held(Category::Parameter)], [512, 0]);
    assert_eq!([held(Category::Nccl), held(Category::Workspace)], [32 << 20, 4 << 20]);
}

#[test]
fn arrays_of_other_libraries_have_lines_and_layers() {
    // GIVEN a program with a block of PyTorch, a workspace, and arrays of other libraries: in a layer and outside, one freed
    let events = [
        r#"["d+",1,1,0,100000,20000,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#,
        r#"["a",2,1,0,100000,8000,1,0,0]"#,
        r#"["d+",3,1,0,200000,3000,"device","cudaMalloc","runtime.cpython-312-x86_64-linux-gnu.so",3,7,1]"#,
        r#"["d+",4,1,0,300000,500,"async","cuMemAllocAsync","libffi.so.8",1,0,0]"#,
        r#"["d+",5,1,0,400000,70,"device","cuMemAlloc_v2","libcudnn_ops.so.9",1,0,0]"#,
        r#"["a",6,1,0,110000,1000,1,0,0]"#,
        r#"["d-",7,1,0,200000,"device"]"#,
        r#"["d+",8,1,0,200000,600,"managed","cuMemAllocManaged","libffi.so.8",3,0,0]"#,
    ];
    let model = model_of(&events);
    // THEN they have a category, now and at the peak, and so have the workspaces
    assert_eq!(category(&model, Category::OtherArrays), (1100, 3500));
    assert_eq!(category(&model, Category::Workspace), (70, 70));
    // AND they count on their lines and layers, but not in PyTorch's allocated bytes
    assert_eq!(line(&model, 12).live_bytes, 600);
    assert_eq!(line(&model, 12).live_bytes_at_peak, 3000);
    assert_eq!(line(&model, 31).live_bytes_at_peak, 9000 + 500);
    assert_eq!(layer(&model, "h.0.mlp.fc").live_bytes_at_peak, 3000);
    let device = model.device(0).unwrap();
    assert_eq!((device.allocated_bytes, device.peak_allocated_bytes, device.used_bytes), (9000, 9000, 21_170));
    assert_eq!(model.categories(0).iter().map(|view| view.bytes).sum::<u64>(), device.used_bytes);
    // AND the chart by category contains them
    let points = model.timeline(0).categories;
    assert_eq!(points.last().map(|point| point.last[Category::OtherArrays as usize]), Some(1100));
    // AND a keyframe keeps them, so that a later free is discounted
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).unwrap();
    let later = [&br#"["d-",9,1,0,300000,"async"]"#[..], br#"["d-",10,1,0,200000,"managed"]"#];
    let restored = replay(
        [NAMES[0].as_bytes()]
            .into_iter()
            .chain(keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()))
            .chain(later),
    );
    assert_eq!(category(&restored, Category::OtherArrays), (0, 3500));
    assert_eq!((line(&restored, 12).live_bytes, restored.anomalies().total()), (0, 0));
    // AND the peak of each library is still known
    let peak =
        |library: &str| restored.driver_peaks(0).iter().filter(|(name, _)| &**name == library).map(|peak| peak.1).max();
    assert_eq!([peak("runtime.cpython-312-x86_64-linux-gnu.so"), peak("libffi.so.8")], [Some(3000), Some(600)]);
}

#[test]
fn a_build_of_nccl_under_another_name_is_counted_once() {
    let model = model_of(&[r#"["d+",1,1,0,200000,3000,"device","cudaMalloc","my_nccl.so",3,7,1]"#]);
    assert_eq!([category(&model, Category::Nccl).0, category(&model, Category::OtherArrays).0], [3000, 0]);
    assert_eq!(model.categories(0).iter().map(|view| view.bytes).sum::<u64>(), model.device(0).unwrap().used_bytes);
}

#[test]
fn an_array_at_an_address_whose_free_was_missed_replaces_the_other() {
    let model = model_of(&[
        r#"["d+",1,1,0,200000,3000,"device","cudaMalloc","mine.so",3,7,1]"#,
        r#"["d+",2,1,0,200000,500,"device","cudaMalloc","mine.so",1,0,0]"#,
    ]);
    assert_eq!(category(&model, Category::OtherArrays).0, 500);
    assert_eq!((line(&model, 12).live_bytes, line(&model, 31).live_bytes), (0, 500));
    assert_eq!(model.anomalies().lost_driver_frees, 1);
}

#[test]
fn key_value_caches_are_known_from_their_allocation() {
    // GIVEN a server's cache, a cache that a layer keeps in forward, a module's buffer in a cache, and an attention workspace
    let model = model_of(&[
        r#"["a",1,1,0,1000,4096,1,0,65536]"#,
        r#"["a",2,1,0,10000,2048,3,7,65537]"#,
        r#"["a",3,1,0,20000,1024,3,7,65537]"#,
        r#"["tag",4,0,20000,"buffer",1024,3,"h.0.attn.kv_cache.k"]"#,
        r#"["a",5,1,0,30000,512,1,0,8]"#,
        // WHEN the layer's cache is replaced
        r#"["a",6,1,0,40000,3072,3,7,65537]"#,
        r#"["f",7,1,0,10000]"#,
        r#"["a",8,1,0,50000,512,1,0,0]"#,
    ]);
    // THEN all of it is KV cache from its allocation on, and neither activation nor buffer
    assert_eq!(category(&model, Category::KvCache), (4096 + 1024 + 3072, 4096 + 2048 + 1024 + 3072));
    assert_eq!(category(&model, Category::Workspace), (512, 512));
    assert_eq!([category(&model, Category::Activation).1, category(&model, Category::Buffer).1], [0, 0]);
}

#[test]
fn in_a_training_key_value_caches_are_activations() {
    // GIVEN keys that a layer keeps, which no gradient needs, and values that are an autograd node's result
    let model = model_of(&[
        r#"["a",1,1,0,1000,4096,3,7,65537]"#,
        r#"["a",2,1,0,10000,2048,3,7,65541]"#,
        // WHEN backward begins
        r#"["a",3,1,0,20000,512,3,7,18]"#,
    ]);
    // THEN backward keeps the values, so they are an activation
    assert_eq!(category(&model, Category::KvCache).0, 4096);
    assert_eq!(category(&model, Category::Activation).0, 2048);
}

#[test]
fn blocks_from_before_memlab_have_their_own_category() {
    // GIVEN a running process that loaded memlab: the blocks that memlab found, and one allocated before its search
    let model = model_of(&[
        r#"["a",1,1,0,3000,1024,1,0,0]"#,
        r#"["d+",2,1,0,1000,65536,"device","cudaMalloc","libc10_cuda.so",0,0,640]"#,
        r#"["a",3,1,0,1000,2000,0,0,512]"#,
        r#"["a",4,1,0,3000,1024,0,0,512]"#,
        r#"["a",5,1,0,5000,4096,0,0,512]"#,
        r#"["a",6,1,0,10000,8192,0,0,512]"#,
        // WHEN a parameter among them is tagged, and another block is freed
        r#"["tag",7,0,5000,"parameter",4000,3,"h.0.mlp.fc.weight"]"#,
        r#"["f",8,1,0,10000]"#,
    ]);
    // THEN the parameter is a parameter, and the rest stays in the category "before memlab"
    assert_eq!(category(&model, Category::BeforeMemlab), (2000, 2000 + 8192));
    assert_eq!(category(&model, Category::Parameter), (4096, 4096));
    assert_eq!(category(&model, Category::Other), (1024, 1024));
    assert_eq!(category(&model, Category::Cached).0, 65536 - 2000 - 4096 - 1024);
    assert_eq!(model.anomalies().total(), 0);
}

#[test]
fn blocks_of_a_script_without_a_model_are_other() {
    // GIVEN a script that adds tensors, and never calls a module
    let model = model_of(&[
        r#"["a",1,1,0,1000,4096,1,0,0]"#,
        r#"["a",2,1,0,10000,2048,1,0,0]"#,
        r#"["f",3,1,0,10000]"#,
        r#"["step",4,1,0]"#,
    ]);
    // THEN the tensors are neither inputs nor temporaries
    assert_eq!(category(&model, Category::Other), (4096, 6144));
    assert_eq!(category(&model, Category::Input), (0, 0));
    assert_eq!(category(&model, Category::Temporary), (0, 0));
}

/// Steps 1 to `steps` of a training that keeps tensors.
///
/// It has averages of two weights in a list, made by operations with and without autograd, and a data set on the device. A
/// module is called with a batch of it. Every step has a new batch and a loss that is kept.
fn training_that_keeps_tensors(steps: u64) -> Vec<String> {
    let mut lines: Vec<String> = [
        r#"["a",1,1,0,1000,1024,1,0,4]"#, // the averages
        r#"["a",2,1,0,3000,1024,1,0,4]"#,
        r#"["a",3,1,0,5000,512,2,0,0]"#,
        r#"["a",4,1,0,6000,512,2,0,0]"#,
        r#"["a",5,1,0,10000,8192,4,0,0]"#, // the data set
        r#"["a",6,1,0,20000,256,5,0,0]"#,  // the batch
        r#"["a",7,1,0,7000,512,3,7,5]"#,
        r#"["tag",8,0,20000,"input",256,3,""]"#,
        r#"["f",9,1,0,7000]"#,
    ]
    .map(str::to_owned)
    .into();
    for step in 1..=steps {
        let (time, batch) = (step * 100, 30_000 + step % 2 * 1000);
        lines.extend([
            format!(r#"["a",{},1,0,{batch},256,6,0,0]"#, time + 1),
            format!(r#"["a",{},1,0,{},128,7,0,4]"#, time + 2, 100_000 + step * 1000),
            format!(r#"["step",{},1,{}]"#, time + 3, step - 1),
        ]);
        if step > 1 {
            lines.push(format!(r#"["f",{},1,0,{}]"#, time + 4, 30_000 + (step - 1) % 2 * 1000));
        }
    }
    lines
}

#[test]
fn permanent_blocks_are_neither_inputs_nor_activations() {
    let of = |steps| {
        let lines = training_that_keeps_tensors(steps);
        model_of(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    };
    // GIVEN too few steps to decide
    let model = of(3);
    assert_eq!(category(&model, Category::Other), (0, 0));
    assert_eq!(category(&model, Category::Input).0, 1024 + 8192 + 256 + 256);
    // WHEN more steps follow
    let model = of(6);
    // THEN averages and data are neither inputs nor activations; batches are inputs, accumulating losses are activations
    assert_eq!(category(&model, Category::Other).0, 3072 + 8192);
    assert_eq!(category(&model, Category::Input).0, 256 + 256);
    assert_eq!(category(&model, Category::Activation).0, 6 * 128);
    // AND the categories at the peak agree
    assert_eq!(category(&model, Category::Other).1, 3072 + 8192);
    // AND later tags take precedence
    let mut lines = training_that_keeps_tensors(6);
    lines.push(r#"["tag",900,0,1000,"parameter",1024,3,"average"]"#.to_owned());
    lines.push(r#"["tag",901,0,10000,"input",512,3,""]"#.to_owned());
    let model = model_of(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(category(&model, Category::Parameter).0, 1024);
    assert_eq!(category(&model, Category::Input).0, 8192 + 256 + 256);
    assert_eq!(category(&model, Category::Other).0, 2048);
}
