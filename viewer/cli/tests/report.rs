//! `memlab report` on a run that leaks until it is out of memory, as text and as JSON.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::common::trained;
use memlab_base::text::Style;
use memlab_report::advice::AdvisedTrace;
use memlab_report::report::{write_brief, write_json, write_text};
use memlab_trace::load;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The trace of a training of a small GPT.
struct Training {
    text: String,
    time: u64,
    next: u64,
    /// Freed addresses, by size.
    free: HashMap<u64, Vec<u64>>,
    sizes: HashMap<u64, u64>,
}

impl Training {
    fn new() -> Self {
        let names = r#"{"memlab":1,"version":"0.1.0","id":"5f3c9a1be07d4c22","pid":4242,"parent_pid":4200,"start_unix_ns":1795163951000000000,"command":["/usr/bin/python3","train_gpt.py","--steps","20"],"directory":"/home/ada/gpt","host":"gpu1","rank":0,"local_rank":0,"world_size":2}
{"device":0,"name":"NVIDIA H200","total_bytes":4294967296,"bus_id":"0000:1B:00.0"}
{"software":"torch","version":"2.15.0","root":"/venv/lib/python3.11/site-packages/torch"}
{"frame":1,"file":"/home/ada/gpt/train_gpt.py","line":88,"function":"main"}
{"frame":2,"file":"/home/ada/gpt/train_gpt.py","line":31,"function":"Block.forward"}
{"frame":3,"file":"/home/ada/gpt/train_gpt.py","line":19,"function":"Attention.forward"}
{"frame":4,"file":"/home/ada/gpt/train_gpt.py","line":96,"function":"main"}
{"frame":5,"file":"/home/ada/gpt/train_gpt.py","line":93,"function":"main"}
{"frame":6,"file":"/venv/lib/python3.11/site-packages/torch/optim/adamw.py","line":7,"function":"AdamW.step"}
{"frame":7,"file":"/home/ada/gpt/data.py","line":12,"function":"batches.<locals>.one"}
{"stack":1,"parent":0,"frame":1}
{"stack":2,"parent":1,"frame":2}
{"stack":3,"parent":2,"frame":3}
{"stack":4,"parent":0,"frame":4}
{"stack":5,"parent":0,"frame":5}
{"stack":6,"parent":5,"frame":6}
{"stack":7,"parent":1,"frame":7}
{"layer":1,"parent":0,"type":"GPT","name":""}
{"layer":2,"parent":1,"type":"Block","name":"h.0"}
{"layer":3,"parent":2,"type":"Attention","name":"h.0.attn"}
{"layer":4,"parent":1,"type":"Block","name":"h.1"}
"#;
        let mut training = Self {
            text: names.to_owned(),
            time: 1_000_000_000,
            next: 1 << 40,
            free: HashMap::new(),
            sizes: HashMap::new(),
        };
        for segment in 0..10 {
            let at = (1 << 40) + segment * 256 * MIB;
            training.put(&format!(r#""d+",T,1,0,{at},{},"device","cudaMalloc","libc10_cuda.so",1,0,128"#, 256 * MIB));
        }
        training.put(&format!(r#""d+",T,1,0,64,{},"device","cudaMalloc","libnccl.so.2",1,0,0"#, 64 * MIB));
        training.put(&format!(r#""d+",T,1,-1,128,{},"pinned","cudaHostAlloc","libtorch_cuda.so",7,0,0"#, 16 * MIB));
        training.put(&format!(r#""used",T,0,{},4294967296,{}"#, 3400 * MIB, 3000 * MIB));
        training
    }

    fn put(&mut self, event: &str) {
        self.time += 250_000;
        let _ = writeln!(self.text, "[{}]", event.replace('T', &self.time.to_string()));
    }

    fn alloc(&mut self, mib: u64, stack: u32, layer: u32, flags: u32) -> u64 {
        let address = self.free.get_mut(&mib).and_then(Vec::pop).unwrap_or(self.next);
        if address == self.next {
            self.next += mib * MIB;
        }
        self.sizes.insert(address, mib);
        let thread = if flags & 3 == 2 { 2 } else { 1 };
        self.put(&format!(r#""a",T,{thread},0,{address},{},{stack},{layer},{flags}"#, mib * MIB));
        address
    }

    fn free(&mut self, address: u64) {
        self.put(&format!(r#""f",T,1,0,{address}"#));
        self.free.entry(self.sizes[&address]).or_default().push(address);
    }

    fn tag(&mut self, address: u64, category: &str, mib: u64, name: &str) {
        self.put(&format!(r#""tag",T,0,{address},"{category}",{},1,"{name}""#, mib * MIB));
    }

    fn run(mut self, steps: u64, leak: bool) -> String {
        let weights = [("h.0.attn.qkv.weight", 48), ("h.0.mlp.weight", 64), ("h.1.mlp.weight", 64)];
        let parameters: Vec<u64> = weights.map(|(_, mib)| self.alloc(mib, 1, 0, 64)).to_vec();
        for (address, (name, mib)) in parameters.iter().zip(weights) {
            self.tag(*address, "parameter", mib, name);
        }
        for step in 0..steps {
            let batch = self.alloc(8, 7, 0, 0);
            let kept: Vec<u64> = [(2, 2, 96), (3, 3, 160), (2, 4, 96)]
                .map(|(stack, layer, mib)| self.alloc(mib, stack, layer, 5))
                .to_vec();
            let scratch = self.alloc(32, 3, 3, 5);
            self.free(scratch);
            let loss = self.alloc(if leak { 24 } else { 1 }, 4, 0, 4);
            let gradients: Vec<u64> = weights.map(|(_, mib)| self.alloc(mib, 2, 4, 18)).to_vec();
            kept.iter().for_each(|address| self.free(*address));
            if step == 0 {
                for (address, (name, mib)) in gradients.iter().zip(weights) {
                    self.tag(*address, "gradient", mib, name);
                }
                for (name, mib) in weights {
                    let state = self.alloc(2 * mib, 6, 0, 3);
                    self.tag(state, "optimizer_state", 2 * mib, &format!("{name}:exp_avg"));
                }
            }
            self.put(&format!(r#""step",T,1,{step}"#));
            gradients.iter().for_each(|address| self.free(*address));
            self.free(batch);
            if !leak {
                self.free(loss);
            }
        }
        self.text
    }
}

fn read(name: &str, text: &str) -> (PathBuf, AdvisedTrace) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    (PathBuf::from(name), without_advice(&path))
}

/// A trace of which only the state at its end is tested.
fn without_advice(path: &Path) -> AdvisedTrace {
    AdvisedTrace {
        trace: load(path, &mut |_| std::ops::ControlFlow::Continue(())).unwrap(),
        advice: None,
        peak_step: None,
    }
}

fn text_of((path, loaded): &(PathBuf, AdvisedTrace), columns: usize) -> String {
    let mut out = Vec::new();
    write_text(&mut out, path, loaded, Style { columns, colored: false }).unwrap();
    String::from_utf8(out).unwrap()
}

fn json_of((path, loaded): &(PathBuf, AdvisedTrace)) -> String {
    let mut out = Vec::new();
    write_json(&mut out, path, loaded).unwrap();
    String::from_utf8(out).unwrap()
}

/// A run that leaks 24 MiB a step until PyTorch is out of memory.
fn leaking() -> (PathBuf, AdvisedTrace) {
    let mut trace = Training::new().run(20, true);
    trace += &format!("[\"a\",5000000000,1,0,{},{},2,4,5]\n", 1_u64 << 42, 300 * MIB);
    trace += &format!("[\"oom\",5000100000,1,0,{},{},{},3,3]\n", 700 * MIB, 1300 * MIB, 2560 * MIB);
    trace += "[\"a\",5000200000,1,broken\n[\"end\",5000300000,1,null]\n";
    read("leak.jsonl", &trace)
}

fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("reports");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[test]
fn an_out_of_memory_comes_first_with_a_remedy() {
    snapshot("leak-text", &text_of(&leaking(), 110));
}

#[test]
fn the_short_report_begins_with_the_verdict() {
    // GIVEN a run that leaks until an allocation fails
    let brief = |(path, loaded): &(PathBuf, AdvisedTrace)| {
        let mut out = Vec::new();
        write_brief(&mut out, path, loaded, Style { columns: 110, colored: false }).unwrap();
        String::from_utf8(out).unwrap()
    };
    // THEN the verdict is the error, with its line, AND the findings, the peak and five lines follow
    snapshot("leak-brief", &brief(&leaking()));
    // AND a run without findings fits; growth is denied only after five steps
    for (steps, growth) in [(4, "; too few steps to find growth"), (8, "; nothing grows")] {
        let text = brief(&read("healthy.jsonl", &trained(steps).text));
        let verdict = text.lines().skip_while(|line| !line.starts_with("=>")).take_while(|line| !line.is_empty());
        let verdict = verdict.map(str::trim).collect::<Vec<_>>().join(" ");
        assert!(verdict.starts_with("=> Fits with 10") && verdict.ends_with(growth), "{text}");
    }
}

#[test]
fn the_json_has_the_same_figures() {
    snapshot("leak-json", &json_of(&leaking()));
}

#[test]
fn a_healthy_run_has_no_findings() {
    let trace = Training::new().run(5, false) + "[\"end\",2000000000,0,null]\n";
    let text = text_of(&read("healthy.jsonl", &trace), 110);
    assert!(text.contains("Growth between the ends of steps 1 and 4: none"), "{text}");
    assert!(text.contains("ended with exit code 0"));
    assert!(!text.contains("OUT OF MEMORY") && !text.contains("Note:"), "{text}");
}

#[test]
fn a_training_is_reported_by_epoch_and_by_step() {
    // GIVEN a run that records its training steps, of two epochs
    let told = [
        r#"{"trained":0,"epoch":0,"batch":0,"samples":300,"duration":1000000000,"loss":3.0,"way":"micro-batches","pieces":4,"offloaded":0}"#,
        r#"{"trained":1,"epoch":0,"batch":1,"samples":100,"duration":1000000000,"loss":1.0,"way":"micro-batches","pieces":4,"offloaded":0}"#,
        r#"{"trained":2,"epoch":1,"batch":0,"samples":400,"duration":500000000,"loss":"NaN","way":"lockstep","pieces":8,"offloaded":1073741824}"#,
    ];
    let loaded = read("told.jsonl", &(Training::new().run(4, false) + &told.join("\n") + "\n"));
    // THEN the text has a row for each epoch, with the mean over samples
    let text = text_of(&loaded, 110);
    let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("Training by")).take(4).collect();
    assert_eq!(
        table,
        [
            "Training by epoch",
            "  epoch  steps   loss  samples  samples/s  offloaded  computed",
            "      0      2  2.500      400        200        0 B  4 pieces, micro-batches",
            "      1      1    NaN      400        800   1.00 GiB  8 pieces, lockstep",
        ]
    );
    // AND the JSON has its steps: no values for the last one, and no number for a loss that is not one
    let report: Value = serde_json::from_str(&json_of(&loaded)).unwrap();
    let steps = report["steps"].as_array().unwrap();
    let first = &steps[0];
    assert_eq!((&first["loss"], &first["samples"], &first["pieces"]), (&3.0.into(), &300.into(), &4.into()));
    assert_eq!((&first["way"], &first["samples_per_second"]), (&"micro-batches".into(), &300.0.into()));
    assert_eq!((&steps[2]["loss"], &steps[2]["offloaded_bytes"]), (&Value::Null, &(1_u64 << 30).into()));
    assert!(steps[3].get("loss").is_none() && steps[3].get("samples").is_none());
}

#[test]
fn lines_layers_and_categories_sum() {
    let report: Value = serde_json::from_str(&json_of(&leaking())).unwrap();
    let sum = |rows: &str, key: &str| -> u64 {
        report[rows].as_array().unwrap().iter().map(|row| row[key].as_u64().unwrap()).sum()
    };
    let device = &report["devices"][0];
    let of_device = |key: &str| device[key].as_u64().unwrap();
    assert_eq!(sum("lines", "live_bytes_at_peak"), of_device("peak_allocated_bytes"));
    assert_eq!(sum("lines", "live_bytes_at_end"), of_device("allocated_bytes"));
    assert_eq!(sum("layers", "live_bytes_at_peak"), of_device("peak_allocated_bytes"));
    assert_eq!(sum("categories", "bytes_at_peak"), of_device("used_bytes_at_peak"));
    assert_eq!(sum("categories", "bytes_at_end"), of_device("used_bytes"));
    // The documented keys of the JSON.
    for (rows, keys) in [
        (
            "devices",
            "index name total_bytes peak_allocated_bytes peak_reserved_bytes peak_used_bytes allocated_bytes reserved_bytes",
        ),
        (
            "lines",
            "device file line function allocations allocated_bytes live_bytes_at_peak peak_live_bytes live_bytes_at_end \
             backward_bytes_at_peak backward_bytes_at_end",
        ),
        (
            "layers",
            "device name type live_bytes_at_peak forward_bytes backward_bytes parameter_bytes gradient_bytes \
             optimizer_state_bytes activation_bytes",
        ),
        ("categories", "device name bytes_at_peak bytes_at_end"),
        ("steps", "index peak_allocated_bytes allocated_bytes_at_end"),
        ("ooms", "device requested_bytes file line layer allocated_bytes reserved_bytes largest_free_block_bytes"),
    ] {
        for key in keys.split(' ') {
            assert!(report[rows][0].get(key).is_some(), "{rows}.{key}");
        }
    }
    for key in ["pid", "command", "rank", "exit"] {
        assert!(report["process"].get(key).is_some(), "process.{key}");
    }
    // Relative files are made absolute with the program's directory.
    let files: Vec<&str> = report["lines"].as_array().unwrap().iter().filter_map(|row| row["file"].as_str()).collect();
    assert!(files.iter().all(|file| file.starts_with('/')), "{files:?}");
}

#[test]
fn a_trace_cannot_control_the_terminal() {
    // GIVEN a trace with escape codes in every name
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../trace/tests/broken/hostile-escapes.jsonl");
    let hostile = (PathBuf::from("a\u{1b}[2Jb.jsonl"), without_advice(&path));
    // THEN neither report has control characters except line ends
    for report in [text_of(&hostile, 110), json_of(&hostile)] {
        let unsafe_ones: Vec<char> =
            report.chars().filter(|character| *character != '\n' && memlab_base::text::is_unsafe(*character)).collect();
        assert!(unsafe_ones.is_empty(), "{unsafe_ones:?}\n{report}");
    }
    // AND the JSON decodes to the names in the trace
    let report: Value = serde_json::from_str(&json_of(&hostile)).unwrap();
    assert_eq!(report["lines"][0]["function"], "\u{1b}[31mf\u{9b}2J\u{202e}");
}

#[test]
fn every_line_fits_the_width() {
    for columns in [80, 110, 160] {
        let text = text_of(&leaking(), columns);
        let too_long: Vec<&str> =
            text.lines().filter(|line| memlab_base::text::width(line) > columns.max(100)).collect();
        assert!(too_long.is_empty(), "{too_long:#?}");
    }
}

#[test]
fn a_trace_without_a_device_or_a_step_has_a_report() {
    let (path, loaded) = read("bare.jsonl", "{\"memlab\":1,\"pid\":7}\n");
    let bare = (path, loaded);
    let text = text_of(&bare, 110);
    assert!(text.contains("No GPU memory was allocated.") && text.contains("no end was recorded"), "{text}");
    let report: Value = serde_json::from_str(&json_of(&bare)).unwrap();
    assert_eq!(report["process"]["exit"], Value::Null);
    assert_eq!(report["lines"], Value::Array(Vec::new()));
}

#[test]
fn a_process_without_pytorch_is_reported_by_caller() {
    let trace = format!(
        "{{\"memlab\":1,\"pid\":7,\"command\":[\"./saxpy\"]}}\n{{\"device\":0,\"name\":\"NVIDIA H200\",\"total_bytes\":4294967296}}\n\
         [\"d+\",1000,1,0,4096,{},\"device\",\"cudaMalloc\",\"saxpy\",0,0,0]\n[\"end\",2000,0,null]\n",
        512 * MIB
    );
    let text = text_of(&read("saxpy.jsonl", &trace), 110);
    assert!(text.contains("saxpy  cudaMalloc"), "{text}");
    assert!(text.contains("Peak: 512 MiB in use") && !text.contains("optimizer step"), "{text}");
}

#[test]
fn a_report_without_steps_does_not_mention_them() {
    let trace = "{\"memlab\":1,\"pid\":7}\n[\"a\",1000,1,0,4096,1048576,0,0,0]\n[\"end\",2000,0,null]\n";
    let text = text_of(&read("infer.jsonl", trace), 110);
    assert!(text.contains("Peak: 1.00 MiB allocated") && !text.contains("optimizer step"), "{text}");
}

#[test]
fn an_out_of_memory_before_the_first_sample_has_the_known_figures() {
    let trace = format!(
        "{{\"memlab\":1,\"pid\":7}}\n{{\"device\":0,\"name\":\"H200\",\"total_bytes\":4294967296}}\n\
         [\"d+\",1,1,0,4096,{},\"device\",\"cudaMalloc\",\"libc10_cuda.so\",0,0,128]\n[\"a\",2,1,0,4096,{0},0,0,0]\n\
         [\"d+\",3,1,0,64,{},\"device\",\"cudaMalloc\",\"libnccl.so.2\",0,0,0]\n[\"oom\",4,1,0,{},{0},{0},0,0]\n",
        512 * MIB,
        64 * MIB,
        4096 * MIB
    );
    let text = text_of(&read("oom.jsonl", &trace), 110);
    assert!(text.contains("64.0 MiB of other driver memory") && text.contains("was not sampled yet"), "{text}");
    assert!(!text.contains("free on the device of"), "{text}");
}

#[test]
fn the_rows_of_the_layers_add_up() {
    // GIVEN a report with a workspace and inputs among the layers
    let report = read("steps.jsonl", &Training::new().run(3, true));
    for layer in report.1.trace.model.layers(0) {
        assert_eq!(layer.categories_at_peak.iter().sum::<u64>(), layer.live_bytes_at_peak, "{layer:?}");
    }
    assert!(text_of(&report, 120).contains("activations    others  layer"), "{}", text_of(&report, 120));
}
