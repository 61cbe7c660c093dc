//! Rows of a table for a file: all columns, sizes in bytes.

use serde_json::{Value, json};

use super::columns::Column;
use crate::size_units::Units;
use memlab_report::export::rows::Rows;

/// All columns, sizes in bytes, followed by the name and the columns `more`.
pub fn rows_of<C: Column>(
    rows: &[C::Item],
    more: &[&str],
    named: impl Fn(&C::Item) -> (Option<String>, Vec<Value>),
) -> Rows {
    let figures = || C::ALL.iter().filter(|column| column.columns() > 0);
    let name =
        C::ALL.iter().find(|column| column.columns() == 0).map(|column| column.title()).filter(|name| !name.is_empty());
    let titles = figures().map(|column| column.title()).chain(name).chain(more.iter().copied());
    let row = |row: &C::Item| {
        let value = |column: &C| match column.figure(row) {
            Some(figure) if figure.fract() == 0.0 && figure.abs() < 9e15 => json!(figure as i64),
            Some(figure) => json!(figure),
            None => json!(column.text(row, Units::Bytes)),
        };
        let (place, more) = named(row);
        figures().map(value).chain(name.map(|_| place.into())).chain(more).collect()
    };
    Rows { columns: titles.map(str::to_owned).collect(), rows: rows.iter().map(row).collect() }
}
