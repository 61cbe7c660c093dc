//! Measures the time and memory of replaying a trace.
//!
//! `replay_bench [EVENTS]` writes a synthetic trace of `EVENTS` events (10 million by default) to a temporary file. The
//! trace is shaped like training: 3,000 stacks 12 frames deep, 200 layers, 100,000 live blocks, short-lived blocks between
//! them, steps and tags. A separate process then reads the trace like `memlab report`. `replay_bench` prints that process's
//! time and peak resident memory.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::load;
use memlab_trace::record::{DriverKind, Step, TagCategory};

const STACKS: u32 = 3_000;
const LAYERS: u32 = 200;
const LIVE: usize = 100_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let result = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--read"), Some(path)) => read(Path::new(&path)),
        (Some("--write"), Some(path)) => write(Path::new(&path), 10_000_000),
        (events, _) => bench(events.and_then(|events| events.parse().ok()).unwrap_or(10_000_000)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(events: u64) -> io::Result<()> {
    let path = std::env::temp_dir().join(format!("memlab-replay-{}.jsonl", std::process::id()));
    let cleanup = Remove(path.clone());
    write(&path, events)?;
    let bytes = std::fs::metadata(&path)?.len();
    println!("trace: {events} events, {bytes} bytes, {:.1} bytes an event", bytes as f64 / events as f64);
    // Three runs, of which the best counts, since other processes run on the machine.
    for _ in 0..3 {
        Command::new(std::env::current_exe()?).arg("--read").arg(&path).status()?;
    }
    drop(cleanup);
    Ok(())
}

/// Removes the trace on every exit path.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn read(path: &Path) -> io::Result<()> {
    let start = Instant::now();
    let loaded = load(path, &mut |_| ControlFlow::Continue(())).map_err(io::Error::other)?;
    let seconds = start.elapsed().as_secs_f64();
    let processor = processor_seconds()?;
    let view = Instant::now();
    let (lines, layers) = (loaded.model.lines(0).len(), loaded.model.layers(0).len());
    let view_ms = view.elapsed().as_secs_f64() * 1e3;
    let segments = Instant::now();
    let holes = loaded.model.segments(0).free_bytes;
    let segments_ms = segments.elapsed().as_secs_f64() * 1e3;
    let events = loaded.model.events();
    println!(
        "replayed {events} events in {seconds:.2} s ({processor:.2} s of the replaying thread's processor time, {:.0} ns an event), peak memory {} MiB; \
         {lines} lines and {layers} layers shown in {view_ms:.1} ms, segments in {segments_ms:.1} ms ({holes} free), \
         anomalies {}",
        processor * 1e9 / events as f64,
        peak_rss_kib()? / 1024,
        loaded.model.anomalies().total(),
    );
    println!("= {events} events: {seconds:.2} s");
    println!("= an event: {:.0} ns", processor * 1e9 / events as f64);
    println!("= peak memory: {} MiB", peak_rss_kib()? / 1024);
    Ok(())
}

/// Returns the peak resident memory of this process, from `/proc/self/status`.
fn peak_rss_kib() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0))
}

/// Returns the processor time of the main thread, which replays. It depends less on the machine's load than wall time.
fn processor_seconds() -> io::Result<f64> {
    let spent = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds = spent.split_whitespace().next().and_then(|field| field.parse::<u64>().ok());
    Ok(nanoseconds.unwrap_or(0) as f64 / 1e9)
}

