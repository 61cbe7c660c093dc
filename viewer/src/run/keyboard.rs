//! Our terminal after a detach: what is typed goes on to the program, whose own terminal echoes and edits it.

use std::io::IsTerminal;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The terminal, given back as it was when dropped.
pub struct Keyboard {
    before: libc::termios,
    is_open: bool,
}

impl Keyboard {
    /// Takes the terminal, if standard input is one. Ctrl-C, Ctrl-\\ and Ctrl-Z still make signals.
    pub fn take() -> Option<Self> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let mut before = MaybeUninit::uninit();
        // SAFETY: on success the settings are filled in.
        let before = unsafe {
            if libc::tcgetattr(libc::STDIN_FILENO, before.as_mut_ptr()) != 0 {
                return None;
            }
            before.assume_init()
        };
        let keyboard = Self { before, is_open: true };
        keyboard.apply();
        Some(keyboard)
    }

    /// Takes the terminal again, which a shell may have set otherwise while this process was stopped.
    pub fn apply(&self) {
        let mut settings = self.before;
        settings.c_lflag &= !(libc::ICANON | libc::ECHO | libc::IEXTEN);
        settings.c_iflag &= !libc::ICRNL;
        set(&settings);
    }

    /// What was typed within this time.
    pub fn read(&mut self, patience: Duration) -> Vec<u8> {
        if !self.is_open {
            std::thread::sleep(patience);
            return Vec::new();
        }
        let mut watched = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        if unsafe { libc::poll(&mut watched, 1, patience.as_millis() as i32) } <= 0 {
            return Vec::new();
        }
        let mut bytes = vec![0; 4096];
        // SAFETY: the bytes outlive the call, and there are as many.
        let length = unsafe { libc::read(libc::STDIN_FILENO, bytes.as_mut_ptr().cast(), bytes.len()) };
        // Nothing, where something was announced: the terminal is gone.
        self.is_open = length > 0;
        bytes.truncate(usize::try_from(length).unwrap_or(0));
        bytes
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        set(&self.before);
    }
}

/// A background process that changed the settings of its terminal would be stopped: not while they are set here.
fn set(settings: &libc::termios) {
    // SAFETY: the settings outlive the call; the signal's disposition is put back.
    unsafe {
        let before = libc::signal(libc::SIGTTOU, libc::SIG_IGN);
        if libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() {
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, settings);
        }
        libc::signal(libc::SIGTTOU, before);
    }
}
