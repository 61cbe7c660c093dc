//! Filters entered with `/`: words, regular expressions and conditions. A row must meet all of them.
//!
//! | written | a row passes if |
//! |---|---|
//! | `attn` | one of its texts contains it; upper and lower case are the same |
//! | `/h\.[0-3]\./` | one of its texts matches the regular expression |
//! | `size>1MiB` | its bytes are more: `>`, `>=`, `<`, `<=`, `=` |
//! | `layer:h.3` | its layer is `h.3` or inside it |
//! | `category:activation` | it holds memory of the category |
//! | `line:model.py`, `function:forward`, `class:Linear`, `kind:free`, `phase:backward`, `device:1` | that text contains it |
//!
//! A line passes by the layers, classes and categories of its allocations. A layer passes by the lines that allocated
//! its memory.
//!
//! | written | a row passes if |
//! |---|---|
//! | `!word`, `!layer:h.3` … | it does not meet the condition |

use memlab_trace::Category;
use regex::{Regex, RegexBuilder};

use crate::category::{category_list, category_names};

/// Fields of a row that a condition can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Qualified name of a layer.
    Layer,
    /// Name of a category.
    Category,
    /// File and line.
    Line,
    /// Name of a function.
    Function,
    /// Class of a module.
    Class,
    /// Kind of an event.
    Kind,
    /// Phase of the program.
    Phase,
    /// Number of a device.
    Device,
}

const FIELDS: [(&str, Field); 8] = [
    ("layer", Field::Layer),
    ("category", Field::Category),
    ("line", Field::Line),
    ("function", Field::Function),
    ("class", Field::Class),
    ("kind", Field::Kind),
    ("phase", Field::Phase),
    ("device", Field::Device),
];

/// A row that can be filtered.
pub trait Filterable {
    /// Texts that words are searched in.
    fn texts(&self) -> Vec<&str>;
    /// Bytes, as shown.
    fn bytes(&self) -> u64;
    /// Texts of a field. If empty, rows of this kind lack the field and none passes.
    fn field(&self, field: Field) -> Vec<&str>;
}

#[derive(Clone, Debug)]
enum Condition {
    Word(String),
    Matches(Regex),
    Field(Field, String),
    Category(Vec<Category>),
    Size(Comparison, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    More,
    AtLeast,
    Less,
    AtMost,
    Equal,
}

/// A parsed filter.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    conditions: Vec<(bool, Condition)>,
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    ///
    /// A message for the user about the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        let conditions = words(text).into_iter().map(|word| {
            let (wanted, word) = match word.strip_prefix('!') {
                Some(rest) if !rest.is_empty() => (false, rest.to_owned()),
                _ => (true, word),
            };
            condition(&word).map(|condition| (wanted, condition))
        });
        Ok(Self { conditions: conditions.collect::<Result<_, _>>()? })
    }

    /// Parses a filter that is being typed: without its last word if that is incomplete.
    ///
    /// # Errors
    ///
    /// As [`Filter::parse`] of the whole text; the filter is that of the complete words.
    pub fn parse_typed(text: &str) -> (Self, Result<(), String>) {
        let whole = Self::parse(text);
        let mut typed = words(text);
        let is_begun = |word: &String| {
            let word = word.trim_start_matches('!');
            word.len() > 1 && FIELDS.iter().map(|(name, _)| *name).chain(["size"]).any(|name| name.starts_with(word))
        };
        match whole {
            Ok(filter) if !typed.last().is_some_and(is_begun) => (filter, Ok(())),
            whole => {
                typed.pop();
                (Self::parse(&typed.join(" ")).unwrap_or_default(), whole.map(|_| ()))
            }
        }
    }

    /// True if the filter has no conditions, so that every row passes.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// True if a condition needs the rows related to a row, beyond the row's own texts.
    pub fn asks_for_relations(&self) -> bool {
        let related = [Field::Layer, Field::Class, Field::Line, Field::Function];
        let asks = |condition: &Condition| match condition {
            Condition::Category(_) => true,
            Condition::Field(field, _) => related.contains(field),
            _ => false,
        };
        self.conditions.iter().any(|(_, condition)| asks(condition))
    }

    /// True if a row meets all conditions.
    pub fn passes(&self, row: &impl Filterable) -> bool {
        self.conditions.iter().all(|(wanted, condition)| condition.is_met_by(row) == *wanted)
    }
}

