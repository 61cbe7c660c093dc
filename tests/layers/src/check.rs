//! Finds violations of the rules: imports from a layer above, and cycles of files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::imports::{Import, imports};
use crate::tree::{ModulePath, Tree};

/// Returns the violations in the crate with this root file, one paragraph each.
pub fn check(root: &Path) -> Vec<String> {
    let tree = Tree::read(root);
    let imports = imports(&tree);
    let mut wrong = circles(&tree, &imports);
    let source = std::fs::read_to_string(root).expect("the tree was read from it");
    match Drawing::read(&source) {
        Some(drawing) => wrong.extend(drawing.check(&tree, &imports)),
        None if tree.modules.len() > 2 => wrong.push(format!("{} draws no layers", root.display())),
        None => {}
    }
    wrong
}

/// The layers drawn in the root file, top layer first.
struct Drawing {
    layers: Vec<Vec<ModulePath>>,
}

impl Drawing {
    fn read(source: &str) -> Option<Self> {
        let documentation: Vec<&str> = source
            .lines()
            .filter_map(|line| line.strip_prefix("//!"))
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .collect();
        let heading = documentation.iter().position(|line| *line == "# Layers")?;
        let layers = documentation[heading..]
            .iter()
            .skip_while(|line| !line.starts_with("```"))
            .skip(1)
            .take_while(|line| !line.starts_with("```"))
            .map(|line| line.split("  ").next().unwrap_or_default())
            .filter(|names| !names.is_empty())
            .map(|names| names.split(", ").map(|name| name.trim().split("::").map(str::to_owned).collect()).collect())
            .collect();
        Some(Self { layers })
    }

    /// Returns the number of a module's layer, from the top, and the name under which it is drawn.
    fn layer<'m>(&self, module: &'m [String]) -> Option<(usize, &'m [String])> {
        (1..=module.len()).rev().map(|length| &module[..length]).find_map(|name| {
            let number = self.layers.iter().position(|layer| layer.iter().any(|drawn| drawn == name))?;
            Some((number, name))
        })
    }

    fn check(&self, tree: &Tree, imports: &[Import]) -> Vec<String> {
        let mut wrong = Vec::new();
        for name in self.layers.iter().flatten() {
            if !tree.modules.contains_key(name) {
                wrong.push(format!("the drawing names a module that does not exist: {}", name.join("::")));
            }
        }
        for module in tree.modules.keys().filter(|module| !module.is_empty()) {
            if self.layer(module).is_none() {
                wrong.push(format!("the drawing has no layer for {}", module.join("::")));
            }
        }
        for import in imports {
            let broken = match (self.layer(&import.from), self.layer(&import.to)) {
                // The root file is above all layers.
                _ if import.to.is_empty() => true,
                (Some((from, from_name)), Some((to, to_name))) => to <= from && from_name != to_name,
                _ => false,
            };
            if broken {
                wrong.push(format!("not from a lower layer: {}", shown(tree, import)));
            }
        }
        wrong
    }
}

/// Cycles of files, each with its imports.
fn circles(tree: &Tree, imports: &[Import]) -> Vec<String> {
    let mut arrows: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for import in imports {
        arrows.entry(tree.file(&import.from)).or_default().insert(tree.file(&import.to));
    }
    let reachable = |start: &Path| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(file) = open.pop() {
            for &next in arrows.get(file).into_iter().flatten() {
                if seen.insert(next.to_path_buf()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Path, _> = arrows.keys().map(|&file| (file, reachable(file))).collect();
    let mut done = BTreeSet::new();
    let mut circles = Vec::new();
    for (&file, from_here) in &reached {
        if !from_here.contains(file) || done.contains(file) {
            continue;
        }
        let circle: BTreeSet<&Path> = reached
            .keys()
            .copied()
            .filter(|&other| from_here.contains(other) && reached[other].contains(file))
            .collect();
        done.extend(circle.iter().copied());
        let mut text = format!("{} files in a circle:", circle.len());
        for import in imports {
            if circle.contains(tree.file(&import.from)) && circle.contains(tree.file(&import.to)) {
                let _ = write!(text, "\n  {}", shown(tree, import));
            }
        }
        circles.push(text);
    }
    circles
}

fn shown(tree: &Tree, import: &Import) -> String {
    format!("{}:{}  {}", tree.file(&import.from).display(), import.line, import.name)
}
