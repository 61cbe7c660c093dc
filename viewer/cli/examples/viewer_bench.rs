//! Measures the dashboard's processor time, its latency, and the time to open a large trace.
//!
//! `viewer_bench [SECONDS]` follows a simulated process with a million live blocks and 50,000 events a second. For each
//! screen it prints the dashboard's share of a core, and the time from a key press to the answer on the terminal. It then
//! opens a finished trace of 1 GB, with 20,000 live blocks, at its peak and prints the time and the memory. With 0 seconds
//! it only does the second part. `viewer_bench --write FILE` only writes that trace.
//!
//! `viewer_bench --ranks [SECONDS]` follows a job of 512 ranks, each with 500 live blocks, that together write 50,000 events
//! a second. It prints the same figures for the Ranks screen and for one rank, and the time until all traces are read. Then
//! it prints the share of a core while no rank writes.
//!
//! The dashboard is the release build of this workspace, on a pseudo-terminal of 200 by 60.

#![expect(clippy::disallowed_macros, reason = "it prints its own figures")]

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::{DriverKind, Step};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

const LIVE: u64 = 1_000_000;
/// Live blocks of the finished trace: as in the training of a model of about 500 layers.
const LIVE_OF_FINISHED: u64 = 20_000;
/// Ranks of the job, and live blocks of each.
const RANKS: u32 = 512;
const LIVE_OF_RANK: u64 = 500;
const EVENTS_PER_SECOND: u64 = 50_000;
const BLOCK: u64 = 4096;
const STACKS: u32 = 3_000;
const LAYERS: u32 = 200;
/// The backspace key.
const ERASE: &str = "\u{7f}";
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
const SEGMENT: u64 = 20 << 20;
/// Key of each screen, a text that the complete screen shows, and its name.
const SCREENS: [(&str, &str, &str); 7] = [
    ("1", "Device memory", "Overview"),
    ("2", "allocs/s", "Lines"),
    ("3", "params", "Layers"),
    ("4", "Memory map", "Segments"),
    ("5", "ended at", "Steps"),
    ("6", "the latest ", "Events"),
    ("7", "per step", "Processes"),
];

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [option, path] = &arguments[..]
        && option == "--write"
    {
        return write_finished(Path::new(path)).map(|_| ());
    }
    let is_job = arguments.first().is_some_and(|option| option == "--ranks");
    let seconds = arguments.get(usize::from(is_job)).and_then(|seconds| seconds.parse().ok()).unwrap_or(5);
    let folder = std::env::temp_dir().join(format!("memlab-viewer-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = if is_job {
        job(&folder, seconds)
    } else if seconds == 0 {
        open(&folder)
    } else {
        live(&folder, seconds).and_then(|()| open(&folder))
    };
    std::fs::remove_dir_all(&folder)?;
    outcome
}

/// Writes a synthetic trace.
struct Writer<W: Write> {
    out: W,
    started: Instant,
    next: u64,
    /// Addresses of the live blocks, as a ring: the oldest is freed first.
    ring: Vec<u64>,
}

