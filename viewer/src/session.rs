//! The loop between the terminal, the feed and the app: keys are answered at once, data is drawn at most ten times
//! a second, and nothing is drawn when nothing changed.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use crate::app::{self, App, output_size};
use crate::clock::now_unix_ns;
use crate::feed::Feed;
use crate::offload::mover::Mover;
use crate::request::Request;
use crate::terminal::Taken;

/// Between frames that only show new data.
const FRAME: Duration = Duration::from_millis(100);

/// The program behind the dashboard, if this memlab started it.
pub trait Program {
    /// How it ended, once it has.
    fn poll_end(&mut self) -> Option<String>;
    /// Sends a signal to it and its children.
    fn signal(&self, signal: i32);
    /// Something was typed to it.
    fn input(&mut self, bytes: &[u8]);
    /// The pane it prints to has a new size.
    fn resize(&self, rows: u16, columns: u16);
}

/// Why the dashboard was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// By a key.
    Quit,
    /// By a key; the program goes on.
    Detach,
    /// By a signal.
    Signal(i32),
}

/// Shows the dashboard until it is left.
///
/// # Errors
///
/// If the terminal cannot be used.
pub fn run(app: &mut App, feed: &Feed, mut program: Option<&mut dyn Program>) -> io::Result<Left> {
    // Dropped after the terminal is given back: it may have to wait for the driver.
    let mover = Mover::start();
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGTSTP])?;
    let mut terminal = Taken::new(app.uses_mouse)?;
    let keyboard = Keyboard::new();
    let mut size = terminal.size()?;
    resize_program(size, app, program.as_deref());
    let mut drawn: Option<Instant> = None;
    let mut printed = 0;
    let (mut urgent, mut dirty) = (true, true);
    loop {
        feed.set_query(app.query());
        if let Some(snapshot) = feed.take() {
            let was_seeking = app.is_seeking() || app.awaits_comparison();
            app.on_snapshot(snapshot);
            dirty |= !app.context.paused || was_seeking;
        }
        mover.watch(app.watched());
        if let Some(moves) = mover.take() {
            app.on_mover_update(moves);
            urgent = true;
        }
        dirty |= app.on_tick(now_unix_ns());
        let changes = app.output.terminal().map_or(0, |output| output.changes());
        if changes != printed {
            printed = changes;
            dirty = true;
        }
        if app.output.program_runs()
            && let Some(how) = program.as_deref_mut().and_then(|program| program.poll_end())
        {
            app.on_program_end(how);
            urgent = true;
        }
        for signal in signals.pending() {
            match signal {
                SIGTSTP => {
                    terminal.suspend()?;
                    urgent = true;
                }
                signal => return Ok(Left::Signal(signal)),
            }
        }
        // Asked for each time: the notice of a change can be lost between two that come close together.
        let size_now = terminal.size()?;
        if size_now != size {
            size = size_now;
            resize_program(size, app, program.as_deref());
            urgent = true;
        }
        let due = drawn.map_or(Duration::ZERO, |drawn| FRAME.saturating_sub(drawn.elapsed()));
        if urgent || dirty && due.is_zero() {
            terminal.draw(|buffer| app::draw(buffer, app))?;
            drawn = Some(Instant::now());
            (urgent, dirty) = (false, false);
        }
        // Wakes at once for a key or a signal; else in time for the next frame.
        keyboard.wait(if dirty { due.max(Duration::from_millis(1)) } else { FRAME });
        while keyboard.is_there() && event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key)
                    if key.code == KeyCode::Char('z') && key.modifiers == KeyModifiers::CONTROL && !app.is_typing() =>
                {
                    terminal.suspend()?;
                }
                Event::Key(key) => match app.on_key(key) {
                    Some(Request::Quit) => return Ok(Left::Quit),
                    Some(Request::Detach) => return Ok(Left::Detach),
                    Some(Request::Input(bytes)) => {
                        if let Some(program) = program.as_deref_mut() {
                            program.input(&bytes);
                        }
                    }
                    Some(Request::Interrupt) => send(program.as_deref(), SIGINT),
                    Some(Request::Terminate) => send(program.as_deref(), SIGTERM),
                    Some(Request::Redraw) => terminal.clear()?,
                    Some(Request::Export(kind)) => app.context.notice = Some(app::save(app, kind, size)),
                    Some(Request::Move(order)) => mover.order(order),
                    None => {}
                },
                Event::Mouse(mouse) => {
                    app.on_mouse(mouse);
                }
                _ => {}
            }
            urgent = true;
        }
        if !keyboard.is_there() {
            return Ok(Left::Signal(SIGHUP));
        }
    }
}

/// The terminal that keys come from. It is watched here and not by crossterm, which never returns once the terminal
/// is gone.
struct Keyboard {
    terminal: Option<File>,
}

impl Keyboard {
    /// Standard input, or, as for crossterm, the controlling terminal if that is none.
    fn new() -> Self {
        let terminal = if io::stdin().is_terminal() { None } else { File::open("/dev/tty").ok() };
        Self { terminal }
    }

    /// Waits for a key, a signal, or until the time is over.
    fn wait(&self, patience: Duration) {
        self.poll(patience.as_millis().clamp(1, 1000) as i32);
    }

    /// Whether the terminal still exists.
    fn is_there(&self) -> bool {
        self.poll(0) & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
    }

    fn poll(&self, milliseconds: i32) -> i16 {
        let fd = self.terminal.as_ref().map_or(libc::STDIN_FILENO, AsRawFd::as_raw_fd);
        let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        let count = unsafe { libc::poll(&mut watched, 1, milliseconds) };
        if count > 0 { watched.revents } else { 0 }
    }
}

fn send(program: Option<&dyn Program>, signal: i32) {
    if let Some(program) = program {
        program.signal(signal);
    }
}

fn resize_program((columns, rows): (u16, u16), app: &App, program: Option<&dyn Program>) {
    let Some(program) = program else { return };
    let (rows, columns) = output_size(columns, rows);
    if let Some(mut output) = app.output.terminal() {
        output.resize(rows, columns);
    }
    program.resize(rows, columns);
}