fn write(path: &Path, events: u64) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut buffer = LineBuffer::<4096>::new();
    write_definitions(&mut out, &mut buffer)?;

    const BASE: u64 = 140_213_447_884_800;
    const SLOT: u64 = 2 << 20;
    let mut random = fastrand::Rng::with_seed(1);
    let mut time = 1_834_022_117;
    // Long-lived blocks, and the free slots between them.
    let mut live: Vec<u64> = Vec::with_capacity(LIVE);
    let mut free: Vec<u64> = (0..LIVE as u64 + 64).rev().map(|index| BASE + index * SLOT).collect();
    let mut step = 0;
    let mut written = 0;
    while written < events {
        time += 300 + random.u64(..2_000);
        let stack = 1 + random.u64(..u64::from(STACKS)) as u32;
        let layer = stack % LAYERS + 1;
        let phase = match written % 3_000 {
            0..1_000 => 1 | 4,
            1_000..2_700 => 2 | 16,
            _ => 3,
        };
        let (layer, thread) = if phase == 3 { (0, 1) } else { (layer, 1 + (phase >> 1 & 1)) };
        let address = free.pop().unwrap_or(BASE);
        let bytes = 512 * (1 + random.u64(..4_000));
        out.write_all(encode::alloc(&mut buffer, time, thread, 0, address, bytes, stack, layer, phase))?;
        written += 1;
        // One block in three is long-lived; at the limit, each new one replaces another.
        let gone = if random.u64(..3) > 0 {
            Some(address)
        } else {
            live.push(address);
            (live.len() >= LIVE).then(|| live.swap_remove(random.u64(..LIVE as u64 - 1) as usize))
        };
        if let Some(gone) = gone {
            out.write_all(encode::free(&mut buffer, time + 90, thread, 0, gone))?;
            free.push(gone);
            written += 1;
        }
        if written / 3_000 > step {
            if let Some(address) = live.last() {
                let name = format!("h.{}.mlp.fc.weight", step % 100);
                out.write_all(encode::tag(&mut buffer, time, 0, *address, TagCategory::Gradient, 4096, 1, name, b""))?;
            }
            out.write_all(encode::step(&mut buffer, &Step { time, thread: 1, index: step, is_untimed: false }))?;
            step += 1;
        }
    }
    out.write_all(encode::end(&mut buffer, time, Some(0), None))?;
    out.flush()
}

fn write_definitions(out: &mut impl Write, buffer: &mut LineBuffer<4096>) -> io::Result<()> {
    let header = encode::Header {
        version: "0.1.0",
        id: "5f3c9a1be07d4c22",
        pid: 4242,
        parent_pid: 4200,
        start_unix_ns: 1_795_163_951_000_000_000,
        run: None,
        command: b"python\0train.py\0",
        directory: b"/home/ada/gpt",
        host: b"gpu1",
        rank: None,
        local_rank: None,
        world_size: None,
    };
    out.write_all(encode::header(buffer, &header))?;
    out.write_all(encode::device(buffer, 0, "NVIDIA H200", 150_754_820_096, None))?;
    let mut frames = 0;
    for stack in 1..=STACKS {
        // Stacks of twelve frames: eight of torch and four of the user.
        let depth = (stack - 1) % 12;
        let (folder, parent) =
            if depth < 4 { ("/home/ada/gpt", stack - 1) } else { ("/venv/site-packages/torch", stack - 1) };
        frames += 1;
        let file = format!("{folder}/file{}.py", stack % 40);
        out.write_all(encode::frame(buffer, frames, file, Some(stack % 900), "Block.forward"))?;
        out.write_all(encode::stack(buffer, stack, if depth == 0 { 0 } else { parent }, frames))?;
    }
    for layer in 1..=LAYERS {
        let name = format!("h.{}.mlp.fc", layer / 2);
        let (parent, name) = if layer == 1 { (0, "") } else { (1, name.as_str()) };
        out.write_all(encode::layer(buffer, layer, parent, "Linear", Some(name.as_bytes()), None))?;
    }
    for segment in 0..100_u64 {
        let event = encode::DriverAlloc {
            time: 1,
            thread: 1,
            device: 0,
            address: 140_213_447_884_800 + segment * (2 << 30),
            bytes: 2 << 30,
            kind: DriverKind::Device,
            call: b"cudaMalloc",
            library: b"libc10_cuda.so",
            stack: 5,
            layer: 7,
            flags: 129,
            graph: 0,
            stream: 0,
        };
        out.write_all(encode::driver_alloc(buffer, &event))?;
    }
    out.write_all(encode::used(buffer, 2, 0, 215 << 30, 256 << 30, None))
}