impl<W: Write> Writer<W> {
    fn begin(mut out: W, live: u64, rank: Option<u32>) -> io::Result<Self> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let header = encode::Header {
            version: "0.1.0",
            id: "5f3c9a1be07d4c22",
            pid: std::process::id(),
            parent_pid: 1,
            start_unix_ns: now as u64,
            run: None,
            command: b"python\0train.py\0",
            directory: b"/home/ada/gpt",
            host: host.trim().as_bytes(),
            rank,
            local_rank: rank.map(|rank| rank % 8),
            world_size: rank.map(|_| RANKS),
        };
        out.write_all(encode::header(&mut LineBuffer::<4096>::new(), &header))?;
        out.write_all(encode::device(&mut LineBuffer::<512>::new(), 0, "NVIDIA H200", 141 << 30, None))?;
        for id in 1..=STACKS {
            let (file, function) = (format!("/home/ada/gpt/part_{}.py", id % 40), format!("Part.forward_{}", id % 300));
            let line =
                encode::frame(&mut LineBuffer::<512>::new(), id, file.as_bytes(), Some(id % 900), function.as_bytes())
                    .to_vec();
            out.write_all(&line)?;
            // Chains of twelve frames: the depth of a model's forward.
            let parent = if id % 12 == 1 { 0 } else { id - 1 };
            out.write_all(encode::stack(&mut LineBuffer::<128>::new(), id, parent, id))?;
        }
        for id in 1..=LAYERS {
            let name = if id == 1 { String::new() } else { format!("h.{}.part_{}", id % 24, id) };
            let line = encode::layer(
                &mut LineBuffer::<512>::new(),
                id,
                u32::from(id > 1),
                "Part",
                Some(name.as_bytes()),
                None,
            )
            .to_vec();
            out.write_all(&line)?;
        }
        let mut writer = Self { out, started: Instant::now(), next: 0, ring: Vec::with_capacity(live as usize) };
        for segment in 0..live * BLOCK / SEGMENT + 1 {
            let event = encode::DriverAlloc {
                time: 0,
                thread: 1,
                device: 0,
                address: FIRST_ADDRESS + segment * SEGMENT,
                bytes: SEGMENT,
                kind: DriverKind::Device,
                call: b"cudaMalloc",
                library: b"libc10_cuda.so",
                stack: 0,
                layer: 0,
                flags: 128,
                graph: 0,
                stream: 0,
            };
            writer.out.write_all(encode::driver_alloc(&mut LineBuffer::<512>::new(), &event))?;
        }
        for slot in 0..live {
            writer.alloc(FIRST_ADDRESS + slot * BLOCK)?;
        }
        Ok(writer)
    }

    fn alloc(&mut self, address: u64) -> io::Result<()> {
        let time = self.started.elapsed().as_nanos() as u64;
        self.next += 1;
        let (stack, layer) = (self.next as u32 % STACKS + 1, self.next as u32 % LAYERS + 1);
        let bytes = (self.next % 7 + 1) * 512;
        let line = &mut LineBuffer::<192>::new();
        self.out.write_all(encode::alloc(line, time, 1, 0, address, bytes, stack, layer, 1))?;
        self.ring.push(address);
        Ok(())
    }

    /// Frees a block and allocates another; ends a step at intervals.
    fn churn(&mut self) -> io::Result<()> {
        let time = self.started.elapsed().as_nanos() as u64;
        let slot = (self.next.wrapping_mul(7919) % self.ring.len() as u64) as usize;
        let address = self.ring.swap_remove(slot);
        self.out.write_all(encode::free(&mut LineBuffer::<192>::new(), time, 1, 0, address))?;
        if self.next.is_multiple_of(5_000) {
            let step = (self.next - self.ring.len() as u64) / 5_000;
            self.out.write_all(encode::step(
                &mut LineBuffer::<128>::new(),
                &Step { time, thread: 1, index: step, is_untimed: false },
            ))?;
        }
        self.alloc(address)
    }
}

