//! What the dashboard asks of the loop that owns the terminal and the program.

use crate::offload::mover::MoveOrder;

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UiRequest {
    /// Leave. No program runs that was started here.
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
}

/// How the screen is written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportKind {
    /// The table as comma-separated values.
    Csv,
    /// The table as JSON.
    Json,
    /// The screen as a picture.
    Svg,
}
