//! Elements of an event with strings or nulls.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::DecodeError;

/// One element.
enum Element<'a> {
    Unsigned(u64),
    Negative(i64),
    Text(Cow<'a, str>),
    Null,
    Other,
}

/// Elements of an event after its tag, read one after another.
pub(super) struct Elements<'a> {
    rest: std::iter::Skip<std::vec::IntoIter<Element<'a>>>,
}

impl<'a> Elements<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, DecodeError> {
        let elements: Vec<Element<'a>> = serde_json::from_slice(line)?;
        Ok(Self { rest: elements.into_iter().skip(1) })
    }

    fn next(&mut self) -> Result<Element<'a>, DecodeError> {
        self.rest.next().ok_or(DecodeError::new("an element is missing"))
    }

    /// Reads the next element: an integer in range, or null.
    pub(super) fn optional<T: TryFrom<u64> + TryFrom<i64>>(&mut self) -> Result<Option<T>, DecodeError> {
        let number = match self.next()? {
            Element::Null => return Ok(None),
            Element::Unsigned(value) => T::try_from(value).ok(),
            Element::Negative(value) => T::try_from(value).ok(),
            Element::Text(_) | Element::Other => return Err(DecodeError::new("an element is not an integer")),
        };
        number.map(Some).ok_or(DecodeError::new("a number is out of range"))
    }

    /// Reads the next element: an integer in range.
    pub(super) fn number<T: TryFrom<u64> + TryFrom<i64>>(&mut self) -> Result<T, DecodeError> {
        self.optional()?.ok_or(DecodeError::new("an element is not an integer"))
    }

    /// Reads the next element, if any: an integer in range.
    pub(super) fn number_if_there<T: TryFrom<u64> + TryFrom<i64>>(&mut self) -> Result<Option<T>, DecodeError> {
        if self.rest.len() == 0 { Ok(None) } else { self.number().map(Some) }
    }

    /// Reads the next element: a string.
    pub(super) fn text(&mut self) -> Result<Cow<'a, str>, DecodeError> {
        match self.next()? {
            Element::Text(text) => Ok(text),
            _ => Err(DecodeError::new("an element is not a string")),
        }
    }

    /// Reads the next element, if any, if it is a string.
    pub(super) fn text_if_there(&mut self) -> Option<Cow<'a, str>> {
        match self.rest.next() {
            Some(Element::Text(text)) => Some(text),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Element<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an element of an event")
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Element::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Element::Negative(value))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Element::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Element::Other)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Element::Null)
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Element::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Element::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Element::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Element::Other)
    }
}