/// The dashboard on a pseudo-terminal.
struct Dashboard {
    child: Box<dyn Child + Send + Sync>,
    keys: Box<dyn Write + Send>,
    /// The screen, and a condition that signals its changes.
    screen: Arc<(Mutex<vt100::Parser>, Condvar)>,
    _terminal: Box<dyn MasterPty + Send>,
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Dashboard {
    fn start(arguments: &[&str]) -> io::Result<Self> {
        let size = PtySize { rows: 60, cols: 200, pixel_width: 0, pixel_height: 0 };
        let pty = native_pty_system().openpty(size).map_err(failed)?;
        let examples = std::env::current_exe()?;
        let memlab = examples.parent().and_then(Path::parent).map(|folder| folder.join("memlab"));
        let mut command = CommandBuilder::new(memlab.ok_or_else(|| failed("no build folder"))?);
        command.args(arguments);
        command.env("TERM", "xterm-256color");
        command.env("LANG", "C.UTF-8");
        let child = pty.slave.spawn_command(command).map_err(failed)?;
        drop(pty.slave);
        let mut reader = pty.master.try_clone_reader().map_err(failed)?;
        let keys = pty.master.take_writer().map_err(failed)?;
        let one = |number| NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN);
        let screen = Arc::new((Mutex::new(vt100::Parser::new(one(60), one(200), 0)), Condvar::new()));
        let target = screen.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                target.0.lock().unwrap_or_else(PoisonError::into_inner).process(&buffer[..length]);
                target.1.notify_all();
            }
        });
        Ok(Self { child, keys, screen, _terminal: pty.master })
    }

    fn text(&self) -> String {
        self.screen.0.lock().unwrap_or_else(PoisonError::into_inner).screen().contents()
    }

    fn press(&mut self, keys: &str) -> io::Result<()> {
        self.keys.write_all(keys.as_bytes())?;
        self.keys.flush()
    }

    /// Waits until the screen matches, and returns the time.
    ///
    /// Checks the screen only when it changes, because polling would take a core from the dashboard.
    fn wait(&self, what: &str, shows: impl Fn(&str) -> bool) -> io::Result<Duration> {
        const SCREEN_TIMEOUT: Duration = Duration::from_secs(120);
        let started = Instant::now();
        let (screen, changed) = &*self.screen;
        let mut shown = screen.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let text = shown.screen().contents();
            let waited = started.elapsed();
            if shows(&text) {
                return Ok(waited);
            }
            let Some(left) = SCREEN_TIMEOUT.checked_sub(waited) else {
                return Err(failed(format!("no {what} on\n{text}")));
            };
            shown = changed.wait_timeout(shown, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn proc(&self, file: &str) -> io::Result<String> {
        let pid = self.child.process_id().ok_or_else(|| failed("it ended"))?;
        std::fs::read_to_string(format!("/proc/{pid}/{file}"))
    }

    /// Processor time used, in seconds.
    fn cpu(&self) -> io::Result<f64> {
        let stat = self.proc("stat")?;
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        // SAFETY: queries a constant.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        Ok((ticks(11) + ticks(12)) / per_second)
    }

    fn peak_mib(&self) -> io::Result<u64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024)
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn live(folder: &Path, seconds: u64) -> io::Result<()> {
    let path = folder.join("live.jsonl");
    let mut writer = Writer::begin(BufWriter::new(File::create(&path)?), LIVE, None)?;
    writer.out.flush()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let producer = std::thread::spawn(move || -> io::Result<()> {
        let mut written = 0;
        let started = Instant::now();
        while !stopped.load(Ordering::Relaxed) {
            let due = (started.elapsed().as_secs_f64() * EVENTS_PER_SECOND as f64) as u64;
            while written < due {
                writer.churn()?;
                written += 2;
            }
            writer.out.flush()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    let path = path.to_string_lossy().into_owned();
    let started = Instant::now();
    let mut dashboard = Dashboard::start(&["view", &path])?;
    dashboard.wait("dashboard", |text| text.contains("memlab"))?;
    println!("= first screen: {:.0} ms", started.elapsed().as_secs_f64() * 1000.0);
    dashboard.wait("recording", |text| text.contains("recording") && text.contains("Device memory"))?;
    std::thread::sleep(Duration::from_secs(2));
    println!("{EVENTS_PER_SECOND} events a second, {LIVE} blocks alive, {seconds} s a screen:");
    for (key, words, name) in SCREENS {
        let mut answers = Vec::new();
        for _ in 0..9 {
            // Switch to this screen from another one.
            dashboard.press(if key == "1" { "7" } else { "1" })?;
            let other = if key == "1" { SCREENS[6].1 } else { SCREENS[0].1 };
            dashboard.wait(other, |text| text.contains(other))?;
            std::thread::sleep(Duration::from_millis(130));
            let tab = format!("{key} ");
            dashboard.press(key)?;
            answers.push(
                dashboard
                    .wait(words, |text| text.contains(words) || text.contains("loading") && text.contains(&tab))?,
            );
        }
        answers.sort();
        std::thread::sleep(Duration::from_millis(1500));
        let (cpu, since) = (dashboard.cpu()?, Instant::now());
        std::thread::sleep(Duration::from_secs(seconds));
        let share = (dashboard.cpu()? - cpu) / since.elapsed().as_secs_f64() * 100.0;
        println!(
            "  screen {key}: {share:.1} % of a core; key answered in {:.1} ms (median of 9, slowest {:.1})",
            answers[4].as_secs_f64() * 1000.0,
            answers[8].as_secs_f64() * 1000.0
        );
        println!("= {name}, share of a core: {share:.1} %");
        println!("= {name}, answer to a key: {:.1} ms", answers[4].as_secs_f64() * 1000.0);
    }
    println!("= peak memory: {} MiB", dashboard.peak_mib()?);
    stop.store(true, Ordering::Relaxed);
    drop(dashboard);
    producer.join().map_err(|_| failed("the writer failed"))?
}

/// Measures a job of many ranks that all write.
fn job(folder: &Path, seconds: u64) -> io::Result<()> {
    let open = |rank: u32| -> io::Result<Writer<BufWriter<File>>> {
        let out = BufWriter::new(File::create(folder.join(format!("{rank}.jsonl")))?);
        let mut writer = Writer::begin(out, LIVE_OF_RANK, Some(rank))?;
        writer.out.flush()?;
        Ok(writer)
    };
    let mut writers = (0..RANKS).map(open).collect::<io::Result<Vec<_>>>()?;
    let writes = Arc::new(AtomicBool::new(true));
    let stop = Arc::new(AtomicBool::new(false));
    let (is_writing, stopped) = (writes.clone(), stop.clone());
    let producer = std::thread::spawn(move || -> io::Result<()> {
        const BURST: u64 = 64;
        let (mut written, mut turn) = (0, 0);
        let mut started = Instant::now();
        while !stopped.load(Ordering::Relaxed) {
            if !is_writing.load(Ordering::Relaxed) {
                (started, written) = (Instant::now(), 0);
            }
            let due = (started.elapsed().as_secs_f64() * EVENTS_PER_SECOND as f64) as u64;
            while written + BURST < due {
                let writer = &mut writers[turn % RANKS as usize];
                for _ in 0..BURST / 2 {
                    writer.churn()?;
                }
                writer.out.flush()?;
                written += BURST;
                turn += 1;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    let path = folder.to_string_lossy().into_owned();
    let started = Instant::now();
    let mut dashboard = Dashboard::start(&["view", &path])?;
    dashboard.wait("dashboard", |text| text.contains("memlab"))?;
    println!("{RANKS} ranks, {LIVE_OF_RANK} blocks alive in each, {EVENTS_PER_SECOND} events a second together");
    println!("= dashboard, first screen: {:.0} ms", started.elapsed().as_secs_f64() * 1000.0);
    dashboard.wait("ranks", |text| text.contains("per step") && !text.contains("reading"))?;
    println!("= dashboard, all ranks read: {:.2} s", started.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_secs(2));
    let share = |dashboard: &Dashboard, what: &str| -> io::Result<()> {
        let (cpu, since) = (dashboard.cpu()?, Instant::now());
        std::thread::sleep(Duration::from_secs(seconds));
        println!(
            "= dashboard, {what}, share of a core: {:.1} %",
            (dashboard.cpu()? - cpu) / since.elapsed().as_secs_f64() * 100.0
        );
        Ok(())
    };
    share(&dashboard, "the ranks")?;
    for (key, what, words) in [
        ("j", "the next rank", None),
        ("s", "another order", None),
        ("\r", "into the rank", Some("Device memory")),
        ("b", "back to the ranks", Some("per step")),
        ("1", "the overview", Some("Device memory")),
        ("d", "the next rank there", None),
        ("7", "the ranks", Some("per step")),
    ] {
        let mut answers = Vec::new();
        for _ in 0..9 {
            match key {
                "\r" | "1" => {
                    dashboard.press("7")?;
                    dashboard.wait("ranks", |text| text.contains("per step"))?;
                }
                "b" | "7" => {
                    dashboard.press("1")?;
                    dashboard.wait("overview", |text| text.contains("Device memory"))?;
                }
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(430));
            let before = dashboard.text();
            dashboard.press(key)?;
            answers.push(dashboard.wait(what, |text| words.map_or(text != before, |words| text.contains(words)))?);
        }
        answers.sort();
        println!(
            "  key to {what}: {:.1} ms (median of 9, slowest {:.1})",
            answers[4].as_secs_f64() * 1000.0,
            answers[8].as_secs_f64() * 1000.0
        );
    }
    dashboard.press("1")?;
    dashboard.wait("overview", |text| text.contains("Device memory"))?;
    std::thread::sleep(Duration::from_secs(2));
    share(&dashboard, "the overview of one")?;
    writes.store(false, Ordering::Relaxed);
    dashboard.press("7")?;
    std::thread::sleep(Duration::from_secs(8));
    share(&dashboard, "the ranks, none of which writes")?;
    println!("= dashboard, peak memory: {} MiB", dashboard.peak_mib()?);
    stop.store(true, Ordering::Relaxed);
    drop(dashboard);
    producer.join().map_err(|_| failed("the writer failed"))?
}

/// Writes the finished trace; returns its size in bytes.
fn write_finished(path: &Path) -> io::Result<u64> {
    let mut writer = Writer::begin(BufWriter::new(File::create(path)?), LIVE_OF_FINISHED, None)?;
    while std::fs::metadata(path)?.len() < 1_000_000_000 {
        for _ in 0..10_000 {
            writer.churn()?;
        }
    }
    writer.out.write_all(encode::end(&mut LineBuffer::<128>::new(), 1 << 40, Some(0), None))?;
    writer.out.flush()?;
    Ok(std::fs::metadata(path)?.len())
}

fn open(folder: &Path) -> io::Result<()> {
    let path: PathBuf = folder.join("whole.jsonl");
    let bytes = write_finished(&path)?;
    let path = path.to_string_lossy().into_owned();
    for screen in ["overview", "segments"] {
        let started = Instant::now();
        let mut dashboard = Dashboard::start(&["view", &path, "--at", "peak", "--screen", screen])?;
        let first = dashboard.wait("dashboard", |text| text.contains("opening"))?;
        let words = if screen == "segments" { "Memory map" } else { "Device memory" };
        dashboard
            .wait("peak", |text| text.contains(" at the peak ") && text.contains(words) && !text.contains("loading"))?;
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "a trace of {:.2} GB at its peak ({screen}): first screen after {:.0} ms",
            bytes as f64 / 1e9,
            first.as_secs_f64() * 1000.0
        );
        println!("= finished trace, {screen}, opened: {seconds:.1} s");
        println!("= finished trace, {screen}, peak memory: {} MiB", dashboard.peak_mib()?);
        jump(&mut dashboard, screen)?;
    }
    Ok(())
}

/// Jumps back and forth to steps all over the trace.
fn jump(dashboard: &mut Dashboard, screen: &str) -> io::Result<()> {
    let mut answers = Vec::new();
    for step in [2000, 100, 1200, 1900, 40, 700, 1500, 2200, 1000] {
        dashboard.press(&format!("t{}step {step}", ERASE.repeat(40)))?;
        let typed = format!("step {step}");
        dashboard.wait("moment typed", |text| text.contains(&typed))?;
        let shown = format!("after step {step} ");
        let started = Instant::now();
        dashboard.press("\r")?;
        dashboard.wait("moment", |text| text.contains(&shown) && !text.contains("loading"))?;
        answers.push(started.elapsed());
    }
    answers.sort();
    let [.., slowest] = answers[..] else { return Ok(()) };
    println!(
        "  a jump to any moment ({screen}): {:.0} ms (median of 9, slowest {:.0})",
        answers[4].as_secs_f64() * 1000.0,
        slowest.as_secs_f64() * 1000.0
    );
    println!("= finished trace, {screen}, jump to a step: {:.0} ms", answers[4].as_secs_f64() * 1000.0);
    Ok(())
}
