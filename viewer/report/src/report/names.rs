//! Names of the lines and layers of a trace in its report.

use std::sync::Arc;

use memlab_trace::{LayerView, Line, Model};

use memlab_base::file_names::FileNames;
use memlab_base::text::{COMPILED, NO_LAYER, NO_LINE, clean};

/// Names for one trace.
pub(crate) struct ReportNames<'m> {
    pub(crate) model: &'m Model,
    /// Label of the model's latest state in the tables: `at the end`, `now`, `then`.
    pub latest: &'static str,
    files: FileNames,
    several_roots: bool,
}

impl<'m> ReportNames<'m> {
    /// Makes the names of a run that has ended.
    pub(crate) fn new(model: &'m Model) -> Self {
        Self::until(model, "at the end")
    }

    /// Makes the names of a run up to a moment, which the tables call `latest`.
    pub(crate) fn until(model: &'m Model, latest: &'static str) -> Self {
        let devices = model.devices();
        let files = FileNames::of(model);
        let mut roots: Vec<u32> = devices
            .iter()
            .flat_map(|device| model.layers(device.index))
            .filter(|layer| layer.name.is_some() && layer.root != 0)
            .map(|layer| layer.root)
            .collect();
        roots.sort_unstable();
        roots.dedup();
        Self { model, latest, files, several_roots: roots.len() > 1 }
    }

    /// `train.py:31  main`, followed by a mark if it runs compiled.
    pub(crate) fn line(&self, line: Option<&Arc<Line>>) -> String {
        let Some(line) = line else { return NO_LINE.to_owned() };
        let place = self.files.place(line);
        let function = line.function.rsplit("<locals>.").next().unwrap_or(&line.function);
        let compiled = if self.model.runs_compiled(line) { COMPILED } else { "" };
        clean(format!("{place}  {function}{compiled}").trim_end()).into_owned()
    }

    /// `blocks.0.mlp  Linear`.
    pub(crate) fn layer(&self, layer: &LayerView) -> String {
        let class = layer.class.as_deref().unwrap_or("");
        let root = layer.root_name.as_deref().unwrap_or("");
        let name = match layer.name.as_deref() {
            None => NO_LAYER.to_owned(),
            Some("") if root == class => format!("{root} (outermost)"),
            Some("") => format!("{root}  {class} (outermost)"),
            Some(name) if name.starts_with('<') || class.is_empty() => name.to_owned(),
            Some(name) if self.several_roots && !root.is_empty() => format!("{root}: {name}  {class}"),
            Some(name) => format!("{name}  {class}"),
        };
        clean(name.trim()).into_owned()
    }
}
