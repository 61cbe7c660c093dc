//! Short names of source files in tables.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use memlab_trace::{Line, Model};

use crate::text::{is_installed, short_path};

/// Short names of the source files of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileNames {
    directory: String,
    names: HashMap<Arc<str>, String>,
}

impl FileNames {
    /// Names files by the shortest end of their path that no other file has. Names of installed files start at the
    /// package.
    pub fn new<'f>(files: impl Iterator<Item = &'f Arc<str>>, directory: &str) -> Self {
        let files: BTreeSet<&Arc<str>> = files.filter(|file| !is_installed(file)).collect();
        let mut names = HashMap::new();
        let mut open: Vec<&Arc<str>> = files.into_iter().collect();
        for parts in 1.. {
            let mut counts: HashMap<&str, usize> = HashMap::new();
            open.iter().for_each(|file| *counts.entry(end(file, parts)).or_default() += 1);
            open.retain(|file| {
                let name = end(file, parts);
                let is_unique = counts[name] == 1 || name.len() == file.len();
                if is_unique {
                    names.insert(Arc::clone(file), name.to_owned());
                }
                !is_unique
            });
            if open.is_empty() {
                break;
            }
        }
        Self { directory: directory.to_owned(), names }
    }

    /// Names the files of a run.
    pub fn of(model: &Model) -> Self {
        Self::new(model.files(), model.header().map_or("", |header| header.directory.as_str()))
    }

    /// Names files by their path below a directory.
    pub fn in_directory(directory: &str) -> Self {
        Self::new([].into_iter(), directory)
    }

    /// A file for display: `train.py`.
    pub fn file<'f>(&'f self, file: &'f str) -> &'f str {
        self.names.get(file).map_or_else(|| short_path(file, &self.directory), String::as_str)
    }

    /// A line for display: `train.py:31`.
    pub fn place(&self, line: &Line) -> String {
        let file = self.file(&line.file);
        line.line.map_or_else(|| file.to_owned(), |number| format!("{file}:{number}"))
    }
}

/// The last parts of a path.
fn end(path: &str, parts: usize) -> &str {
    path.rmatch_indices('/').nth(parts - 1).map_or(path, |(at, _)| &path[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_folders_that_tell_it_apart() {
        // GIVEN two files of one name, one of another, and one of a package
        let files = [
            "/home/ada/gpt/train.py",
            "/home/ada/gpt/nets/model.py",
            "/home/ada/gpt/old/nets/model.py",
            "/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py",
            "model.py",
        ];
        let files = files.map(Arc::<str>::from);
        let names = FileNames::new(files.iter(), "/home/ada/gpt");
        let place = |file: &Arc<str>| names.place(&Line { file: file.clone(), line: Some(7), function: "f".into() });
        // THEN each has the fewest folders
        assert_eq!(
            files.each_ref().map(place),
            ["train.py:7", "gpt/nets/model.py:7", "old/nets/model.py:7", "torch/nn/modules/linear.py:7", "model.py:7",]
        );
        // AND a file that came later has its path below the program's directory
        assert_eq!(place(&"/home/ada/gpt/late/data.py".into()), "late/data.py:7");
    }
}
