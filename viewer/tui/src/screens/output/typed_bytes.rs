//! Bytes that a terminal sends for keys.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Bytes that a terminal sends for a key; `keypad`: cursor keys are in application mode.
pub fn typed_bytes(key: KeyEvent, keypad: bool) -> Option<Vec<u8>> {
    let cursor = |letter: char| format!("\x1b{}{letter}", if keypad { 'O' } else { '[' }).into_bytes();
    let mut bytes = match key.code {
        KeyCode::Char(character) if key.modifiers.contains(KeyModifiers::CONTROL) => {
            let control = character.to_ascii_uppercase();
            // From Ctrl-@ to Ctrl-_, as on every terminal.
            vec![u8::try_from(control).ok().filter(|byte| (b'@'..=b'_').contains(byte))? & 0x1f]
        }
        KeyCode::Char(character) => character.to_string().into_bytes(),
        KeyCode::Enter => vec![b'\r'],
        KeyCode::Tab => vec![b'\t'],
        KeyCode::Backspace => vec![0x7f],
        KeyCode::Up => cursor('A'),
        KeyCode::Down => cursor('B'),
        KeyCode::Right => cursor('C'),
        KeyCode::Left => cursor('D'),
        KeyCode::Home => cursor('H'),
        KeyCode::End => cursor('F'),
        KeyCode::Delete => b"\x1b[3~".to_vec(),
        KeyCode::PageUp => b"\x1b[5~".to_vec(),
        KeyCode::PageDown => b"\x1b[6~".to_vec(),
        KeyCode::BackTab => b"\x1b[Z".to_vec(),
        _ => return None,
    };
    if key.modifiers.contains(KeyModifiers::ALT) {
        bytes.insert(0, 0x1b);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sent_as_terminals_send_them() {
        let sent = |code, modifiers| typed_bytes(KeyEvent::new(code, modifiers), false);
        assert_eq!(sent(KeyCode::Char('ä'), KeyModifiers::NONE), Some("ä".as_bytes().to_vec()));
        assert_eq!(sent(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(vec![3]));
        assert_eq!(sent(KeyCode::Char('5'), KeyModifiers::CONTROL), None);
        assert_eq!(sent(KeyCode::Char('b'), KeyModifiers::ALT), Some(b"\x1bb".to_vec()));
        assert_eq!(sent(KeyCode::Enter, KeyModifiers::NONE), Some(b"\r".to_vec()));
        assert_eq!(sent(KeyCode::Up, KeyModifiers::NONE), Some(b"\x1b[A".to_vec()));
        assert_eq!(typed_bytes(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE), true), Some(b"\x1bOA".to_vec()));
    }
}
