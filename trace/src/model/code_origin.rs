//! Whose code a frame runs: what decides at which line of a stack an allocation is counted.
//!
//! The program's own files are told from libraries by where they lie, in this order:
//!
//! 1. Files that the process said belong to the program (the package that was started by `python -m`, the script that
//!    was started): the user's, wherever they lie.
//! 2. Code that was typed or handed over as text (`python -c`, standard input, notebook cells): the user's.
//! 3. Other text that was compiled (`<eval_with_key>.5`, `<frozen runpy>`, what `dataclasses` makes), and files below
//!    the caches of torch.compile: generated.
//! 4. Files below PyTorch's root: PyTorch's.
//! 5. Files in `site-packages` or `dist-packages`: a library's.
//! 6. Files below Python's root or in a folder `lib/python3.x`: the standard library's.
//! 7. Everything else: the user's. So are packages installed as editable, whose files lie in the user's folders.

use serde::{Deserialize, Serialize};

use crate::record;

/// Whose code a frame runs, best first: a stack is counted at its innermost frame of the best kind it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeOrigin {
    /// The program's own.
    User,
    /// An installed package's.
    Library,
    /// PyTorch's.
    Torch,
    /// Python's own library's.
    StandardLibrary,
    /// Made by a program: graphs of torch.fx, what torch.compile wrote, frozen modules, methods of data classes.
    #[default]
    Generated,
}

impl CodeOrigin {
    /// All kinds, best first.
    pub const ALL: [Self; 5] = [Self::User, Self::Library, Self::Torch, Self::StandardLibrary, Self::Generated];

    /// Its name in reports' JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Library => "library",
            Self::Torch => "torch",
            Self::StandardLibrary => "standard_library",
            Self::Generated => "generated",
        }
    }
}

/// The most folders of one kind that are kept: a process has a handful.
const ROOTS: usize = 64;

/// The folders by which code is told apart, as far as the trace has named them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeRoots {
    torch: Option<String>,
    python: Option<String>,
    pub(crate) roots: Vec<record::CodeRoot>,
}

impl CodeRoots {
    /// Takes the root of a software; whether it is one that matters here and is new.
    pub(crate) fn define_software(&mut self, software: &record::Software) -> bool {
        let known = match software.software.as_str() {
            "torch" => &mut self.torch,
            "python" => &mut self.python,
            _ => return false,
        };
        let root = Some(software.root.trim_end_matches('/').to_owned()).filter(|root| !root.is_empty());
        let changes = root.is_some() && *known != root;
        if changes {
            *known = root;
        }
        changes
    }

    /// Takes a place of code; whether it is new.
    pub(crate) fn define_root(&mut self, root: record::CodeRoot) -> bool {
        let is_new = !root.root.is_empty() && !self.roots.contains(&root) && self.roots.len() < ROOTS;
        if is_new {
            self.roots.push(root);
        }
        is_new
    }

    /// Whose code a function of this file is.
    pub(crate) fn code_origin(&self, file: &str, function: &str) -> CodeOrigin {
        let said = |kind| self.roots.iter().any(|known| known.code == kind && is_below(file, &known.root));
        if said(record::CodeKind::Program) || is_typed(file, function) {
            return CodeOrigin::User;
        }
        if !file.starts_with('/') || said(record::CodeKind::Generated) || is_compilers(file) {
            return CodeOrigin::Generated;
        }
        if self.torch.as_deref().is_some_and(|root| is_below(file, root)) {
            return CodeOrigin::Torch;
        }
        if parts(file).any(|part| part == "site-packages" || part == "dist-packages") {
            return CodeOrigin::Library;
        }
        if self.python.as_deref().is_some_and(|root| is_below(file, root)) || is_in_python(file) {
            return CodeOrigin::StandardLibrary;
        }
        CodeOrigin::User
    }
}

