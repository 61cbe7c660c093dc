//! Names of modules and lines, in prose and in code.

use crate::plan::Recording;
use memlab_trace::{Framework, Line};

use crate::advice::block_lifetimes::BlockLifetimes;
use crate::advice::modules::Module;

/// Formats a line as `train.py:12 main`, relative to the directory in which the program started.
pub(crate) fn of_line(recording: &Recording, line: &Line) -> String {
    let directory = recording.model.header().map_or("", |header| &header.directory);
    let file = line.file.strip_prefix(directory).map_or(&*line.file, |inside| inside.trim_start_matches('/'));
    format!("{file}:{} {}", line.line.unwrap_or(0), line.function)
}

/// Returns the framework whose loop allocated most of these blocks.
pub(crate) fn framework(lifetimes: &BlockLifetimes<'_>, blocks: impl Iterator<Item = u32>) -> Option<Framework> {
    let recording = lifetimes.recording;
    let by_stack = blocks.map(|id| (recording.allocations[id as usize].stack, lifetimes.size(id)));
    recording.model.framework(recording.device, by_stack)
}

/// Consecutive modules of a list.
struct ModuleRun<'m> {
    first: &'m Module,
    last: &'m Module,
}

impl ModuleRun<'_> {
    fn is_one(&self) -> bool {
        self.first == self.last
    }
}

/// Formats sorted modules as `blocks.0 … blocks.11, head.2`.
pub(crate) fn grouped(modules: &[Module]) -> String {
    let name = |run: &ModuleRun<'_>| match run.is_one() {
        true => run.first.name(),
        false => format!("{} … {}", run.first.name(), run.last.name()),
    };
    runs(modules).iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Formats the names of modules as a Python list.
pub(crate) fn list_of_names(modules: &[Module]) -> String {
    let part = |run: &ModuleRun<'_>| match run.is_one() {
        true => format!("\"{}\"", run.first.name()),
        false => {
            let prefix = if run.first.list.is_empty() { String::new() } else { format!("{}.", run.first.list) };
            let (first, end) = (run.first.index.unwrap_or(0), run.last.index.unwrap_or(0) + 1);
            let range = if first == 0 { end.to_string() } else { format!("{first}, {end}") };
            format!("(f\"{prefix}{{i}}\" for i in range({range}))")
        }
    };
    let runs = runs(modules);
    match &*runs {
        [run] if !run.is_one() => {
            let generator = part(run);
            format!("[{}]", &generator[1..generator.len() - 1])
        }
        _ => {
            let parts = runs.iter().map(|run| if run.is_one() { part(run) } else { format!("*{}", part(run)) });
            format!("[{}]", parts.collect::<Vec<_>>().join(", "))
        }
    }
}

fn runs(modules: &[Module]) -> Vec<ModuleRun<'_>> {
    let mut runs: Vec<ModuleRun<'_>> = Vec::new();
    for module in modules {
        let follows = |last: &Module| {
            let is_next = last.index.is_some_and(|index| module.index == Some(index + 1));
            is_next && (last.root, &last.list) == (module.root, &module.list)
        };
        match runs.last_mut() {
            Some(run) if follows(run.last) => run.last = module,
            _ => runs.push(ModuleRun { first: module, last: module }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_follow_each_other_are_one_name() {
        // GIVEN modules of two lists, one with a gap, and a module outside lists
        let module = |list: &str, index| Module { root: 1, list: list.to_owned(), index };
        let of_list = |list: &str, index| module(list, Some(index));
        let modules =
            [of_list("blocks", 0), of_list("blocks", 1), of_list("blocks", 3), of_list("", 7), module("middle", None)];
        // THEN consecutive ones are named by the first and the last, and as a range in Python
        assert_eq!(grouped(&modules), "blocks.0 … blocks.1, blocks.3, 7, middle");
        assert_eq!(list_of_names(&modules), r#"[*(f"blocks.{i}" for i in range(2)), "blocks.3", "7", "middle"]"#);
        assert_eq!(list_of_names(&modules[..2]), r#"[f"blocks.{i}" for i in range(2)]"#);
    }
}
