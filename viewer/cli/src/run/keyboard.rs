//! Forwards this terminal's input after a detach.
//!
//! The program's own terminal echoes and edits it.

use std::io::IsTerminal;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// The terminal, whose settings are restored on drop.
pub struct Keyboard {
    before: Termios,
    is_open: bool,
}

impl Keyboard {
    /// Takes the terminal, if standard input is one.
    ///
    /// Ctrl-C, Ctrl-\\ and Ctrl-Z still raise signals.
    pub fn take() -> Option<Self> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let keyboard = Self { before: tcgetattr(stdin()).ok()?, is_open: true };
        keyboard.apply();
        Some(keyboard)
    }

    /// Applies the settings again.
    ///
    /// A shell may have changed them while this process was stopped.
    pub fn apply(&self) {
        let mut settings = self.before.clone();
        settings.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN);
        settings.input_modes.remove(InputModes::ICRNL);
        set(&settings);
    }

    /// Returns the bytes typed within this time.
    pub fn read(&mut self, time: Duration) -> Vec<u8> {
        if !self.is_open {
            std::thread::sleep(time);
            return Vec::new();
        }
        let terminal = stdin();
        let mut polled = [PollFd::from_borrowed_fd(terminal, PollFlags::IN)];
        let timeout = Timespec::try_from(time).ok();
        if !poll(&mut polled, timeout.as_ref()).is_ok_and(|count| count > 0) {
            return Vec::new();
        }
        let mut bytes = vec![0; 4096];
        let length = rustix::io::read(terminal, &mut bytes).unwrap_or(0);
        // An empty read after an announcement of input means that the terminal is gone.
        self.is_open = length > 0;
        bytes.truncate(length);
        bytes
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        set(&self.before);
    }
}

/// Changes the terminal's settings, unless this process is in the background: SIGTTOU would stop it.
fn set(settings: &Termios) {
    // SAFETY: SIG_IGN runs no code, and the disposition of the signal is put back below.
    let before = unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
    if tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp()) {
        // The terminal may be gone.
        let _ = tcsetattr(stdin(), OptionalActions::Now, settings);
    }
    // SAFETY: `before` is the disposition that the first call returned.
    unsafe { libc::signal(libc::SIGTTOU, before) };
}