impl Condition {
    fn is_met_by(&self, row: &impl Filterable) -> bool {
        match self {
            Self::Word(word) => row.texts().iter().any(|text| text.to_lowercase().contains(word)),
            Self::Matches(regex) => row.texts().iter().any(|text| regex.is_match(text)),
            Self::Field(Field::Layer, layer) => row.field(Field::Layer).iter().any(|name| is_in_layer(name, layer)),
            Self::Category(wanted) => {
                let names = row.field(Field::Category);
                wanted.iter().any(|category| names.contains(&category.as_str()))
            }
            Self::Field(field, wanted) => row.field(*field).iter().any(|text| text.to_lowercase().contains(wanted)),
            Self::Size(comparison, size) => {
                let bytes = row.bytes();
                match comparison {
                    Comparison::More => bytes > *size,
                    Comparison::AtLeast => bytes >= *size,
                    Comparison::Less => bytes < *size,
                    Comparison::AtMost => bytes <= *size,
                    Comparison::Equal => bytes == *size,
                }
            }
        }
    }
}

/// True if a layer is the wanted one or inside it. A partial name, such as `attn`, matches anywhere.
fn is_in_layer(name: &str, wanted: &str) -> bool {
    let name = name.to_lowercase();
    let bounded = |at: usize| {
        let before = name[..at].chars().next_back().is_none_or(|character| character == '.');
        let after = name[at + wanted.len()..].chars().next().is_none_or(|character| character == '.');
        before && after
    };
    // `h.1` does not match `h.10`. A name without a digit at the end may still be incomplete.
    let ends_in_digit = wanted.ends_with(|character: char| character.is_ascii_digit());
    name.match_indices(wanted).any(|(at, _)| if ends_in_digit { bounded(at) } else { true })
}

