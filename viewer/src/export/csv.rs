//! The live blocks of a moment as a table, one a row, for spreadsheets and data frames: CSV as RFC 4180 has it. What is
//! free in segments is left out, so that the rows sum to what is allocated.

use std::borrow::Cow;
use std::io::{self, Write};

use memlab_trace::Seen;

use crate::text::clean;

const HEAD: &str = "device,address,bytes,category,layer,file,line,function,allocated_at_s,stack";

/// Writes the blocks of one device or of all, by device and address. `stack` is the whole stack from the outermost call on,
/// its frames separated by semicolons.
///
/// # Errors
///
/// What `out` says.
pub fn write(out: &mut dyn Write, seen: &Seen, device: Option<i32>) -> io::Result<()> {
    write!(out, "{HEAD}\r\n")?;
    for (index, block) in seen.blocks.iter().filter(|(index, _)| device.is_none_or(|device| device == *index)) {
        let line = seen.whole.line_of(block.stack);
        let layer = seen.whole.layer_of(block).name;
        let number = line.as_ref().and_then(|line| line.line).map(|line| line.to_string()).unwrap_or_default();
        let (seconds, ns) = (block.time / 1_000_000_000, block.time % 1_000_000_000);
        let frames = seen.whole.frames(block.stack);
        let stack: Vec<String> = frames
            .iter()
            .rev()
            .map(|frame| match frame.line {
                Some(line) => format!("{} ({}:{line})", frame.function, frame.file),
                None => format!("{} ({})", frame.function, frame.file),
            })
            .map(|frame| frame.replace(';', ","))
            .collect();
        write!(
            out,
            "{index},{},{},{},{},{},{number},{},{seconds}.{ns:09},{}\r\n",
            block.address,
            block.bytes,
            block.category.as_str(),
            field(layer.as_deref().unwrap_or("")),
            field(line.as_ref().map_or("", |line| &line.file)),
            field(line.as_ref().map_or("", |line| &line.function)),
            field(&stack.join(";")),
        )?;
    }
    Ok(())
}

/// A text as a field: quoted where it must be, and such that no spreadsheet takes it for a formula.
pub(super) fn field(text: &str) -> Cow<'_, str> {
    // `=`, `+`, `-` and `@` begin formulas, also after blanks; a trace may call a function what it likes.
    let is_formula = text.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    let text = clean(text);
    let text = if is_formula { Cow::Owned(format!("'{text}")) } else { text };
    if text.contains([',', '"', '\r', '\n']) { Cow::Owned(format!("\"{}\"", text.replace('"', "\"\""))) } else { text }
}

#[cfg(test)]
mod tests {
    use super::field;

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
}
