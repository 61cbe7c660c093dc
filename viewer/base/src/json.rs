//! JSON for scripts that is also safe to print in a terminal.

pub mod parts;

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, PrettyFormatter};

use crate::text::is_unsafe;

/// Writes an indented value with a newline at the end. Control characters in its texts are escaped.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_pretty(out: &mut (impl Write + ?Sized), value: &impl Serialize) -> io::Result<()> {
    write(out, value, PrettyFormatter::new())
}

/// Writes a value on one line, otherwise as [`write_pretty`].
///
/// # Errors
///
/// Errors of `out`.
pub fn write_compact(out: &mut (impl Write + ?Sized), value: &impl Serialize) -> io::Result<()> {
    write(out, value, CompactFormatter)
}

fn write(out: &mut (impl Write + ?Sized), value: &impl Serialize, formatter: impl Formatter) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, TerminalSafe(formatter));
    value.serialize(&mut serializer)?;
    out.write_all(b"\n")
}

/// Writes characters that a terminal could obey as `\u` escapes: equivalent JSON, safe to print.
struct TerminalSafe<F>(F);

impl<F: Formatter> Formatter for TerminalSafe<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut plain = 0;
        for (at, character) in fragment.char_indices().filter(|(_, character)| is_unsafe(*character)) {
            writer.write_all(&fragment.as_bytes()[plain..at])?;
            plain = at + character.len_utf8();
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        writer.write_all(&fragment.as_bytes()[plain..])
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        self.0.write_char_escape(writer, escape)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}
