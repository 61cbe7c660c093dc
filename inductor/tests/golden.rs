//! Compares wrappers of one program, from several versions of PyTorch, with the nodes of AOTAutograd's graphs at
//! compile time.
//!
//! (Kernels are cut.)

use std::fmt::Write as _;
use std::path::Path;

use memlab_inductor::{Graph, Kind, Wrapper, origins};

/// Inductor's record of a wrapper's lines.
#[derive(serde::Deserialize)]
struct LineMap {
    traces: Vec<String>,
    /// Indices into `traces`, each valid from its line on.
    lines: Vec<(u32, Option<usize>)>,
}

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the line, module and source line of each allocation.
fn found(version: &str, kind: &str, with_lines: bool) -> String {
    let graph = Graph::parse(read(&format!("{version}-graph.json")).as_bytes()).expect("the graph is read");
    let map: LineMap =
        serde_json::from_str(&read(&format!("{version}-{kind}-lines.json"))).expect("the map of lines is read");
    let trace = |trace: &Option<usize>| trace.map(|trace| map.traces[trace].as_str());
    let mut lines: Vec<(u32, Option<&str>)> = map.lines.iter().map(|(line, known)| (*line, trace(known))).collect();
    if !with_lines {
        lines.clear();
    }
    let forward = Wrapper::parse(&read(&format!("{version}-forward.txt")));
    let source = read(&format!("{version}-{kind}.txt"));
    let wrapper = Wrapper::parse(&source);
    let is_backward = wrapper.kind() == Kind::Backward;
    assert_eq!(is_backward, kind == "backward");
    let origins = origins(&graph, is_backward.then_some(&forward), &wrapper, &lines);
    let mut text = String::new();
    for (line, code) in (1..).zip(source.lines()).filter(|(_, code)| code.contains(" = empty_strided_cuda(")) {
        let origin = origins.at(line).cloned().unwrap_or_default();
        let module = origin.modules.last().map_or("-", |module| module.path.as_str());
        let from = origin.frames.last().map_or(0, |frame| frame.line);
        let name = code.trim_start().split(' ').next().unwrap_or_default();
        writeln!(text, "{line} {name} {module} {from}").expect("a string takes any text");
    }
    text
}

#[test]
fn given_wrappers_of_four_versions_when_origins_are_determined_then_each_allocation_has_its_module_and_line() {
    for version in ["2.6", "2.8", "2.11", "2.15"] {
        for kind in ["forward", "backward"] {
            let expected = read(&format!("{version}-{kind}-expected.txt"));
            assert_eq!(found(version, kind, true), expected, "{version} {kind}");
        }
    }
}

#[test]
fn given_forward_without_a_map_of_lines_when_origins_are_determined_then_names_say_the_same() {
    for version in ["2.6", "2.8", "2.11", "2.15"] {
        assert_eq!(found(version, "forward", false), read(&format!("{version}-forward-expected.txt")), "{version}");
    }
}
