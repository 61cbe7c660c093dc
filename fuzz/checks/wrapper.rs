//! Checks that arbitrary bytes as a graph, a zero byte and a wrapper or the source of a package never panic.
//!
//! Every origin must be an existing line.

use memlab_inductor::{Graph, Package, Wrapper, origins};

pub fn check(bytes: &[u8]) {
    let split = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    let (json, source) = bytes.split_at(split);
    let graph = Graph::parse(json).unwrap_or_default();
    let source = String::from_utf8_lossy(source);
    let package = Package::parse(&source);
    let count = source.lines().count() as u32;
    assert!(package.node(0).is_none() && package.node(count + 1).is_none());
    let wrapper = Wrapper::parse(&source);
    for (line, _) in origins(&graph, Some(&wrapper), &wrapper, &[]).lines() {
        assert!(line >= 1 && line as usize <= source.lines().count());
    }
}
