//! `memlab advise` on recorded trainings (`recordings/`), as text and as JSON.

use std::path::PathBuf;
use std::process::Command;

use crate::common::child::{alone, output};

/// Returns the command's output for a recording.
fn advised(recording: &str, options: &[&str]) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recordings/{recording}.jsonl.zst"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlab"));
    alone(command.arg("advise").args(options).arg(file));
    let done = output(&mut command);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// GIVEN a recorded training; THEN the advice matches its snapshot.
macro_rules! advice_on {
    ($($test:ident: $recording:literal $(, $option:literal)*;)*) => {$(
        #[test]
        fn $test() {
            insta::with_settings!({snapshot_path => "advice", prepend_module_to_snapshot => false}, {
                insta::assert_snapshot!(stringify!($test), advised($recording, &[$($option),*]));
            });
        }
    )*};
}

advice_on! {
    a_gpt: "gpt";
    a_gpt_as_json: "gpt", "--json";
    a_gpt_and_a_target: "gpt", "--target", "400MiB";
    a_gpt_and_a_target_that_nothing_reaches: "gpt", "--target", "64MiB", "--json";
    a_gpt_without_times: "untimed";
    attention_that_keeps_its_matrix: "gpt-eager";
    a_residual_network: "resnet";
    a_u_net: "unet";
    adapters_of_a_llama: "llama-lora";
    many_words: "words", "--json";
    gradients_that_stay: "gradients";
    an_optimizer_of_many_tensors: "optimizer";
    lengths_that_change: "lengths";
    a_leak: "leak", "--json";
    workspaces: "streams";
    nothing: "inference";
}
