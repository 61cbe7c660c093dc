//! The terminal, in raw mode and on the alternate screen while the dashboard runs.
//!
//! It is restored at every end of the dashboard: by a key, a signal or a panic.

#![expect(clippy::disallowed_methods, reason = "the dashboard steers the terminal; its cells are clean")]

use std::io::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::clipboard::CopyToClipboard;
use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use signal_hook::consts::SIGSTOP;
use signal_hook::low_level::raise;

use memlab_base::error::bad_input;
use memlab_base::output;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal in raw mode, restored when dropped.
pub struct TerminalGuard {
    terminal: Terminal<CrosstermBackend<io::BufWriter<io::Stdout>>>,
    uses_mouse: bool,
}

/// Checks that standard output is a terminal.
///
/// # Errors
///
/// If it is not; `instead` contains the alternative for the user.
pub fn check(instead: &str) -> anyhow::Result<()> {
    if output::stdout_is_terminal() {
        return Ok(());
    }
    Err(bad_input(format!("the dashboard needs a terminal, but standard output is not one: {instead}")))
}

impl TerminalGuard {
    /// Switches to the alternate screen, in raw mode. Without `uses_mouse`, the mouse stays with the terminal.
    ///
    /// # Errors
    ///
    /// If the terminal refuses.
    pub fn new(uses_mouse: bool) -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let default = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                default(panic);
            }));
        });
        enter(uses_mouse)?;
        let backend = CrosstermBackend::new(io::BufWriter::with_capacity(1 << 16, io::stdout()));
        let terminal = Terminal::new(backend).inspect_err(|_| restore())?;
        Ok(Self { terminal, uses_mouse })
    }

    /// Draws a frame; only changes are sent.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame.buffer_mut())).map(|_| ())
    }

    /// Copies text to the clipboard of the terminal (OSC 52), which ignores it if it does not allow that.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        execute!(self.terminal.backend_mut(), CopyToClipboard::to_clipboard_from(text))
    }

    /// Makes the next frame draw the whole screen.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn clear(&mut self) -> io::Result<()> {
        // `Terminal::clear` requests the cursor's position, and some terminals never answer.
        let (width, height) = self.size()?;
        self.terminal.resize(Rect { x: 0, y: 0, width, height })
    }

    /// Columns and rows.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        let size = self.terminal.size()?;
        Ok((size.width, size.height))
    }

    /// Restores the terminal, stops this process like Ctrl-Z, and takes the terminal again when the process continues.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn suspend(&mut self) -> io::Result<()> {
        restore();
        raise(SIGSTOP)?;
        enter(self.uses_mouse)?;
        self.clear()
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        restore();
    }
}

fn enter(uses_mouse: bool) -> io::Result<()> {
    enable_raw_mode()?;
    IS_TAKEN.store(true, Ordering::SeqCst);
    let entered = execute!(io::stdout(), EnterAlternateScreen, Hide);
    let entered = if uses_mouse { entered.and_then(|()| execute!(io::stdout(), EnableMouseCapture)) } else { entered };
    entered.inspect_err(|_| restore())
}

/// Undoes [`enter`], if necessary. Failures are ignored: the terminal may be gone.
fn restore() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
        let _ = io::stdout().flush();
        let _ = disable_raw_mode();
    }
}
