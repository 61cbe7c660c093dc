//! Requests of the dashboard to the loop that owns the terminal and the program.

use crate::offload::mover::MoveOrder;

/// A request made by a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UiRequest {
    /// Leave.
    ///
    /// No program started here is running.
    Quit,
    /// Leave, and give the terminal to the program.
    Detach,
    /// Send typed bytes to the program.
    Input(Vec<u8>),
    /// Interrupt the program, as Ctrl-C does.
    Interrupt,
    /// Ask the program to end.
    Terminate,
    /// Draw the whole screen again.
    Redraw,
    /// Write the screen to a file.
    Export(ExportKind),
    /// Move a program's memory.
    Move(MoveOrder),
    /// Copy text to the clipboard of the terminal.
    Copy(String),
}

/// File format of an exported screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportKind {
    /// The table as comma-separated values.
    Csv,
    /// The table as JSON.
    Json,
    /// The screen as an SVG picture.
    Svg,
}
