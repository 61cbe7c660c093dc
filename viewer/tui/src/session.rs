//! The loop between the terminal, the feed and the app.
//!
//! Keys are answered at once. New data is drawn at most ten times a second, and nothing is drawn without a change.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{never, select};
use crossterm::event::{Event, KeyCode, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

use crate::app::{self, App, output_size};
use crate::input::Input;
use crate::terminal::TerminalGuard;
use memlab_base::clock::now_unix_ns;
use memlab_base::output;
use memlab_base::signals::SignalReceiver;
use memlab_follow::feed::Feed;
use memlab_follow::offload::mover::Mover;
use memlab_follow::request::UiRequest;

/// Interval between frames that only show new data.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// The program behind the dashboard, if this memlab started it.
pub trait Program {
    /// Description of its end, once it has ended.
    fn poll_end(&mut self) -> Option<String>;
    /// Sends a signal to the program and its children.
    fn signal(&self, signal: i32);
    /// Passes typed bytes to the program.
    fn input(&mut self, bytes: &[u8]);
    /// Sets the size of its output pane.
    fn resize(&self, rows: u16, columns: u16);
}

/// Reason for leaving the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// A key.
    Quit,
    /// A key; the program continues.
    Detach,
    /// A signal.
    Signal(i32),
}

/// Shows the dashboard until the user leaves it.
///
/// # Errors
///
/// If the terminal cannot be used.
pub fn run(app: &mut App, feed: &mut Feed, program: Option<&mut dyn Program>) -> io::Result<ExitReason> {
    // After a hangup, a write to the terminal can fail before the signal arrives.
    show(app, feed, program).or_else(|error| match output::stdout_is_terminal() {
        true => Err(error),
        false => Ok(ExitReason::Signal(SIGHUP)),
    })
}

fn show(app: &mut App, feed: &mut Feed, mut program: Option<&mut dyn Program>) -> io::Result<ExitReason> {
    // Dropped after the terminal is restored, because it may have to wait for the driver.
    let mut mover = Mover::start();
    let signals = SignalReceiver::new(&[SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGTSTP])?;
    let mut terminal = TerminalGuard::new(app.uses_mouse)?;
    let input = Input::start()?;
    let mut snapshots = feed.snapshots().clone();
    let mut updates = mover.updates().clone();
    let mut size = terminal.size()?;
    resize_program(size, app, program.as_deref());
    let mut drawn: Option<Instant> = None;
    let mut printed = 0;
    // `urgent`: draw at once; `dirty`: draw with the next frame.
    let (mut urgent, mut dirty) = (true, true);
    loop {
        feed.set_query(app.query());
        mover.watch(app.watched());
        dirty |= app.on_tick(now_unix_ns());
        let changes = app.output.terminal().map_or(0, |output| output.changes());
        dirty |= std::mem::replace(&mut printed, changes) != changes;
        if app.output.program_runs()
            && let Some(how) = program.as_deref_mut().and_then(|program| program.poll_end())
        {
            app.on_program_end(how);
            urgent = true;
        }
        // Queried each time: of two changes in quick succession, one notice can be lost.
        let size_now = terminal.size()?;
        if size_now != size {
            size = size_now;
            resize_program(size, app, program.as_deref());
            urgent = true;
        }
        let due = drawn.map_or(Duration::ZERO, |drawn| FRAME_INTERVAL.saturating_sub(drawn.elapsed()));
        if urgent || dirty && due.is_zero() {
            terminal.draw(|buffer| app::draw(buffer, app))?;
            drawn = Some(Instant::now());
            (urgent, dirty) = (false, false);
        }
        select! {
            recv(input.events()) -> event => {
                let Ok(event) = event else { return Ok(ExitReason::Signal(SIGHUP)) };
                // All pending input is handled before the next frame.
                for event in std::iter::once(event).chain(input.events().try_iter()) {
                    match on_event(event?, app, &mut terminal, &mover, program.as_deref_mut(), size)? {
                        Some(left) => return Ok(left),
                        None => urgent = true,
                    }
                }
            }
            recv(snapshots) -> snapshot => match snapshot {
                Ok(snapshot) => {
                    let was_seeking = app.is_seeking() || app.awaits_comparison();
                    app.on_snapshot(snapshot);
                    dirty |= !app.context.paused || was_seeking;
                }
                // The feed ended by a panic, which has been reported.
                Err(_) => snapshots = never(),
            },
            recv(updates) -> update => match update {
                Ok(update) => {
                    app.on_mover_update(update);
                    urgent = true;
                }
                Err(_) => updates = never(),
            },
            recv(signals.received()) -> signal => match signal {
                Ok(SIGTSTP) => {
                    terminal.suspend()?;
                    urgent = true;
                }
                Ok(signal) => return Ok(ExitReason::Signal(signal)),
                Err(_) => return Ok(ExitReason::Signal(SIGTERM)),
            },
            // The clock, the program and its output are checked with every frame.
            default(if dirty { due.max(Duration::from_millis(1)) } else { FRAME_INTERVAL }) => {}
        }
    }
}

/// Handles a key or the mouse; returns the reason for leaving the dashboard, if any.
fn on_event(
    event: Event,
    app: &mut App,
    terminal: &mut TerminalGuard,
    mover: &Mover,
    program: Option<&mut (dyn Program + '_)>,
    size: (u16, u16),
) -> io::Result<Option<ExitReason>> {
    let request = match event {
        Event::Key(key)
            if key.code == KeyCode::Char('z') && key.modifiers == KeyModifiers::CONTROL && !app.is_typing() =>
        {
            terminal.suspend()?;
            None
        }
        Event::Key(key) => app.on_key(key),
        Event::Mouse(mouse) => app.on_mouse(mouse),
        _ => None,
    };
    match request {
        Some(UiRequest::Quit) => return Ok(Some(ExitReason::Quit)),
        Some(UiRequest::Detach) => return Ok(Some(ExitReason::Detach)),
        Some(UiRequest::Input(bytes)) => {
            if let Some(program) = program {
                program.input(&bytes);
            }
        }
        Some(UiRequest::Interrupt) => send(program, SIGINT),
        Some(UiRequest::Terminate) => send(program, SIGTERM),
        Some(UiRequest::Redraw) => terminal.clear()?,
        Some(UiRequest::Export(kind)) => app.context.notice = Some(app::save(app, kind, size)),
        Some(UiRequest::Move(order)) => mover.order(order),
        Some(UiRequest::Copy(text)) => terminal.copy(&text)?,
        None => {}
    }
    Ok(None)
}

fn send(program: Option<&mut (dyn Program + '_)>, signal: i32) {
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
