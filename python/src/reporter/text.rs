//! Text of a table with thousands of rows.

use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::sizes::short_size;

/// See `_native.pyi`.
#[pyfunction]
pub fn table_rows(
    names: &Bound<PyList>,
    shares: Option<&Bound<PyList>>,
    shapes: &Bound<PyList>,
    sizes: Vec<u64>,
    widths: [usize; 3],
) -> PyResult<(String, usize)> {
    let (names, shapes): (Vec<Bound<PyAny>>, Vec<Bound<PyAny>>) = (names.iter().collect(), shapes.iter().collect());
    let names = names.iter().map(text).collect::<PyResult<Vec<_>>>()?;
    let names = match shares {
        Some(shares) => names.into_iter().zip(shares).map(|(name, owner)| with_owner(name, &owner)).collect(),
        None => Ok(names),
    }?;
    // Long names, of optimizer state for instance, widen the table.
    let longest = names.iter().map(|name| characters(name)).max().unwrap_or(0);
    let name_width = widths[0].max(longest + 1);
    let mut rows = String::with_capacity(names.len() * (name_width + widths[1] + widths[2] + 1));
    let mut last = (u64::MAX, String::new());
    for ((name, shape), size) in names.iter().zip(&shapes).zip(sizes) {
        if size != last.0 {
            last = (size, short_size(size as i64));
        }
        let shape = text(shape)?;
        if !rows.is_empty() {
            rows.push('\n');
        }
        rows.push_str(name);
        pad(&mut rows, padding(name, name_width) + padding(&shape, widths[1]));
        rows.push_str(&shape);
        pad(&mut rows, padding(&last.1, widths[2]));
        rows.push_str(&last.1);
    }
    Ok((rows, name_width))
}

fn text<'a>(object: &'a Bound<PyAny>) -> PyResult<Cow<'a, str>> {
    Ok(object.cast::<PyString>()?.to_string_lossy())
}

/// Returns `name(->owner)`, if the tensor shares the memory of another.
fn with_owner<'a>(name: Cow<'a, str>, owner: &Bound<PyAny>) -> PyResult<Cow<'a, str>> {
    Ok(if owner.is_none() { name } else { format!("{name}(->{})", text(owner)?).into() })
}

fn characters(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

/// Number of characters that a text is shorter than a width.
fn padding(text: &str, width: usize) -> usize {
    width.saturating_sub(characters(text))
}

fn pad(text: &mut String, mut count: usize) {
    const SPACES: &str = "                                                                ";
    while count > SPACES.len() {
        text.push_str(SPACES);
        count -= SPACES.len();
    }
    text.push_str(&SPACES[..count]);
}
