//! Maps a position in a code object's bytecode to a line, for the three encodings of CPython 3.9–3.14.
//!
//! Sources: CPython's `Objects/lnotab_notes.txt` (3.9, 3.10) and `Objects/locations.md` (3.11+).

use super::layout::LineTable;

/// Returns the line of the instruction at byte offset `position`, or `None` if the compiler gave it none.
pub fn line_at(encoding: LineTable, table: &[u8], first_line: i32, position: u32) -> Option<u32> {
    let line = match encoding {
        LineTable::Lnotab => lnotab(table, first_line, position),
        LineTable::Ranges => ranges(table, first_line, position),
        LineTable::Locations => locations(table, first_line, position),
    };
    line.and_then(|line| u32::try_from(line).ok())
}

fn lnotab(table: &[u8], first_line: i32, position: u32) -> Option<i32> {
    let mut line = first_line;
    let mut address = 0u32;
    for pair in table.chunks_exact(2) {
        address = address.saturating_add(u32::from(pair[0]));
        if address > position {
            break;
        }
        line = line.wrapping_add(i32::from(pair[1] as i8));
    }
    Some(line)
}

fn ranges(table: &[u8], first_line: i32, position: u32) -> Option<i32> {
    const NO_LINE: i8 = -128;
    let mut line = first_line;
    let mut end = 0u32;
    for pair in table.chunks_exact(2) {
        end = end.saturating_add(u32::from(pair[0]));
        let delta = pair[1] as i8;
        if delta != NO_LINE {
            line = line.wrapping_add(i32::from(delta));
        }
        if end > position {
            return (delta != NO_LINE).then_some(line);
        }
    }
    None
}

fn locations(table: &[u8], first_line: i32, position: u32) -> Option<i32> {
    const NO_LOCATION: u8 = 15;
    const WITH_COLUMNS: u8 = 14;
    const WITHOUT_COLUMNS: u8 = 13;
    let mut bytes = table.iter().copied();
    let mut line = first_line;
    let mut end = 0u32;
    while let Some(head) = bytes.next() {
        let kind = (head >> 3) & 15;
        end = end.saturating_add(2 * (u32::from(head & 7) + 1));
        match kind {
            NO_LOCATION => {}
            WITH_COLUMNS => {
                line = line.wrapping_add(signed_varint(&mut bytes)?);
                for _ in 0..3 {
                    varint(&mut bytes)?; // end line, column, end column
                }
            }
            WITHOUT_COLUMNS => line = line.wrapping_add(signed_varint(&mut bytes)?),
            10..=12 => {
                line = line.wrapping_add(i32::from(kind - 10));
                bytes.next()?;
                bytes.next()?;
            }
            _ => {
                bytes.next()?; // short form: same line, columns in one byte
            }
        }
        if end > position {
            return (kind != NO_LOCATION).then_some(line);
        }
    }
    None
}

/// Decodes a number with six bits per byte, least significant first.
///
/// Bit 6 means that more bytes follow.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u32> {
    let mut value = 0u32;
    let mut shift = 0u32;
    loop {
        let byte = bytes.next()?;
        value |= u32::from(byte & 63).checked_shl(shift).unwrap_or(0);
        if byte & 64 == 0 {
            return Some(value);
        }
        shift += 6;
    }
}

/// Decodes a number whose lowest bit is the sign.
fn signed_varint(bytes: &mut impl Iterator<Item = u8>) -> Option<i32> {
    let value = varint(bytes)?;
    let magnitude = (value >> 1) as i32;
    Some(if value & 1 == 1 { magnitude.wrapping_neg() } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lnotab_steps_forward_and_backward() {
        // GIVEN lines 10 (bytes 0..6), 12 (6..10), 11 (10..)
        let table = [6, 2, 4, 0xff];
        // WHEN looking up positions in each, THEN each gives its line
        for (position, line) in [(0, 10), (5, 10), (6, 12), (9, 12), (10, 11), (400, 11)] {
            assert_eq!(line_at(LineTable::Lnotab, &table, 10, position), Some(line), "at {position}");
        }
    }

    #[test]
    fn ranges_can_have_no_line() {
        // GIVEN bytes 0..4 on line 5, 4..8 without a line, 8..12 on line 6
        let table = [4, 0, 4, 0x80, 4, 1];
        assert_eq!(line_at(LineTable::Ranges, &table, 5, 2), Some(5));
        assert_eq!(line_at(LineTable::Ranges, &table, 5, 6), None);
        assert_eq!(line_at(LineTable::Ranges, &table, 5, 8), Some(6));
        assert_eq!(line_at(LineTable::Ranges, &table, 5, 12), None, "past the end");
    }

    #[test]
    fn locations_of_every_form() {
        // GIVEN one entry of each form, one code unit (two bytes) each, starting at line 100
        let entry = |kind: u8| 0x80 | (kind << 3);
        let table = [
            entry(0),
            0x11, // short: line 100
            entry(11),
            3,
            9, // one line on: 101
            entry(13),
            0b0000_0101, // signed −2: 99
            entry(14),
            0b0000_0110,
            0,
            1,
            1,         // signed +3: 102
            entry(15), // none
            entry(10),
            0,
            0, // same line: 102
        ];
        let lines: Vec<_> = (0..6).map(|unit| line_at(LineTable::Locations, &table, 100, unit * 2)).collect();
        assert_eq!(lines, [Some(100), Some(101), Some(99), Some(102), None, Some(102)]);
    }

    #[test]
    fn a_truncated_table_gives_no_line() {
        assert_eq!(line_at(LineTable::Locations, &[0x80 | (14 << 3), 64], 1, 0), None);
        assert_eq!(line_at(LineTable::Locations, &[], 1, 0), None);
    }
}
