//! What blocks turn out to be, in small programs whose memory is known.

mod common;

use common::{TRAINING, category, layer, line, model_of};
use memlab_trace::Category;

#[test]
fn a_training_step_is_told_apart() {
    let model = model_of(TRAINING);
    // The peak is after the gradient was made, with the temporary of backward still there.
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

    // Torch's own frame and dist-packages are passed over; what backward made counts on its forward line.
    let forward = line(&model, 12);
    assert_eq!((forward.live_bytes_at_peak, forward.backward_bytes_at_peak), (3 * 8192 - 4096, 8192 + 4096));
    assert_eq!((forward.live_bytes, forward.backward_bytes), (4096, 4096));
    assert_eq!(forward.peak_live_bytes, 8192 + 8192 + 4096);
    assert_eq!(line(&model, 31).live_bytes, 4096 + 1024 + 512 + 4096);
}

#[test]
fn what_is_pending_is_shown_as_what_it_looks_like() {
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
fn a_flat_block_with_many_tensors_is_what_most_of_it_is() {
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
fn a_program_that_ends_in_its_first_forward_has_activations() {
    // GIVEN a layer with a temporary, and two results that live when the trace ends
    let model = model_of(&[
        r#"["a",1,1,0,1000,4096,3,7,5]"#,
        r#"["f",2,1,0,1000]"#,
        r#"["a",3,1,0,2000,1024,3,7,5]"#,
        r#"["a",4,1,0,3000,512,3,7,5]"#,
    ]);
    // THEN they count in the layer as what they are shown as, and what is gone does not
    assert_eq!(category(&model, Category::Activation).0, 1536);
    assert_eq!(layer(&model, "h.0.mlp.fc").activation_bytes, 1536);
}

#[test]
fn what_ranks_exchange_is_no_activation() {
    // GIVEN a bucket made in forward, parameters gathered there, and a bucket that the gradients lie in
    let model = model_of(&[
        r#"["a",1,1,0,1000,4096,3,7,257]"#,
        r#"["a",2,1,0,10000,2048,3,7,257]"#,
        r#"["tag",3,0,10000,"parameter",2048,3,"h.0.mlp.fc.weight"]"#,
        r#"["a",4,2,0,20000,1024,3,7,258]"#,
        r#"["tag",5,0,20000,"gradient",1024,3,"h.0.mlp.fc.weight"]"#,
        r#"["step",6,1,0]"#,
    ]);
    // THEN buckets and copies are communication buffers, whatever lies in them, and gradients are gradients
    assert_eq!(category(&model, Category::Communication), (6144, 6144));
    assert_eq!(category(&model, Category::Gradient), (1024, 1024));
    assert_eq!(category(&model, Category::Activation), (0, 0));
    assert_eq!(layer(&model, "h.0.mlp.fc").parameter_bytes, 0);
}

#[test]
fn what_was_there_before_memlab_has_a_row_of_its_own() {
    // GIVEN a process that memlab came into: what it found, and a block handed out before it looked
    let model = model_of(&[
        r#"["a",1,1,0,3000,1024,1,0,0]"#,
        r#"["d+",2,1,0,1000,65536,"device","cudaMalloc","libc10_cuda.so",0,0,640]"#,
        r#"["a",3,1,0,1000,2000,0,0,512]"#,
        r#"["a",4,1,0,3000,1024,0,0,512]"#,
        r#"["a",5,1,0,5000,4096,0,0,512]"#,
        r#"["a",6,1,0,10000,8192,0,0,512]"#,
        // WHEN a parameter among it is named, and some of it is given back
        r#"["tag",7,0,5000,"parameter",4000,3,"h.0.mlp.fc.weight"]"#,
        r#"["f",8,1,0,10000]"#,
    ]);
    // THEN it is what it is as far as that is known, and the rest is of before
    assert_eq!(category(&model, Category::BeforeMemlab), (2000, 2000 + 8192));
    assert_eq!(category(&model, Category::Parameter), (4096, 4096));
    assert_eq!(category(&model, Category::Other), (1024, 1024));
    assert_eq!(category(&model, Category::Cached).0, 65536 - 2000 - 4096 - 1024);
    assert_eq!(model.anomalies().total(), 0);
}

#[test]
fn of_what_a_script_without_a_model_makes_nothing_is_known() {
    // GIVEN a script that adds up tensors, and never calls a module
    let model = model_of(&[
        r#"["a",1,1,0,1000,4096,1,0,0]"#,
        r#"["a",2,1,0,10000,2048,1,0,0]"#,
        r#"["f",3,1,0,10000]"#,
        r#"["step",4,1,0]"#,
    ]);
    // THEN they are neither inputs nor anything's temporaries
    assert_eq!(category(&model, Category::Other), (4096, 6144));
    assert_eq!(category(&model, Category::Input), (0, 0));
    assert_eq!(category(&model, Category::Temporary), (0, 0));
}

/// Steps 1 to `steps` of a training with averages of two weights in a list, made by operations that autograd sees and
/// by some that it does not, a data set on the device, a batch of it that a module is called with, a new batch and a loss that
/// somebody keeps at every step.
fn keeping(steps: u64) -> Vec<String> {
    let mut lines: Vec<String> = [
        r#"["a",1,1,0,1000,1024,1,0,4]"#, // The averages.
        r#"["a",2,1,0,3000,1024,1,0,4]"#,
        r#"["a",3,1,0,5000,512,2,0,0]"#,
        r#"["a",4,1,0,6000,512,2,0,0]"#,
        r#"["a",5,1,0,10000,8192,4,0,0]"#, // The data set.
        r#"["a",6,1,0,20000,256,5,0,0]"#,  // The batch.
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
fn what_is_kept_for_good_is_no_batch_and_no_graph() {
    let of = |steps| {
        let lines = keeping(steps);
        model_of(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    };
    // GIVEN too few steps to say
    let model = of(3);
    assert_eq!(category(&model, Category::Other), (0, 0));
    assert_eq!(category(&model, Category::Input).0, 1024 + 8192 + 256 + 256);
    // WHEN there were more
    let model = of(6);
    // THEN averages and data are neither inputs nor activations; the batches are inputs, the losses that pile up activations
    assert_eq!(category(&model, Category::Other).0, 3072 + 8192);
    assert_eq!(category(&model, Category::Input).0, 256 + 256);
    assert_eq!(category(&model, Category::Activation).0, 6 * 128);
    // AND so they were at the peak
    assert_eq!(category(&model, Category::Other).1, 3072 + 8192);
    // AND what is told later stands
    let mut lines = keeping(6);
    lines.push(r#"["tag",900,0,1000,"parameter",1024,3,"average"]"#.to_owned());
    lines.push(r#"["tag",901,0,10000,"input",512,3,""]"#.to_owned());
    let model = model_of(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(category(&model, Category::Parameter).0, 1024);
    assert_eq!(category(&model, Category::Input).0, 8192 + 256 + 256);
    assert_eq!(category(&model, Category::Other).0, 2048);
}
