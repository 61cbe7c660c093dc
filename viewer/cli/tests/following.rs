//! Following traces while they grow, and the state of their writers.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::child::becomes_true;
use crate::common::of_this_process;
use memlab_follow::feed::{Feed, Followed, Roster, Source};
use memlab_follow::snapshot::{ProcessSnapshot, ProcessState};
use memlab_trace::ReadError;

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opened");
    file.write_all(text.as_bytes()).expect("written");
}

/// Waits for a snapshot with one process that matches.
fn wait(feed: &Feed, wanted: impl Fn(&ProcessSnapshot) -> bool) -> ProcessSnapshot {
    let mut last = None;
    let is_there = becomes_true(|| {
        if let Ok(snapshot) = feed.snapshots().try_recv() {
            last = snapshot.processes.first().cloned();
        }
        last.as_ref().is_some_and(&wanted)
    });
    assert!(is_there, "{:?}", last.map(|last| (last.state, last.events)));
    last.expect("it is there")
}

#[test]
fn a_growing_trace_is_followed_to_its_end() {
    // GIVEN a trace whose writer is this process
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.jsonl");
    let text = of_this_process(3).text;
    let cut = text[..text.len() / 2].rfind('\n').expect("lines") + 1;
    append(&path, &text[..cut]);
    let feed = Feed::start(Source::Traces(Roster::open(std::slice::from_ref(&path)).expect("a trace")));
    let before = wait(&feed, |process| process.state == ProcessState::Recording && process.events_read > 0);
    // WHEN it continues to write THEN the snapshots follow
    append(&path, &text[cut..]);
    let after = wait(&feed, |process| process.steps_ended == 3);
    assert!(after.events_read > before.events_read);
    // WHEN it ends THEN the state is the recorded end
    append(&path, "[\"end\",99000000000,3,null]\n");
    wait(&feed, |process| process.state == ProcessState::Ended { code: Some(3), signal: None });
}

#[test]
fn new_traces_are_found_once_they_have_a_header() {
    // GIVEN an empty file, and a feed that looks for traces
    let folder = tempfile::tempdir().expect("a temporary folder");
    let paths = [folder.path().join("a.jsonl"), folder.path().join("b.jsonl")];
    append(&paths[0], "");
    let (found, looks) = (paths.to_vec(), Arc::new(AtomicUsize::new(0)));
    let count = looks.clone();
    let finder = move || {
        count.fetch_add(1, Ordering::SeqCst);
        found.clone()
    };
    let feed = Feed::start(Source::Appearing(Box::new(finder)));
    // WHEN the feed has read the empty file THEN the published snapshot is empty
    assert!(becomes_true(|| looks.load(Ordering::SeqCst) > 2));
    assert!(feed.snapshots().try_recv().ok().is_none_or(|snapshot| snapshot.processes.is_empty()));
    append(&paths[0], &of_this_process(1).text);
    append(&paths[1], &of_this_process(1).text.replace("\"rank\":null", "\"rank\":0"));
    // WHEN the header has arrived, and another trace THEN both are found
    assert!(becomes_true(|| feed.snapshots().try_recv().is_ok_and(|snapshot| snapshot.processes.len() == 2)));
}

#[test]
fn a_dead_writer_is_shown_as_killed() {
    // GIVEN a trace without an end, from a process that ended long ago
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.jsonl");
    append(&path, &of_this_process(1).text.replace(&format!("\"pid\":{}", std::process::id()), "\"pid\":4194304"));
    let feed = Feed::start(Source::Traces(Roster::open(std::slice::from_ref(&path)).expect("a trace")));
    // THEN it is shown with its last state, and as killed
    let process = wait(&feed, |process| process.state == ProcessState::Killed);
    assert_eq!(process.steps_ended, 1);
}

#[test]
fn compressed_traces_are_read_completely() {
    // `Followed` recognizes a compressed trace by its content, not by its name.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.jsonl.zst");
    std::fs::write(&path, COMPRESSED).expect("written");
    let feed = Feed::start(Source::Traces(Roster::open(std::slice::from_ref(&path)).expect("a trace")));
    let process = wait(&feed, |process| process.state.is_over());
    assert_eq!((process.header.pid, process.failure), (7, None));
}

/// `{"memlab":1,"pid":7}` and a newline, in a zstd frame of one raw block.
const COMPRESSED: &[u8] = b"\x28\xb5\x2f\xfd\x20\x15\xa9\x00\x00{\"memlab\":1,\"pid\":7}\n";

#[test]
fn files_that_are_not_traces_are_refused_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.jsonl");
    append(&path, "");
    assert!(matches!(Followed::open(&path), Err(ReadError::Empty { .. })));
    append(&path, "no trace\n");
    assert!(matches!(Followed::open(&path), Err(ReadError::NotATrace { .. })));
    assert!(matches!(Followed::open(&folder.path().join("none")), Err(ReadError::Io { .. })));
}
