//! Cards by name or by size.

use std::fmt;

use memlab_units::{LimitError, ParseError};

use crate::model::Model;
use crate::models::{MODELS, of_size};

/// A name that no card has. `Display` lists the valid names, the likeliest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCard {
    asked: String,
    /// The error of its size, if it looks like one.
    size: Option<LimitError>,
    names: Vec<&'static str>,
}

impl fmt::Display for UnknownCard {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if let Some(size) = &self.size {
            return size.fmt(f);
        }
        write!(f, "no card is called {:?}: write a size such as 24GiB, or one of {}", self.asked, self.names.join(", "))
    }
}

impl std::error::Error for UnknownCard {}

/// Returns the card that `text` names: a name of the table, its name in CUDA, or a size, for an H100 with this much
/// memory.
///
/// Ignores case, spaces, hyphens and the makers' words ("NVIDIA", "GeForce", "RTX", …).
///
/// # Errors
///
/// If no card has this name.
///
/// ```
/// assert_eq!(simgpu_cards::find("A100-40GB").unwrap().multiprocessors, 108);
/// assert_eq!(simgpu_cards::find("GeForce RTX 4090").unwrap().name, "rtx-4090");
/// assert_eq!(simgpu_cards::find("24GiB").unwrap().memory, 24 << 30);
/// assert!(simgpu_cards::find("24G").unwrap_err().to_string().starts_with("24G is ambiguous: write 24GiB"));
/// assert!(simgpu_cards::find("h1000").unwrap_err().to_string().contains("one of h100, h100-pcie, h200, "));
/// ```
pub fn find(text: &str) -> Result<Model, UnknownCard> {
    let asked = essence(text);
    let is_it = |model: &&Model| essence(model.name) == asked || essence(model.device_name) == asked;
    if let Some(model) = MODELS.iter().find(is_it) {
        return Ok(*model);
    }
    let size = match memlab_units::parse_limit(text) {
        Ok(bytes) => return Ok(of_size(bytes)),
        Err(LimitError::Size(ParseError::NotASize(_))) => None,
        Err(error) => Some(error),
    };
    let mut names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
    names.sort_by_key(|name| (distance(&asked, &essence(name)), name.len()));
    Err(UnknownCard { asked: text.to_owned(), size, names })
}

/// Returns the part of a name that distinguishes it.
fn essence(name: &str) -> String {
    let words = name.split(|character: char| !character.is_ascii_alphanumeric()).map(str::to_ascii_lowercase);
    let joined: String = words.filter(|word| !matches!(word.as_str(), "nvidia" | "geforce" | "tesla")).collect();
    joined.strip_prefix("rtx").map_or(joined.clone(), str::to_owned)
}

/// Returns the number of letters to change, add or remove to turn `from` into the beginning of `to`.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (done, letter) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], done + 1);
        for (index, other) in to.bytes().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[index + 1];
            row[index + 1] = changed.min(row[index] + 1).min(diagonal + 1);
        }
    }
    row.into_iter().min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_found_by_each_of_its_names() {
        // GIVEN every card, WHEN it is looked up by its name here, in CUDA, and in other spellings, THEN it is found.
        for model in MODELS {
            let spellings = [model.name.to_owned(), model.device_name.to_owned(), model.name.to_uppercase()];
            for text in spellings.into_iter().chain([model.name.replace('-', " "), model.name.replace('-', "")]) {
                assert_eq!(find(&text).map(|found| found.name), Ok(model.name), "{text}");
            }
        }
        assert_eq!(find("3090").unwrap().name, "rtx-3090");
    }

    #[test]
    fn a_size_is_an_h100_of_that_size() {
        let (card, h100) = (find("24 gib").unwrap(), find("h100").unwrap());
        assert_eq!((card.memory, card.multiprocessors, card.context), (24 << 30, 132, h100.context));
        assert!(find("24").is_err() && find("0GiB").is_err());
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_are_alike() {
        for (text, first) in
            [("a100", "a100-80gb, a100-40gb"), ("v100", "v100-32gb, v100-16gb"), ("rtx 4095", "rtx-4090")]
        {
            let said = find(text).unwrap_err().to_string();
            assert!(said.contains(&format!("one of {first}, ")), "{said}");
        }
    }
}