/// Whether a file is `root` or lies below it.
fn is_below(file: &str, root: &str) -> bool {
    file.strip_prefix(root.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn parts(file: &str) -> impl Iterator<Item = &str> {
    file.split(['/', '\\'])
}

/// Whether it was typed, or handed to Python as text.
fn is_typed(file: &str, function: &str) -> bool {
    /// Beginnings of the names that Python, IPython and others give to what was typed.
    const TYPED: [&str; 12] = [
        "In[",
        "<ipython-input-",
        "<python-input-",
        "<stdin>",
        "<input>",
        "<console>",
        "<timed ",
        "<magic-timeit>",
        "<timeit-src>",
        "<doctest ",
        "<unknown>",
        "<ast>",
    ];
    match file {
        // `python -c` and `exec` are called so, and the methods that dataclasses make as well.
        "<string>" => {
            let is_special = function.starts_with("__") && function.ends_with("__");
            !is_special && !function.contains("__create_fn__")
        }
        _ => TYPED.iter().any(|typed| file.starts_with(typed)),
    }
}

/// Whether it lies where torch.compile and Triton write by default: `/tmp/torchinductor_ada/…`, `~/.triton/cache/…`.
fn is_compilers(file: &str) -> bool {
    parts(file).any(|part| part.starts_with("torchinductor_") || part == ".triton")
}

/// Whether it lies in a folder `lib/python3.x`, where Python keeps its own library.
fn is_in_python(file: &str) -> bool {
    let is_version = |part: &str| {
        let minor = part.strip_prefix("python3.").unwrap_or_default();
        !minor.is_empty() && minor.bytes().all(|digit| digit.is_ascii_digit())
    };
    parts(file).zip(parts(file).skip(1)).any(|(lib, python)| lib.starts_with("lib") && is_version(python))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_apart_by_where_it_lies() {
        // GIVEN what a process says of itself
        let mut places = CodeRoots::default();
        let software = |software: &str, root: &str| record::Software {
            software: software.to_owned(),
            root: root.to_owned(),
            ..record::Software::default()
        };
        assert!(places.define_software(&software("torch", "/src/pytorch/torch")));
        assert!(places.define_software(&software("python", "/opt/py")));
        let root = |code, root: &str| record::CodeRoot { code, root: root.to_owned() };
        assert!(places.define_root(root(record::CodeKind::Program, "/venv/lib/python3.11/site-packages/trainer/")));
        assert!(places.define_root(root(record::CodeKind::Generated, "/scratch/cache")));
        // WHEN files are looked at THEN each is whose it is
        for (file, function, origin) in [
            ("/home/ada/train.py", "main", CodeOrigin::User),
            ("/home/ada/lib/python/train.py", "main", CodeOrigin::User),
            ("/home/ada/site-packages.py", "main", CodeOrigin::User),
            ("/venv/lib/python3.11/site-packages/trainer/loop.py", "fit", CodeOrigin::User),
            ("/venv/lib/python3.11/site-packages/trainers/loop.py", "fit", CodeOrigin::Library),
            ("/usr/lib/python3/dist-packages/numpy/core.py", "f", CodeOrigin::Library),
            ("/src/pytorch/torch/nn/modules/linear.py", "Linear.forward", CodeOrigin::Torch),
            ("/src/pytorch/torchvision/x.py", "f", CodeOrigin::User),
            ("/usr/lib/python3.11/copy.py", "deepcopy", CodeOrigin::StandardLibrary),
            ("/opt/py/threading.py", "run", CodeOrigin::StandardLibrary),
            ("/tmp/torchinductor_ada/ab/cab.py", "call", CodeOrigin::Generated),
            ("/scratch/cache/ab/cab.py", "call", CodeOrigin::Generated),
            ("/scratch/cached.py", "call", CodeOrigin::User),
            ("<eval_with_key>.5", "forward", CodeOrigin::Generated),
            ("<frozen runpy>", "_run_code", CodeOrigin::Generated),
            ("<string>", "<module>", CodeOrigin::User),
            ("<string>", "Net.forward", CodeOrigin::User),
            ("<string>", "__create_fn__.<locals>.__init__", CodeOrigin::Generated),
            ("<string>", "__init__", CodeOrigin::Generated),
            ("<stdin>", "<module>", CodeOrigin::User),
            ("<ipython-input-3-0a1b>", "<module>", CodeOrigin::User),
            ("<timed exec>", "<module>", CodeOrigin::User),
            ("/tmp/ipykernel_12/345.py", "<module>", CodeOrigin::User),
            ("In[3]", "<module>", CodeOrigin::User),
            ("", "", CodeOrigin::Generated),
        ] {
            assert_eq!(places.code_origin(file, function), origin, "{file} {function}");
        }
    }
}
