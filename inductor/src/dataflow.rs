//! Candidates in a wrapper that names no operations, such as a backward captured by compiled autograd: its comments are
//! empty, and Inductor records no traces.
//!
//! The wrapper still computes the graph's values from the same inputs. An operation and the memory of its value
//! therefore depend, directly or indirectly, on the same inputs of the graph. In a backward, each layer adds its own
//! inputs: its weights and the values its forward kept. Operations that depend on the same inputs usually belong to one
//! layer. A returned value is the graph's result at that position.

use crate::graph::Graph;
use crate::scan::number;
use crate::wrapper::Wrapper;

/// The graph's inputs on which a value depends.
#[derive(Clone, Default, PartialEq, Eq)]
struct Inputs {
    words: Vec<u64>,
}

impl Inputs {
    fn insert(&mut self, input: usize) {
        let word = input / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (input % 64);
    }

    fn extend(&mut self, others: &Self) {
        if self.words.len() < others.words.len() {
            self.words.resize(others.words.len(), 0);
        }
        for (word, other) in self.words.iter_mut().zip(&others.words) {
            *word |= other;
        }
    }
}

/// Returns the candidates of each value that a wrapper computes.
///
/// `None`: its names or traces are better evidence, or its arguments are not the graph's inputs.
pub(crate) fn candidates_of_values(graph: &Graph, wrapper: &Wrapper) -> Option<Vec<Vec<usize>>> {
    let says_nothing = wrapper.launches.iter().all(|launch| launch.sources.is_empty());
    let arguments = wrapper.values.iter().filter(|value| value.argument.is_some()).count();
    if !says_nothing || arguments != graph.inputs() {
        return None;
    }
    let of_operations = inputs_of_operations(graph);
    let mut found = vec![Vec::new(); wrapper.values.len()];
    let mut of_values: Vec<Inputs> = Vec::with_capacity(wrapper.values.len());
    for value in &wrapper.values {
        let mut inputs = Inputs::default();
        if let Some(argument) = &value.argument {
            inputs.insert(input(argument).filter(|input| *input < graph.inputs())?);
        }
        of_values.push(inputs);
    }
    let results = results(graph, wrapper);
    for (number, launch) in wrapper.launches.iter().enumerate() {
        let is_new = |value: usize| {
            wrapper.values[value].argument.is_none() && wrapper.values[value].first_launch == Some(number)
        };
        let mut read = Inputs::default();
        for &value in launch.uses.iter().filter(|value| !is_new(**value)) {
            read.extend(&of_values[value]);
        }
        for &value in launch.uses.iter().filter(|value| is_new(**value)) {
            // A value that one kernel computes from several inputs need not depend on all of them. A known result is
            // better evidence.
            if let Some(result) = results[value] {
                of_values[value] = of_operations[result].clone();
                found[value] = vec![result];
            } else {
                found[value] = graph.operations().filter(|node| of_operations[*node] == read).collect();
                of_values[value] = read.clone();
            }
        }
    }
    Some(found)
}

fn inputs_of_operations(graph: &Graph) -> Vec<Inputs> {
    let mut known: Vec<Inputs> = Vec::with_capacity(graph.len());
    let mut inputs = 0;
    for node in 0..graph.len() {
        let mut own = Inputs::default();
        if graph.is_input(node) {
            own.insert(inputs);
            inputs += 1;
        }
        for used in graph.inputs_of(node) {
            if let Some(used) = known.get(*used) {
                own.extend(used);
            }
        }
        known.push(own);
    }
    known
}

/// Returns the operation whose result each returned value is.
fn results(graph: &Graph, wrapper: &Wrapper) -> Vec<Option<usize>> {
    let mut results = vec![None; wrapper.values.len()];
    if wrapper.results.len() == graph.results().len() {
        for (value, operation) in wrapper.results.iter().zip(graph.results()) {
            if let (Some(value), false) = (value, graph.is_input(*operation)) {
                results[*value] = Some(*operation);
            }
        }
    }
    results
}

/// Returns the index of the graph's input for an argument such as `arg12_1`.
fn input(argument: &str) -> Option<usize> {
    number(argument.strip_suffix("_1")?, "arg")
}
