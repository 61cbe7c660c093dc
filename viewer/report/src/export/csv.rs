//! The live blocks of a moment as CSV (RFC 4180), one per row, for spreadsheets and data frames.
//!
//! Free parts of segments are left out, so that the rows sum to the allocated bytes.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use memlab_trace::{Line, ResolvedSnapshot};

use memlab_base::text::clean;

const HEAD: &str = "device,address,bytes,category,layer,file,line,function,allocated_at_s,stack,range";

/// Writes the blocks of one device or of all, by device and address.
///
/// `stack` is the whole stack, outermost call first, its frames separated by semicolons; see [`stack_field`]. `range`
/// is the path of the range that the program names.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(out: &mut dyn Write, snapshot: &ResolvedSnapshot, device: Option<i32>) -> io::Result<()> {
    write!(out, "{HEAD}\r\n")?;
    for (index, block) in snapshot.blocks.iter().filter(|(index, _)| device.is_none_or(|device| device == *index)) {
        let line = snapshot.final_model.line_of(block.stack);
        let layer = snapshot.final_model.layer_of(block).name;
        let number = line.as_ref().and_then(|line| line.line).map(|line| line.to_string()).unwrap_or_default();
        let (seconds, ns) = (block.time / 1_000_000_000, block.time % 1_000_000_000);
        write!(
            out,
            "{index},{},{},{},{},{},{number},{},{seconds}.{ns:09},{},{}\r\n",
            block.address,
            block.bytes,
            block.category.as_str(),
            field(layer.as_deref().unwrap_or("")),
            field(line.as_ref().map_or("", |line| &line.file)),
            field(line.as_ref().map_or("", |line| &line.function)),
            field(&stack_field(&snapshot.final_model.frames(block.stack))),
            field(&snapshot.final_model.range_path(block.range).join("/")),
        )?;
    }
    Ok(())
}

/// Longest text in a cell of a spreadsheet.
const MAX_CELL_CHARS: usize = 32_767;

/// Formats a stack, outermost call first. A stack that is too long has only a count of its outermost calls.
fn stack_field(innermost_first: &[Arc<Line>]) -> String {
    let mut frames = Vec::with_capacity(innermost_first.len());
    let mut length = 0;
    for (index, frame) in innermost_first.iter().enumerate() {
        let text = match frame.line {
            Some(line) => format!("{} ({}:{line})", frame.function, frame.file),
            None => format!("{} ({})", frame.function, frame.file),
        };
        length += text.len() + 1;
        if length > MAX_CELL_CHARS {
            frames.push(format!("({} outer calls left out)", innermost_first.len() - index));
            break;
        }
        frames.push(text.replace(';', ","));
    }
    frames.reverse();
    frames.join(";")
}

/// Formats a text as a field: quoted if necessary, and never readable as a formula.
pub(super) fn field(text: &str) -> Cow<'_, str> {
    // `=`, `+`, `-` and `@` start formulas, also after blanks. A trace may contain any function name.
    let is_formula = text.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    let text = clean(text);
    let text = if is_formula { Cow::Owned(format!("'{text}")) } else { text };
    if text.contains([',', '"', '\r', '\n']) { Cow::Owned(format!("\"{}\"", text.replace('"', "\"\""))) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_and_harmless() {
        assert_eq!(field("Block.forward"), "Block.forward");
        assert_eq!(field("a,b"), "\"a,b\"");
        assert_eq!(field("say \"hi\""), "\"say \"\"hi\"\"\"");
        assert_eq!(field("=cmd|' /C calc'!A0"), "'=cmd|' /C calc'!A0");
        assert_eq!(field(" @SUM(1,2)"), "\"' @SUM(1,2)\"");
        assert_eq!(field("\t=1"), "'\u{fffd}=1");
        assert_eq!(field("a\r\nb"), "a\u{fffd}\u{fffd}b");
        assert_eq!(field(""), "");
    }

    #[test]
    fn a_stack_fits_into_a_cell() {
        // GIVEN a stack that is too long, and a shorter one
        let line = |number| Arc::new(Line { file: "/a.py".into(), line: Some(number), function: "f;".into() });
        let stack: Vec<_> = (0..5000).map(line).collect();
        // WHEN written THEN the innermost calls are listed, and the others are counted
        assert_eq!(stack_field(&stack[..2]), "f, (/a.py:1);f, (/a.py:0)");
        let text = stack_field(&stack);
        assert!(text.len() <= MAX_CELL_CHARS + 40 && text.ends_with(";f, (/a.py:0)"), "{}", text.len());
        let kept = text.split(';').count() - 1;
        assert!(text.starts_with(&format!("({} outer calls left out);f, (/a.py:{})", 5000 - kept, kept - 1)), "{text}");
    }
}
