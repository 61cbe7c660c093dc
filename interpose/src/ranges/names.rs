//! Names of ranges, each kept once and forever: threads hold them while a range is open, also in forked children.

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use interpose_base::file_names::without_numbers;
use interpose_base::locks;
use interpose_base::stderr::print_message;

/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Maximum number of names.
///
/// A program may create any number of them.
const MAX_NAMES: usize = 4096;
/// Maximum number of names that differ only in their numbers (`step 1`, `step 2`).
///
/// Further names become one name, `step #`.
const MAX_NUMBERED: u32 = 128;
/// Suffixes that PyTorch's `emit_nvtx` adds to the name of an operation: numbers that never repeat.
const ADDED_BY_EMIT_NVTX: [&str; 2] = [", seq = ", ", op_id = "];

struct RangeNames {
    known: HashSet<&'static str, FxBuildHasher>,
    /// Number of names that are equal without their numbers.
    numbered: HashMap<&'static str, u32, FxBuildHasher>,
    is_full: bool,
}

static NAMES: Mutex<RangeNames> = Mutex::new(RangeNames::EMPTY);

/// Returns the stored name; `None` if the table is full.
pub fn intern(name: &[u8]) -> Option<&'static str> {
    let name = &name[..name.len().min(MAX_NAME_BYTES)];
    match std::str::from_utf8(name) {
        Ok(text) => NAMES.lock().intern(text),
        // The name was cut within a character, or is not UTF-8.
        Err(error) if error.error_len().is_none() => {
            NAMES.lock().intern(std::str::from_utf8(&name[..error.valid_up_to()]).unwrap_or_default())
        }
        Err(_) => NAMES.lock().intern(&String::from_utf8_lossy(name)),
    }
}

impl RangeNames {
    const EMPTY: Self = Self {
        known: HashSet::with_hasher(FxBuildHasher),
        numbered: HashMap::with_hasher(FxBuildHasher),
        is_full: false,
    };

    fn intern(&mut self, name: &str) -> Option<&'static str> {
        let end = ADDED_BY_EMIT_NVTX.iter().filter_map(|added| name.find(added)).min();
        let name = &name[..end.unwrap_or(name.len())];
        if let Some(known) = self.known.get(name) {
            return Some(known);
        }
        if !name.contains(|letter: char| letter.is_ascii_digit()) {
            return self.keep(name);
        }
        let pattern = without_numbers(name);
        match self.numbered.get_mut(pattern.as_str()) {
            Some(count) if *count >= MAX_NUMBERED => self.keep(&pattern),
            Some(count) => {
                *count += 1;
                self.keep(name)
            }
            None => {
                let pattern = self.keep(&pattern)?;
                self.numbered.insert(pattern, 1);
                self.keep(name)
            }
        }
    }

    fn keep(&mut self, name: &str) -> Option<&'static str> {
        if let Some(known) = self.known.get(name) {
            return Some(known);
        }
        if self.known.len() >= MAX_NAMES {
            if !std::mem::replace(&mut self.is_full, true) {
                print_message(&format!(
                    "more than {MAX_NAMES} names of ranges: further ones count as part of the range around them"
                ));
            }
            return None;
        }
        let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
        self.known.insert(kept);
        Some(kept)
    }
}

/// Called in a forked child.
///
/// Ranges that its thread holds stay valid.
pub fn reset_in_child() {
    locks::reset_in_child(&NAMES, RangeNames::EMPTY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let mut names = RangeNames::EMPTY;
        let (first, again) = (names.intern("forward").unwrap(), names.intern("forward").unwrap());
        assert!(std::ptr::eq(first, again));
        // The suffixes of PyTorch's emit_nvtx differ every time.
        assert_eq!(names.intern("aten::add, seq = 17, op_id = 4711"), Some("aten::add"));
        assert_eq!(names.intern("aten::add, op_id = 4712"), Some("aten::add"));
    }

    #[test]
    fn many_numbers_become_one_name() {
        // GIVEN a program that numbers its steps
        let mut names = RangeNames::EMPTY;
        let kept: Vec<&str> = (0..1000).map(|step| names.intern(&format!("step {step}")).unwrap()).collect();
        // THEN the first ones are kept apart, and all others share one name
        assert_eq!((kept[0], kept[127], kept[128], kept[999]), ("step 0", "step 127", "step #", "step #"));
        // AND the first ones still keep their names
        assert_eq!(names.intern("step 5"), Some("step 5"));
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let mut names = RangeNames::EMPTY;
        let letters = |mut number: usize| {
            let mut text = String::new();
            while number > 0 {
                text.push((b'a' + (number % 26) as u8) as char);
                number /= 26;
            }
            text
        };
        let kept = (1..6000).filter(|number| names.intern(&letters(*number)).is_some()).count();
        assert_eq!(kept, MAX_NAMES);
        assert!(names.intern("b").is_some() && names.intern("something else").is_none());
    }

    #[test]
    fn names_of_any_bytes() {
        assert_eq!(intern(b"gr\xc3\xb6\xc3\x9fer"), Some("größer"));
        assert_eq!(intern(b"\xffx"), Some("\u{fffd}x"));
        // A character that the length limit cuts in two is omitted.
        let long = "ö".repeat(200);
        assert_eq!(intern(&long.as_bytes()[1..]).map(str::len).map(|length| length > 200), Some(true));
        assert_eq!(intern(long.as_bytes()).map(str::len), Some(MAX_NAME_BYTES));
        assert_eq!(intern(&[b"x", long.as_bytes()].concat()).map(str::len), Some(MAX_NAME_BYTES - 1));
    }
}