/// Splits a text into words. Blanks inside `/…/` do not separate words.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut in_regex = false;
    for character in text.chars() {
        if character == '/' && (in_regex || word.is_empty() || word == "!") {
            in_regex = !in_regex;
        }
        if character.is_whitespace() && !in_regex {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        } else {
            word.push(character);
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

fn condition(word: &str) -> Result<Condition, String> {
    if let Some(pattern) = word.strip_prefix('/') {
        // Without its closing `/`, a pattern is still being typed, or is a path such as /home/ada: treat it as a word.
        let Some(pattern) = pattern.strip_suffix('/').filter(|pattern| !pattern.is_empty()) else {
            return Ok(Condition::Word(word.to_lowercase()));
        };
        let regex = RegexBuilder::new(pattern).case_insensitive(true).size_limit(1 << 20).build();
        return regex
            .map(Condition::Matches)
            .map_err(|_| format!("{pattern} is not a regular expression; to search for the text, omit the slashes"));
    }
    if let Some(rest) = word.strip_prefix("size")
        && rest.starts_with(['<', '>', '='])
    {
        return size_condition(rest);
    }
    if let Some((name, wanted)) = word.split_once(':')
        && let Some((_, field)) = FIELDS.iter().find(|(known, _)| *known == name)
    {
        return match field {
            Field::Category => category_condition(wanted),
            _ => Ok(Condition::Field(*field, wanted.to_lowercase())),
        };
    }
    Ok(Condition::Word(word.to_lowercase()))
}

/// Categories that a text names, in full or in part, by the names in JSON reports or on the screens.
fn category_condition(wanted: &str) -> Result<Condition, String> {
    let plain = |name: &str| name.to_lowercase().replace([' ', '-'], "_");
    let is_named = |category: &Category| {
        let (long, short) = category_names(*category);
        [category.as_str(), long, short].iter().any(|name| plain(name).contains(&plain(wanted)))
    };
    let found: Vec<Category> = Category::ALL.into_iter().filter(is_named).collect();
    match found.is_empty() {
        true => Err(format!("unknown category {wanted}; choose one of {}", category_list())),
        false => Ok(Condition::Category(found)),
    }
}

fn size_condition(text: &str) -> Result<Condition, String> {
    const COMPARISONS: [(&str, Comparison); 5] = [
        (">=", Comparison::AtLeast),
        ("<=", Comparison::AtMost),
        (">", Comparison::More),
        ("<", Comparison::Less),
        ("=", Comparison::Equal),
    ];
    let (size, comparison) = COMPARISONS
        .iter()
        .find_map(|(sign, comparison)| Some((text.strip_prefix(sign)?, *comparison)))
        .ok_or("write size>1MiB")?;
    let bytes = memlab_units::parse_size(size).map_err(|error| error.to_string())?;
    Ok(Condition::Size(comparison, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Layer(&'static str, u64);

    impl Filterable for Layer {
        fn texts(&self) -> Vec<&str> {
            vec![self.0, "Linear"]
        }

        fn bytes(&self) -> u64 {
            self.1
        }

        fn field(&self, field: Field) -> Vec<&str> {
            match field {
                Field::Layer => vec![self.0],
                Field::Category => vec!["activation", "parameter"],
                _ => Vec::new(),
            }
        }
    }

    fn passing(text: &str) -> Vec<&'static str> {
        let rows =
            [Layer("h.1.attn", 512), Layer("h.10.attn", 2 << 20), Layer("h.1.mlp.fc", 8 << 20), Layer("head", 0)];
        let filter = Filter::parse(text).unwrap();
        rows.iter().filter(|row| filter.passes(*row)).map(|row| row.0).collect()
    }

    #[test]
    fn an_incomplete_word_hides_nothing() {
        // GIVEN the rows that pass while a filter is typed
        let passing = |text: &str| {
            let (filter, whole) = Filter::parse_typed(text);
            let rows = [Layer("h.1.attn", 512), Layer("h.10.attn", 2 << 20)];
            (rows.iter().filter(|row| filter.passes(*row)).count(), whole.is_ok())
        };
        // THEN a begun condition, and one with a mistake, do not empty the table
        for text in ["", "h", "si", "size", "size>", "cat", "category:act", "!la", "layer"] {
            assert_eq!(passing(text).0, 2, "{text}");
        }
        assert_eq!([passing("category:nothing"), passing("size>x")], [(2, false), (2, false)]);
        // AND earlier words still count
        assert_eq!(passing("h.10 categ"), (1, true));
        assert_eq!(passing("h.10 size>1GiB"), (0, true));
    }

    #[test]
    fn all_conditions_must_be_met() {
        assert_eq!(passing(""), ["h.1.attn", "h.10.attn", "h.1.mlp.fc", "head"]);
        assert_eq!(passing("ATTN"), ["h.1.attn", "h.10.attn"]);
        assert_eq!(passing("attn size>1MiB"), ["h.10.attn"]);
        assert_eq!(passing("size>=8mib"), ["h.1.mlp.fc"]);
        assert_eq!(passing("size=512B"), ["h.1.attn"]);
        assert_eq!(passing("!attn !head"), ["h.1.mlp.fc"]);
        assert_eq!(passing("linear size<1kB"), ["h.1.attn", "head"]);
        assert_eq!(passing("/^h\\.\\d+\\.(mlp|x)/"), ["h.1.mlp.fc"]);
        assert_eq!(passing("category:act size<=512B"), ["h.1.attn", "head"]);
        assert_eq!(passing("category:gradient"), [""; 0]);
        assert_eq!(passing("kind:free"), [""; 0]);
    }

    #[test]
    fn a_layer_is_meant_with_what_is_inside_it() {
        assert_eq!(passing("layer:h.1"), ["h.1.attn", "h.1.mlp.fc"]);
        assert_eq!(passing("layer:attn"), ["h.1.attn", "h.10.attn"]);
        assert_eq!(passing("!layer:h.1"), ["h.10.attn", "head"]);
    }

    #[test]
    fn half_typed_filters_are_words_and_wrong_ones_are_errors() {
        assert_eq!(passing("/h\\.1"), [""; 0]);
        assert_eq!(passing("!"), [""; 0]);
        let error = Filter::parse("/[/").unwrap_err();
        assert_eq!(error, "[ is not a regular expression; to search for the text, omit the slashes");
        assert_eq!(passing("["), [""; 0]);
        let error = Filter::parse("category:weights").unwrap_err();
        assert!(error.starts_with("unknown category weights; choose one of parameter, gradient"), "{error}");
        assert!(
            Filter::parse("category:parameters category:optimizer-s").is_ok() && Filter::parse("category:").is_ok()
        );
        assert!(Filter::parse("size>much").unwrap_err().starts_with("\"much\" is not a size"));
        assert_eq!(Filter::parse("size>512").unwrap_err(), "512 has no unit; did you mean 512MiB?");
        assert!(Filter::parse("size>").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_brings_it_down(text: String) {
            if let Ok(filter) = Filter::parse(&text) {
                filter.passes(&Layer("ünï.1", 5));
            }
        }
    }
}
