//! Structure layouts of CPython that the walker reads: one table, a row per minor version.
//!
//! The offsets are those of x86-64 and AArch64 Linux release builds with the GIL, computed from each version's headers with
//! `offsetof`. From 3.13 on the interpreter publishes most of them (`_Py_DebugOffsets`), and a row is used only if the two
//! agree.

/// Offsets in bytes, unless a field specifies otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Minor version of CPython 3.
    pub minor: u8,
    /// Path from a `PyThreadState` to the innermost frame.
    pub current_frame: CurrentFrame,
    /// In a frame: the caller's frame.
    pub previous: usize,
    /// In a frame: the code object (3.13+: "executable", 3.14+: a tagged reference).
    pub code: usize,
    /// In a frame: the current instruction.
    pub position: Position,
    /// In a frame: the first local variable.
    pub locals: usize,
    /// In a frame (3.12+): the byte of its owner; [`SHIM_OWNER`] and above mean the interpreter.
    pub owner: Option<usize>,
    pub code_filename: usize,
    pub code_name: usize,
    /// 0 before 3.11, which has no qualified names in code objects.
    pub code_qualname: usize,
    /// Names of local variables (before 3.11, to find the class); 0 if they are not needed.
    pub code_variables: usize,
    pub code_first_line: usize,
    pub code_line_table: usize,
    /// In a code object: its first instruction (3.11+, where positions are pointers).
    pub code_instructions: usize,
    /// Encoding of the line table.
    pub line_table: LineTable,
    /// Size of `PyASCIIObject`; an ASCII string's characters follow it.
    pub ascii_header: usize,
    /// Size of `PyCompactUnicodeObject`; the characters of any other compact string follow it.
    pub compact_header: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentFrame {
    /// The thread state contains the frame at this offset.
    Direct(usize),
    /// The thread state contains, at the first offset, a pointer to a structure that contains the frame at the second.
    ThroughCFrame(usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// An `int` at this offset, times the second number, is the byte offset in the bytecode.
    Index(usize, u32),
    /// A pointer to the instruction is at this offset.
    Pointer(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineTable {
    /// `co_lnotab`: pairs of byte delta and signed line delta (3.9).
    Lnotab,
    /// PEP 626 `co_linetable`: like `Lnotab`, but ranges, and −128 for "no line" (3.10).
    Ranges,
    /// PEP 657 location table (3.11+).
    Locations,
}

/// Offsets of `ob_type` in every object, `tp_name` in a type, the content of a cell, and sizes and data of tuples, bytes and
/// strings.
///
/// They are the same in every version of the table.
pub const OBJECT_TYPE: usize = 8;
pub const TYPE_NAME: usize = 24;
pub const CELL_CONTENTS: usize = 16;
pub const TUPLE_SIZE: usize = 16;
pub const TUPLE_ITEMS: usize = 24;
pub const BYTES_SIZE: usize = 16;
pub const BYTES_DATA: usize = 32;
pub const STRING_LENGTH: usize = 16;
pub const STRING_STATE: usize = 32;

/// In a type object: its flags, and the flag of types whose instances are types (read in 3.9 and 3.10).
pub const TYPE_FLAGS: usize = 168;
pub const IS_METATYPE: u64 = 1 << 31;

/// In a code object of 3.9 and 3.10: the numbers of arguments and locals, the cells' names, and the argument that each cell
/// holds (null for a cell without one).
pub const CODE_ARGUMENTS: usize = 16;
pub const CODE_LOCALS: usize = 28;
pub const CODE_CELLS: usize = 88;
pub const CODE_CELL_ARGUMENTS: usize = 96;

/// Owner value of shim frames between C and Python, and of all above.
///
/// The code object of a shim has no source.
pub const SHIM_OWNER: u8 = 3;

const LAYOUTS: [Layout; 6] = [
    Layout {
        minor: 9,
        current_frame: CurrentFrame::Direct(24),
        previous: 24,
        code: 32,
        position: Position::Index(104, 1),
        locals: 360,
        owner: None,
        code_filename: 104,
        code_name: 112,
        code_qualname: 0,
        code_variables: 72,
        code_first_line: 40,
        code_line_table: 120,
        code_instructions: 0,
        line_table: LineTable::Lnotab,
        ascii_header: 48,
        compact_header: 72,
    },
    Layout {
        minor: 10,
        current_frame: CurrentFrame::Direct(24),
        previous: 24,
        code: 32,
        position: Position::Index(96, 2),
        locals: 352,
        owner: None,
        code_filename: 104,
        code_name: 112,
        code_qualname: 0,
        code_variables: 72,
        code_first_line: 40,
        code_line_table: 120,
        code_instructions: 0,
        line_table: LineTable::Ranges,
        ascii_header: 48,
        compact_header: 72,
    },
    Layout {
        minor: 11,
        current_frame: CurrentFrame::ThroughCFrame(56, 8),
        previous: 48,
        code: 32,
        position: Position::Pointer(56),
        locals: 72,
        owner: None,
        code_filename: 112,
        code_name: 120,
        code_qualname: 128,
        code_variables: 0,
        code_first_line: 72,
        code_line_table: 136,
        code_instructions: 184,
        line_table: LineTable::Locations,
        ascii_header: 48,
        compact_header: 72,
    },
    Layout {
        minor: 12,
        current_frame: CurrentFrame::ThroughCFrame(56, 0),
        previous: 8,
        code: 0,
        position: Position::Pointer(56),
        locals: 72,
        owner: Some(70),
        code_filename: 112,
        code_name: 120,
        code_qualname: 128,
        code_variables: 0,
        code_first_line: 68,
        code_line_table: 136,
        code_instructions: 192,
        line_table: LineTable::Locations,
        ascii_header: 40,
        compact_header: 56,
    },
    Layout {
        minor: 13,
        current_frame: CurrentFrame::Direct(72),
        previous: 8,
        code: 0,
        position: Position::Pointer(56),
        locals: 72,
        owner: Some(70),
        code_filename: 112,
        code_name: 120,
        code_qualname: 128,
        code_variables: 0,
        code_first_line: 68,
        code_line_table: 136,
        code_instructions: 200,
        line_table: LineTable::Locations,
        ascii_header: 40,
        compact_header: 56,
    },
    Layout {
        minor: 14,
        current_frame: CurrentFrame::Direct(72),
        previous: 8,
        code: 0,
        position: Position::Pointer(56),
        locals: 80,
        owner: Some(74),
        code_filename: 112,
        code_name: 120,
        code_qualname: 128,
        code_variables: 0,
        code_first_line: 68,
        code_line_table: 136,
        code_instructions: 208,
        line_table: LineTable::Locations,
        ascii_header: 40,
        compact_header: 56,
    },
];

/// Returns the row for CPython 3.`minor`.
pub fn for_minor(minor: u8) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| layout.minor == minor)
}

/// The versions that have a row, for messages: `3.9 to 3.14`.
pub fn known_versions() -> String {
    let [first, .., last] = &LAYOUTS;
    format!("3.{} to 3.{}", first.minor, last.minor)
}

/// Positions of the compared numbers in `_Py_DebugOffsets`, as indices of 64-bit words from its beginning.
///
/// The structure is stable only within a minor version.
struct PublishedAt {
    minor: u8,
    current_frame: usize,
    previous: usize,
    code: usize,
    position: usize,
    locals: usize,
    filename: usize,
    line_table: usize,
    instructions: usize,
}

const PUBLISHED: [PublishedAt; 2] = [
    PublishedAt {
        minor: 13,
        current_frame: 23,
        previous: 29,
        code: 30,
        position: 31,
        locals: 32,
        filename: 35,
        line_table: 38,
        instructions: 43,
    },
    PublishedAt {
        minor: 14,
        current_frame: 26,
        previous: 32,
        code: 33,
        position: 34,
        locals: 35,
        filename: 40,
        line_table: 43,
        instructions: 48,
    },
];

/// First minor version with `_Py_DebugOffsets`.
pub const PUBLISHED_SINCE: u8 = 13;

/// Number of words of `_Py_DebugOffsets` that [`agrees`] reads.
pub const PUBLISHED_WORDS: usize = 49;

/// Compares the offsets that the interpreter publishes, from [`PUBLISHED_SINCE`] on, with the row.
///
/// `Err` names the difference.
pub fn agrees(layout: &Layout, words: &[u64; PUBLISHED_WORDS]) -> Result<(), &'static str> {
    let Some(at) = PUBLISHED.iter().find(|at| at.minor == layout.minor) else {
        return Err("memlab has no table of the offsets it publishes");
    };
    if words[0] != u64::from_le_bytes(*b"xdebugpy") {
        return Err("the interpreter publishes no offsets");
    }
    if words[2] != 0 {
        return Err("a free-threaded build");
    }
    let CurrentFrame::Direct(current_frame) = layout.current_frame else {
        return Err("the table is inconsistent");
    };
    let Position::Pointer(position) = layout.position else {
        return Err("the table is inconsistent");
    };
    let expected = [
        (at.current_frame, current_frame),
        (at.previous, layout.previous),
        (at.code, layout.code),
        (at.position, position),
        (at.locals, layout.locals),
        (at.filename, layout.code_filename),
        (at.line_table, layout.code_line_table),
        (at.instructions, layout.code_instructions),
    ];
    if expected.iter().all(|&(index, offset)| words[index] == offset as u64) {
        Ok(())
    } else {
        Err("its structures have another layout")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_a_version_that_describes_itself_can_be_checked() {
        for layout in LAYOUTS.iter().filter(|layout| layout.minor >= PUBLISHED_SINCE) {
            assert!(PUBLISHED.iter().any(|at| at.minor == layout.minor), "3.{}", layout.minor);
        }
    }

    #[test]
    fn a_row_that_cannot_be_checked_is_refused() {
        // GIVEN an interpreter that publishes the offsets of its row
        let newest = LAYOUTS[LAYOUTS.len() - 1];
        let at = &PUBLISHED[PUBLISHED.len() - 1];
        let mut words = [0; PUBLISHED_WORDS];
        words[0] = u64::from_le_bytes(*b"xdebugpy");
        for (index, offset) in [
            (at.current_frame, 72),
            (at.previous, newest.previous),
            (at.code, newest.code),
            (at.position, 56),
            (at.locals, newest.locals),
            (at.filename, newest.code_filename),
            (at.line_table, newest.code_line_table),
            (at.instructions, newest.code_instructions),
        ] {
            words[index] = offset as u64;
        }
        assert_eq!(agrees(&newest, &words), Ok(()));
        // WHEN the same row is of a version with no entry in `PUBLISHED`, THEN it is not trusted
        assert!(agrees(&Layout { minor: newest.minor + 1, ..newest }, &words).is_err());
    }

    #[test]
    fn messages_name_the_first_and_the_last_row() {
        assert_eq!(known_versions(), "3.9 to 3.14");
        assert!(LAYOUTS.is_sorted_by_key(|layout| layout.minor));
    }
}
