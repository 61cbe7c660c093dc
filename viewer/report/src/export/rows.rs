//! Rows of a table as JSON and CSV.

use serde_json::{Map, Value, json};

use super::csv;

/// Rows with named columns.
pub struct Rows {
    /// Column names on the screen.
    pub columns: Vec<String>,
    /// Values, one per column.
    pub rows: Vec<Vec<Value>>,
}

impl Rows {
    /// Removes a column.
    pub fn remove(&mut self, column: &str) {
        if let Some(index) = self.columns.iter().position(|name| name == column) {
            self.columns.remove(index);
            self.rows.iter_mut().for_each(|row| _ = row.remove(index));
        }
    }

    /// JSON with the keys and units of `memlab report --json`.
    pub fn json(&self) -> String {
        let row = |row: &Vec<Value>| -> Map<String, Value> {
            let mut keys = Map::new();
            for (column, value) in self.columns.iter().zip(row) {
                match (key(column), value) {
                    ("line", Value::String(place)) => {
                        let (file, line) = split_place(place);
                        keys.insert("file".to_owned(), json!(file));
                        keys.insert("line".to_owned(), json!(line));
                    }
                    // Events are in the order of their numbers; another column contains their times.
                    ("time", _) => {}
                    (key, value) => _ = keys.insert(key.to_owned(), value.clone()),
                }
            }
            keys
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        format!("{:#}\n", json!(rows))
    }

    /// As comma-separated values with a heading.
    pub fn csv(&self) -> String {
        let line = |cells: Vec<String>| cells.join(",") + "\r\n";
        let mut text = line(self.columns.iter().map(|column| csv::field(column).into_owned()).collect());
        for row in &self.rows {
            text += &line(row.iter().map(cell).collect());
        }
        text
    }
}

/// Key of a column in the JSON report.
fn key(column: &str) -> &str {
    match column {
        "now" => "live_bytes",
        "at peak" => "live_bytes_at_peak",
        "own peak" => "peak_live_bytes",
        "+/step" => "bytes_per_step",
        "GPU time" => "gpu_time_ns",
        "forward" => "forward_gpu_time_ns",
        "each" => "gpu_time_ns_per_call",
        "whole name" => "whole_name",
        "of the link" => "share_of_link",
        "copies and fills" | "kernel" => "name",
        "blocks" => "live_blocks",
        "backward" => "backward_bytes_at_peak",
        "allocs/s" => "allocations_per_second",
        "allocs" => "allocations",
        "total" | "allocated" => "allocated_bytes",
        "params" => "parameter_bytes",
        "grads" => "gradient_bytes",
        "optim" => "optimizer_state_bytes",
        "activ" => "activation_bytes",
        "Σ forward" => "forward_bytes",
        "Σ backwd" => "backward_bytes",
        "layer" => "name",
        "class" => "type",
        "step" => "index",
        "ended at" => "end_time_ns",
        "took" => "duration_ns",
        "peak" => "peak_allocated_bytes",
        "kept" => "allocated_bytes_at_end",
        "samples/s" => "samples_per_second",
        "offloaded" => "offloaded_bytes",
        "growth" => "growth_bytes",
        "reserved" => "reserved_bytes",
        "in use" => "used_bytes",
        "steps" => "steps_ended",
        "event" => "number",
        "size" => "bytes",
        "what" => "kind",
        "segment bytes" => "segment_bytes",
        other => other,
    }
}

/// File and line of `train.py:31`; `None` for other texts.
fn split_place(place: &str) -> (Option<&str>, Option<u32>) {
    match place.rsplit_once(':').map(|(file, line)| (file, line.parse())) {
        Some((file, Ok(line))) => (Some(file), Some(line)),
        _ => (None, None),
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => csv::field(text).into_owned(),
        number => number.to_string(),
    }
}
