//! Reading complete traces, broken ones, and ones that are still being written.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memlab_trace::{Follower, Loaded, Model, ReadError, load, load_whole};

fn broken(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken").join(name)
}

fn read(path: &Path) -> Result<Loaded, ReadError> {
    load(path, &mut |_| ControlFlow::Continue(()))
}

/// Returns the error for a fixture, without the folder.
fn error_of(name: &str) -> String {
    let path = broken(name);
    let error = read(&path).err().unwrap_or_else(|| panic!("{name} was read")).to_string();
    error.replace(&format!("{}/", path.parent().unwrap().display()), "")
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("memlab-reading-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const HEADER: &str = "{\"memlab\":1,\"version\":\"0.1.0\",\"pid\":4242}\n";

fn alloc(index: u64) -> String {
    format!("[\"a\",{},1,0,{},512,1,0,4]\n", index * 1000, index * 4096)
}

#[test]
fn files_that_are_not_traces_are_errors() {
    let not_a_trace = "not a memlab trace: pass a .jsonl or .jsonl.zst file written by `memlab run` or libmemlab.so";
    assert_eq!(error_of("not-a-trace.jsonl"), format!("not-a-trace.jsonl: {not_a_trace}"));
    assert_eq!(error_of("other-json.jsonl"), format!("other-json.jsonl: {not_a_trace}"));
    assert_eq!(error_of("binary.jsonl"), format!("binary.jsonl: {not_a_trace}"));
    let empty = "the trace is empty: the process ended before its first CUDA allocation was written; record again, and \
                 read the program's own error output";
    assert_eq!(error_of("empty.jsonl"), format!("empty.jsonl: {empty}"));
    assert_eq!(error_of("only-nuls.jsonl"), format!("only-nuls.jsonl: {empty}"));
    assert_eq!(
        error_of("half-header.jsonl"),
        "half-header.jsonl: the trace ends within its first line and contains no events"
    );
    assert_eq!(
        error_of("newer.jsonl"),
        "newer.jsonl: written by a newer memlab (format 7, this one reads up to 1): upgrade memlab"
    );
    assert_eq!(error_of("missing.jsonl"), "missing.jsonl: no such file");
    let folder = std::env::temp_dir();
    let error = read(&folder).err().unwrap().to_string();
    assert_eq!(error, format!("{}: cannot be read: Is a directory", folder.display()));
}

#[test]
fn a_truncated_trace_is_read_up_to_its_last_complete_line() {
    let loaded = read(&broken("truncated.jsonl")).unwrap();
    assert!(loaded.truncated);
    assert_eq!((loaded.model.events(), loaded.skipped.count), (2, 0));
}

#[test]
fn a_last_line_without_a_newline_is_complete() {
    let folder = Folder::new("newline");
    let path = folder.file("t.jsonl", (HEADER.to_owned() + &alloc(1) + alloc(2).trim_end()).as_bytes());
    let loaded = read(&path).unwrap();
    assert!(!loaded.truncated);
    assert_eq!(loaded.model.events(), 2);
}

#[test]
fn garbled_lines_are_skipped_and_counted() {
    let loaded = read(&broken("garbled.jsonl")).unwrap();
    assert!(!loaded.truncated);
    assert_eq!(loaded.model.device(0).unwrap().allocations, 4);
    assert_eq!(loaded.skipped.count, 7);
    let first: Vec<_> = loaded.skipped.first.iter().map(|line| (line.line, line.reason.as_str())).collect();
    assert_eq!(
        first,
        [
            (5, "an element is not a number"),
            (7, "neither a JSON object nor a JSON array"),
            (10, "a number is negative"),
            (11, "invalid type: string \"x\", expected u32"),
            (12, "an element is missing"),
        ]
    );
    let text = fs::read(broken("garbled.jsonl")).unwrap();
    assert!(text[loaded.skipped.first[0].offset as usize..].starts_with(b"[\"a\",1,2,three]"));
}

#[test]
fn unwritten_reservations_are_not_garbled_lines() {
    // GIVEN a trace of a process killed during three appends, not yet trimmed at its end
    let loaded = read(&broken("nuls.jsonl")).unwrap();
    // THEN every finished line is read, and nothing counts as garbled
    let model = &loaded.model;
    assert_eq!((loaded.truncated, loaded.skipped.count), (false, 0));
    assert_eq!(model.device(0).unwrap().allocations, 4);
    let times: Vec<u64> = model.segments(0).segments.iter().map(|segment| segment.address).collect();
    assert!(times.is_empty());
    assert_eq!(model.time(), 7000);
    // AND a header after a hole is a header
    assert_eq!(read(&broken("nuls-first.jsonl")).unwrap().model.events(), 1);
}

#[test]
fn loops_and_numbers_out_of_range_are_harmless() {
    let loaded = read(&broken("hostile-loops.jsonl")).unwrap();
    let model = loaded.model;
    let device = model.device(0).unwrap();
    assert_eq!((loaded.skipped.count, device.allocated_bytes), (0, 3 * 512));
    assert_eq!(model.lines(0).iter().map(|line| line.live_bytes).sum::<u64>(), 3 * 512);
    assert_eq!(model.layers(0).iter().map(|layer| layer.live_bytes).sum::<u64>(), 3 * 512);
    assert_eq!(model.frames(3).len(), 1);
    assert_eq!((model.anomalies().impossible_events, model.anomalies().unknown_frees), (4, 1));
    model.write_keyframe(&mut std::io::sink()).unwrap();
}

#[test]
fn control_characters_are_kept_for_the_viewer_to_strip() {
    let model = read(&broken("hostile-escapes.jsonl")).unwrap().model;
    assert_eq!(&*model.lines(0)[0].line.as_ref().unwrap().file, "/home/ada/\u{1b}]0;pwned\u{7}/x.py");
}

#[test]
fn compressed_traces_are_recognized_by_their_content() {
    let folder = Folder::new("zstd");
    let mut text = HEADER.to_owned();
    (1..200_000).for_each(|index| text += &alloc(index));
    let compressed = zstd::encode_all(text.as_bytes(), 1).unwrap();
    // GIVEN a compressed trace whose name has no .zst
    let path = folder.file("t.jsonl", &compressed);
    let mut seen = Vec::new();
    let loaded = load(&path, &mut |progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    });
    // THEN it is read, and its progress counts compressed bytes
    assert_eq!(loaded.unwrap().model.events(), 199_999);
    assert!(seen.iter().all(|progress| progress.bytes_total == compressed.len() as u64));
    assert_eq!(seen.last().unwrap().bytes_read, compressed.len() as u64);
    // AND a truncated trace is read up to its end
    let path = folder.file("cut.jsonl.zst", &compressed[..compressed.len() / 2]);
    let loaded = read(&path).unwrap();
    assert!(loaded.truncated && loaded.model.events() > 10_000);
    // AND it cannot be followed
    let error = Follower::open(&path).err().unwrap().to_string();
    assert!(error.ends_with("a compressed trace cannot be followed while it grows: use `memlab report` on it"));
}

#[test]
fn reading_can_be_cancelled() {
    let folder = Folder::new("cancel");
    let mut text = HEADER.to_owned();
    (1..200_000).for_each(|index| text += &alloc(index));
    let path = folder.file("t.jsonl", text.as_bytes());
    let loaded = load(&path, &mut |_| ControlFlow::Break(())).unwrap();
    assert!(loaded.cancelled && !loaded.truncated);
    assert!((1..199_999).contains(&loaded.model.events()));
}

#[test]
fn an_endless_line_is_skipped() {
    let folder = Folder::new("overlong");
    let long = "x".repeat(40 << 20);
    let path = folder.file("t.jsonl", (HEADER.to_owned() + &alloc(1) + &long + "\n" + &alloc(2)).as_bytes());
    let loaded = read(&path).unwrap();
    assert_eq!((loaded.model.events(), loaded.skipped.count), (2, 1));
    assert_eq!(loaded.skipped.first[0].reason, "the line is too long for a trace");
    // AND the same for a follower
    let mut follower = Follower::open(&path).unwrap();
    let mut model = Model::new();
    while follower.poll(&mut model).unwrap().more {}
    assert_eq!(model.events(), 2);
}

/// A trace that this test writes to.
struct Growing {
    file: File,
    path: PathBuf,
}

impl Growing {
    fn new(folder: &Folder) -> Self {
        let path = folder.file("t.jsonl", HEADER.as_bytes());
        Self { file: OpenOptions::new().append(true).open(&path).unwrap(), path }
    }

    fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.file.write_all(bytes.as_ref()).unwrap();
    }
}

#[test]
fn a_follower_sees_lines_as_they_are_finished() {
    let folder = Folder::new("follow");
    let mut trace = Growing::new(&folder);
    let mut follower = Follower::open(&trace.path).unwrap();
    let mut model = Model::new();
    assert_eq!(follower.poll(&mut model).unwrap().events, 0);
    assert_eq!(model.header().unwrap().pid, 4242);
    trace.write(alloc(1) + &alloc(2)[..10]);
    assert_eq!(follower.poll(&mut model).unwrap().events, 1);
    assert_eq!(follower.poll(&mut model).unwrap().events, 0);
    trace.write(alloc(2)[10..].to_owned() + &alloc(3));
    assert_eq!(follower.poll(&mut model).unwrap().events, 2);
    // The zeros of a preallocated file are not lines yet.
    trace.write([0; 100_000]);
    let polled = follower.poll(&mut model).unwrap();
    assert_eq!((polled.events, polled.more, polled.restarted), (0, false, false));
    assert_eq!(follower.skipped().count, 0);
}

#[test]
fn a_follower_can_start_before_the_first_line() {
    let folder = Folder::new("early");
    let path = folder.file("t.jsonl", &[0; 4096]);
    let mut follower = Follower::open(&path).unwrap();
    let mut model = Model::new();
    assert_eq!(follower.poll(&mut model).unwrap().events, 0);
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all((HEADER.to_owned() + &alloc(1)).as_bytes()).unwrap();
    assert_eq!(follower.poll(&mut model).unwrap().events, 1);
}

#[test]
fn a_follower_waits_for_an_unfinished_line_with_a_timeout() {
    let folder = Folder::new("hole");
    let mut trace = Growing::new(&folder);
    let mut follower = Follower::open(&trace.path).unwrap();
    let mut model = Model::new();
    // GIVEN a line whose first byte is not stored yet, between two finished lines
    let unfinished = "\0".to_owned() + &alloc(2)[1..];
    trace.write(alloc(1) + &unfinished + &alloc(3));
    let start = Instant::now();
    // THEN the follower stops before it
    assert_eq!(follower.poll_at(start, &mut model).unwrap().events, 1);
    assert_eq!(follower.poll_at(start + Duration::from_millis(1900), &mut model).unwrap().events, 0);
    // WHEN the timeout has passed THEN it continues after it
    assert_eq!(follower.poll_at(start + Duration::from_millis(2100), &mut model).unwrap().events, 1);
    // AND waits again at the next
    trace.write(unfinished + &alloc(4));
    assert_eq!(follower.poll_at(start + Duration::from_millis(2200), &mut model).unwrap().events, 0);
    // WHEN the writer is dead THEN it does not wait
    follower.set_writer_dead();
    assert_eq!(follower.poll_at(start + Duration::from_millis(2300), &mut model).unwrap().events, 1);
    assert_eq!(follower.skipped().count, 0);
}

#[test]
fn a_follower_restarts_when_the_file_is_replaced_or_truncated() {
    let folder = Folder::new("replaced");
    let mut trace = Growing::new(&folder);
    trace.write(alloc(1) + &alloc(2) + &alloc(3));
    let mut follower = Follower::open(&trace.path).unwrap();
    let mut model = Model::new();
    assert_eq!(follower.poll(&mut model).unwrap().events, 3);
    // WHEN another file replaces it
    let other = folder.file("other.jsonl", (HEADER.to_owned() + &alloc(1)).as_bytes());
    fs::rename(other, &trace.path).unwrap();
    let polled = follower.poll(&mut model).unwrap();
    assert!(polled.restarted);
    assert_eq!(model.events(), 1);
    // WHEN it is truncated
    fs::write(&trace.path, HEADER).unwrap();
    assert!(follower.poll(&mut model).unwrap().restarted);
    assert_eq!(model.events(), 0);
    // WHEN it is deleted THEN the model is unchanged
    fs::remove_file(&trace.path).unwrap();
    assert!(!follower.poll(&mut model).unwrap().restarted);
}

#[test]
fn a_follower_of_a_file_that_is_not_a_trace_fails() {
    let mut model = Model::new();
    for name in ["not-a-trace.jsonl", "newer.jsonl"] {
        let mut follower = Follower::open(&broken(name)).unwrap();
        let error = follower.poll(&mut model).unwrap_err().to_string();
        assert!(error.ends_with(&error_of(name)), "{error}");
    }
}

/// A trace condensed to a header, a keyframe and a gap up to `gap`, with the lines after it.
fn condensed(model: &Model, gap: usize, later: &str) -> Vec<u8> {
    let mut file = HEADER.as_bytes().to_vec();
    model.write_keyframe(&mut file).unwrap();
    file.extend_from_slice(format!("{{\"skip\":{gap}}}\n").as_bytes());
    file.resize(gap, 0);
    file.extend_from_slice(later.as_bytes());
    file
}

#[test]
fn a_condensed_trace_has_a_gap_after_its_keyframe() {
    // GIVEN a trace whose first two events became a keyframe, with a gap of 40 MB up to the third
    let folder = Folder::new("condensed");
    let first = folder.file("first.jsonl", (HEADER.to_owned() + &alloc(1) + &alloc(2)).as_bytes());
    let before = read(&first).unwrap().model;
    let path = folder.file("t.jsonl", &condensed(&before, 40_000_000, &alloc(3)));
    // THEN it is read completely
    let loaded = read(&path).unwrap();
    assert_eq!((loaded.model.events(), loaded.skipped.count, loaded.truncated), (3, 0, false));
    // AND a follower does not wait at the gap
    let mut follower = Follower::open(&path).unwrap();
    let mut model = Model::new();
    while follower.poll(&mut model).unwrap().more {}
    assert_eq!(model.events(), 3);
    // AND it reads the next line
    OpenOptions::new().append(true).open(&path).unwrap().write_all(alloc(4).as_bytes()).unwrap();
    assert_eq!(follower.poll(&mut model).unwrap().events, 1);
    assert_eq!(model.device(0).unwrap().live_blocks, 4);
}

#[test]
fn an_interrupted_condensation_continues_in_the_file_beside_the_trace() {
    let text = HEADER.to_owned() + &alloc(1) + &alloc(2);
    for stage in 0..3 {
        // GIVEN a process killed while it condensed its trace: before, during or after writing the keyframe
        let folder = Folder::new(&format!("beside-{stage}"));
        let path = folder.file("t.jsonl", text.as_bytes());
        let before = read(&path).unwrap().model;
        let mut next = condensed(&before, 3_000_000, &(alloc(3) + &alloc(4)));
        match stage {
            0 => next[HEADER.len()..3_000_000].fill(0),
            1 => next[80..3_000_000].fill(0),
            _ => {}
        }
        folder.file("t.jsonl.next", &next);
        // THEN the whole trace is the content of both files, each event once
        let loaded = load_whole(&path, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((loaded.model.events(), loaded.skipped.count, loaded.truncated), (4, 0, false), "stage {stage}");
        assert_eq!(loaded.model.device(0).unwrap().live_blocks, 4);
        // AND the first file alone has only its own events
        assert_eq!(read(&path).unwrap().model.events(), 2);
        // AND a follower continues in the second file once the writer is dead
        let mut follower = Follower::open(&path).unwrap();
        let mut model = Model::new();
        while follower.poll(&mut model).unwrap().more {}
        assert_eq!(model.events(), 2);
        follower.set_writer_dead();
        while follower.poll(&mut model).unwrap().more {}
        assert_eq!((model.events(), follower.skipped().count), (4, 0), "stage {stage}");
        assert!(!follower.poll(&mut model).unwrap().restarted);
    }
}

#[test]
fn files_of_another_process_beside_a_trace_are_ignored() {
    let folder = Folder::new("stale");
    let start =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() + 86_400_000_000_000;
    let header = format!("{{\"memlab\":1,\"pid\":4242,\"start_unix_ns\":{start}}}\n");
    let path = folder.file("t.jsonl", (header + &alloc(1)).as_bytes());
    let old = HEADER.to_owned() + "\0" + &alloc(2);
    folder.file("t.jsonl.next", old.as_bytes());
    assert_eq!(load_whole(&path, &mut |_| ControlFlow::Continue(())).unwrap().model.events(), 1);
}

#[test]
fn files_of_the_user_beside_a_trace_are_ignored() {
    // GIVEN a trace, and beside it a text file, or a pipe without a writer
    let folder = Folder::new("users");
    let path = folder.file("t.jsonl", (HEADER.to_owned() + &alloc(1)).as_bytes());
    let beside = folder.file("t.jsonl.next", ("notes\n\0".to_owned() + &alloc(2)).as_bytes());
    for kind in ["text", "pipe"] {
        if kind == "pipe" {
            std::fs::remove_file(&beside).unwrap();
            assert!(Command::new("mkfifo").arg(&beside).status().unwrap().success());
        }
        // THEN the trace is read alone, without waiting
        assert_eq!(load_whole(&path, &mut |_| ControlFlow::Continue(())).unwrap().model.events(), 1, "{kind}");
        let mut follower = Follower::open(&path).unwrap();
        follower.set_writer_dead();
        let mut model = Model::new();
        while follower.poll(&mut model).unwrap().more {}
        assert_eq!(model.events(), 1, "{kind}");
    }
    // AND a pipe as a trace fails at once
    for error in [load_whole(&beside, &mut |_| ControlFlow::Continue(())).err(), Follower::open(&beside).err()] {
        assert!(error.unwrap().to_string().ends_with("it is a pipe: traces are read from files"));
    }
}

#[test]
fn skips_backwards_or_out_of_range_are_ignored() {
    let folder = Folder::new("skip");
    let text = HEADER.to_owned() + "{\"skip\":3}\n" + &alloc(1) + "{\"skip\":18446744073709551615}\n" + &alloc(2);
    let path = folder.file("t.jsonl", text.as_bytes());
    assert_eq!(read(&path).unwrap().model.events(), 1);
    let mut follower = Follower::open(&path).unwrap();
    let mut model = Model::new();
    for _ in 0..3 {
        assert!(!follower.poll(&mut model).unwrap().restarted);
    }
    assert_eq!(model.events(), 1);
}

#[test]
fn compression_bombs_are_refused() {
    let folder = Folder::new("expands");
    let compressed = |name: &str, filler: &[u8], times: usize| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.write_all(HEADER.as_bytes()).unwrap();
        (0..times).for_each(|_| encoder.write_all(filler).unwrap());
        encoder.write_all(alloc(1).as_bytes()).unwrap();
        folder.file(name, &encoder.finish().unwrap())
    };
    // GIVEN files of some kilobytes that hold 128 MiB of lines, or one line as long
    for (name, filler) in [("lines.zst", b"{}\n".repeat(1 << 18)), ("line.zst", b"x".repeat(3 << 18))] {
        let path = compressed(name, &filler, 200);
        assert!(fs::metadata(&path).unwrap().len() < 100_000);
        // WHEN they are read THEN the error gives the reason and a remedy
        let error = read(&path).err().unwrap().to_string();
        assert!(error.contains("expands to more than 200 times its size") && error.contains("zstd -d"), "{error}");
    }
    // BUT small files are read, and so is a trace with preallocated disk space
    assert_eq!(read(&compressed("small.zst", &b"{}\n".repeat(1 << 18), 1)).unwrap().model.events(), 1);
    assert_eq!(read(&compressed("ahead.zst", &[0; 1 << 20], 200)).unwrap().model.events(), 1);
}
