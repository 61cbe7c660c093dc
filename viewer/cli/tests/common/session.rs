//! The real binary in a pseudo-terminal.

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use super::Story;
use super::child::{LIMIT, PATIENCE, Watchdog, becomes_true};
use super::process::Runtime;

/// A terminal that runs memlab.
pub struct Session {
    pub child: Box<dyn Child + Send + Sync>,
    pub master: Box<dyn MasterPty + Send>,
    pub writer: Box<dyn Write + Send>,
    pub screen: Arc<Mutex<vt100::Parser>>,
    pub raw: Arc<Mutex<Vec<u8>>>,
    pub folder: tempfile::TempDir,
    /// Disconnected once all output has been read.
    output: Receiver<()>,
    _watchdog: Watchdog,
}

pub fn size(columns: u16, rows: u16) -> PtySize {
    PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 }
}

pub fn one(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("sizes are above 0")
}

impl Session {
    /// Runs `memlab` with these arguments; `{}` in them is a folder with the trace `run.jsonl`.
    pub fn start(arguments: &[&str], story: &Story) -> Self {
        Self::start_with(arguments, story, |_| ())
    }

    /// The same with the sockets of `runtime`.
    pub fn start_in(runtime: &Runtime, arguments: &[&str], story: &Story) -> Self {
        let folder = runtime.path();
        Self::start_inner(env!("CARGO_BIN_EXE_memlab").as_ref(), arguments, story, |_| (), Some(folder))
    }

    /// The same in a folder that `prepare` fills; preferences are read from it too.
    pub fn start_with(arguments: &[&str], story: &Story, prepare: impl Fn(&std::path::Path)) -> Self {
        Self::start_program(env!("CARGO_BIN_EXE_memlab").as_ref(), arguments, story, prepare)
    }

    pub fn start_program(
        program: &std::path::Path,
        arguments: &[&str],
        story: &Story,
        prepare: impl Fn(&std::path::Path),
    ) -> Self {
        Self::start_inner(program, arguments, story, prepare, None)
    }

    pub fn start_inner(
        program: &std::path::Path,
        arguments: &[&str],
        story: &Story,
        prepare: impl Fn(&std::path::Path),
        runtime: Option<&std::path::Path>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        prepare(folder.path());
        std::fs::write(folder.path().join("run.jsonl"), &story.text).expect("the trace is written");
        let pty = native_pty_system().openpty(size(120, 40)).expect("a pseudo-terminal");
        let mut command = CommandBuilder::new(program);
        for argument in arguments {
            command.arg(argument.replace("{}", &folder.path().to_string_lossy()));
        }
        command.cwd(folder.path());
        let library = harmless_library();
        for (name, value) in [("TERM", "xterm-256color"), ("LANG", "C.UTF-8"), ("MEMLAB_LIB", &library), PATIENCE] {
            command.env(name, value);
        }
        command.env("XDG_CONFIG_HOME", folder.path());
        command.env("XDG_RUNTIME_DIR", runtime.unwrap_or(folder.path()));
        for name in ["NO_COLOR", "LC_ALL", "LC_CTYPE", "MEMLAB_THEME", "MEMLAB_OUTPUT", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        let child = pty.slave.spawn_command(command).expect("memlab starts");
        drop(pty.slave);
        let mut reader = pty.master.try_clone_reader().expect("a reader");
        let writer = pty.master.take_writer().expect("a writer");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(one(40), one(120), 100)));
        let raw = Arc::new(Mutex::new(Vec::new()));
        let (target, copy) = (screen.clone(), raw.clone());
        let (reading, output) = mpsc::channel();
        std::thread::spawn(move || {
            let _reading = reading;
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                target.lock().expect("no panic").process(&buffer[..length]);
                copy.lock().expect("no panic").extend_from_slice(&buffer[..length]);
            }
        });
        // portable_pty starts it as the leader of a session, with default signal handling.
        let watchdog = Watchdog::on(child.process_id().expect("it runs"), LIMIT);
        Self { child, master: pty.master, writer, screen, raw, folder, output, _watchdog: watchdog }
    }

    pub fn text(&self) -> String {
        self.screen.lock().expect("no panic").screen().contents()
    }

    /// Waits until the screen shows `words`.
    pub fn wait_for(&self, words: &str) {
        self.wait_until(words, |text| text.contains(words));
    }

    pub fn wait_until(&self, what: &str, is: impl Fn(&str) -> bool) {
        let is_there = becomes_true(|| is(&self.text()));
        assert!(is_there, "no {what:?} on\n{}", super::numbered(&self.text()));
    }

    pub fn press(&mut self, keys: &str) {
        self.writer.write_all(keys.as_bytes()).expect("keys are taken");
        self.writer.flush().expect("keys are taken");
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().expect("no panic").set_size(one(rows), one(columns));
        self.master.resize(size(columns, rows)).expect("the terminal changes its size");
    }

    pub fn signal(&self, signal: i32) {
        let pid = self.child.process_id().expect("it runs") as i32;
        // SAFETY: a signal to a child of this test that was not waited for.
        unsafe { libc::kill(pid, signal) };
    }

    /// Waits for the end; returns the exit code, true if the terminal was restored, and the text.
    pub fn end(mut self) -> (u32, bool, String) {
        let mut status = None;
        let has_ended = becomes_true(|| {
            status = self.child.try_wait().expect("the child can be waited for");
            status.is_some()
        });
        assert!(has_ended, "still running:\n{}", self.text());
        let status = status.expect("it has ended");
        // The output ends when no process holds the terminal any more.
        assert_eq!(self.output.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected), "{}", self.text());
        let screen = self.screen.lock().expect("no panic");
        let restored = !screen.screen().alternate_screen() && !screen.screen().hide_cursor();
        let text = screen.screen().contents();
        (status.exit_code(), restored, text)
    }
}

/// Returns a library that is harmless when preloaded: the C library of this test.
pub fn harmless_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let library = maps.split_whitespace().find(|word| word.contains("/libc.so") || word.contains("/libc-"));
    PathBuf::from(library.expect("this test uses the C library")).to_string_lossy().into_owned()
}
