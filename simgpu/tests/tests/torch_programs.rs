//! Unmodified PyTorch on the simulated GPU. Comments in each program describe its scenario.

use simgpu_tests::run_python;

macro_rules! programs {
    ($($name:ident $(: $($option:literal)*)?;)*) => {$(
        #[test]
        fn $name() {
            run_python(concat!(stringify!($name), ".py"), &[$($($option),*)?]);
        }
    )*};
}

programs! {
    attention;
    cnn;
    convolutions;
    cuda_graphs;
    ddp: "--devices" "2";
    expandable_segments;
    gpt2_trainer;
    ipc;
    lstm;
    malloc_async;
    mlp;
    pinned;
    snapshot;
    two_devices: "--devices" "2";
}
