//! Measures `memlab report` on a job with many ranks.
//!
//! `job_bench [RANKS]` writes a trace for each of 512 ranks into a temporary folder. Each trace is a training of 20 steps
//! with 250 layers, on 60 lines. Rank 3 keeps tensors, and rank 7 runs out of memory. The benchmark prints the time of the
//! workspace's release build to report the job as text, as JSON and as a page, and its peak memory. `job_bench --write
//! FOLDER` only writes the traces.

#![expect(clippy::disallowed_macros, reason = "it prints its own figures")]

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const LAYERS: u64 = 250;
const LINES: u64 = 60;
const STEPS: u64 = 20;
const MIB: u64 = 1 << 20;
const START: u64 = 1_795_163_951_000_000_000;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [option, folder] = &arguments[..]
        && option == "--write"
    {
        fs::create_dir_all(folder)?;
        return write_all(Path::new(folder), 512).map(|_| ());
    }
    let ranks: u64 = arguments.first().map_or(512, |ranks| ranks.parse().expect("a number of ranks"));
    let folder = tempfile::tempdir()?;
    let bytes = write_all(folder.path(), ranks)?;
    println!("{ranks} traces, {} MB", bytes / 1_000_000);
    let program = std::env::current_exe()?;
    let program = program.parent().and_then(Path::parent).expect("target/release/examples").join("memlab");
    let page = folder.path().join("job.html");
    let ways: [(&str, Vec<&str>); 3] =
        [("text", vec![]), ("JSON", vec!["--json"]), ("page", vec!["--html", page.to_str().expect("UTF-8")])];
    let mut most_memory = 0;
    for (name, arguments) in ways {
        let began = Instant::now();
        let mut report = Command::new(&program);
        report.arg("report").args(arguments).arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        most_memory = most_memory.max(memory_of(&mut report)?);
        println!("= report of {ranks} ranks, {name}: {:.2} s", began.elapsed().as_secs_f64());
    }
    println!("the page has {:.1} MB", fs::metadata(&page)?.len() as f64 / 1e6);
    println!("= report of {ranks} ranks, peak memory: {} MiB", most_memory / MIB);
    Ok(())
}

/// Writes a trace for each rank and returns their total size.
fn write_all(folder: &Path, ranks: u64) -> io::Result<u64> {
    let mut bytes = 0;
    for rank in 0..ranks {
        let path = folder.join(format!("{rank}.jsonl"));
        write(&path, rank, ranks)?;
        bytes += fs::metadata(&path)?.len();
    }
    Ok(bytes)
}

fn write(path: &Path, rank: u64, ranks: u64) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let device = rank % 8;
    writeln!(
        out,
        r#"{{"memlab":1,"id":"{rank}","pid":{},"parent_pid":9,"start_unix_ns":{START},"command":["python","train.py"],"directory":"/home/ada","host":"gpu{}","rank":{rank},"local_rank":{device},"world_size":{ranks}}}"#,
        1000 + rank,
        rank / 8
    )?;
    writeln!(
        out,
        r#"{{"device":{device},"name":"NVIDIA H200","total_bytes":{},"bus_id":"0000:1B:0{device}.0"}}"#,
        141_u64 << 30
    )?;
    for line in 1..=LINES {
        writeln!(out, r#"{{"frame":{line},"file":"/home/ada/model.py","line":{line},"function":"forward{line}"}}"#)?;
        writeln!(out, r#"{{"stack":{line},"parent":0,"frame":{line}}}"#)?;
    }
    writeln!(out, r#"{{"layer":1,"parent":0,"type":"Net","name":""}}"#)?;
    for layer in 0..LAYERS {
        writeln!(out, r#"{{"layer":{},"parent":1,"type":"Linear","name":"layers.{layer}"}}"#, layer + 2)?;
    }
    writeln!(out, r#"["used",0,{device},{},{},{}]"#, 512 * MIB, 141_u64 << 30, 512 * MIB)?;
    let (mut time, mut next) = (0, 1_u64 << 40);
    let mut allocate = |out: &mut BufWriter<File>, time: u64, bytes: u64, line: u64, layer: u64| -> io::Result<u64> {
        let address = next;
        next += bytes;
        writeln!(out, r#"["a",{time},1,{device},{address},{bytes},{line},{layer},5]"#)?;
        Ok(address)
    };
    for layer in 0..LAYERS {
        allocate(&mut out, time, 16 * MIB, layer % LINES + 1, layer + 2)?;
    }
    for step in 0..STEPS {
        let mut activations = Vec::new();
        for layer in 0..LAYERS {
            time += 200_000;
            activations.push(allocate(&mut out, time, 24 * MIB, layer % LINES + 1, layer + 2)?);
        }
        if rank == 3 {
            allocate(&mut out, time, 128 * MIB, 7, 0)?;
        }
        if rank == 7 && step == STEPS / 2 {
            writeln!(out, r#"["oom",{time},1,{device},{},{},{},7,9]"#, 512 * MIB, 10_000 * MIB, 10_000 * MIB)?;
        }
        for address in activations.into_iter().rev() {
            time += 400_000;
            writeln!(out, r#"["f",{time},1,{device},{address}]"#)?;
        }
        writeln!(out, r#"["step",{time},1,{step}]"#)?;
    }
    writeln!(out, r#"["end",{time},0,null]"#)?;
    out.flush()
}

/// Runs a command and returns its peak memory in bytes.
///
/// `getrusage` would count Cargo's children too: with `cargo run`, they are children of this process.
fn memory_of(command: &mut Command) -> io::Result<u64> {
    let process = command.spawn()?.id() as libc::pid_t;
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the process is a child of this one that nobody else waits for; both are filled, and are valid if all zeros.
    let (ended, usage) = unsafe { (libc::wait4(process, &mut status, 0, usage.as_mut_ptr()), usage.assume_init()) };
    assert!(ended == process && status == 0, "{command:?} ended with status {status}");
    Ok(usage.ru_maxrss as u64 * 1024)
}
