//! Chooses the values to recompute in backward instead of copying them to the host and back.
//!
//! A forward is a list of operations that produce values, and backward needs some of these values. A value is either stored,
//! which takes bytes, or recomputed by its operation. Recomputing takes time and needs the operation's inputs, which are
//! stored or recomputed themselves. At a given price per byte, the cheapest choice is a minimum cut. The price is the
//! smallest one at which the stored bytes fit.

use petgraph::Direction;
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::error::{Error, Result};

/// An operation of a forward.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// Compute time in nanoseconds.
    pub ns: u64,
    /// Indices of the values that it reads, without those that stay in memory anyway.
    pub inputs: Vec<usize>,
    /// Indices of the values that it produces.
    pub outputs: Vec<usize>,
    /// True if a second run produces the same values.
    pub repeatable: bool,
}

/// A forward, and the bytes that can be stored.
#[derive(Clone, Debug, Default)]
pub struct Forward {
    /// Operations, in order.
    pub operations: Vec<Operation>,
    /// Bytes of each value.
    pub bytes: Vec<u64>,
    /// True for each value that backward needs.
    pub needed: Vec<bool>,
    /// Bytes that can be stored without delaying anything.
    pub room: u64,
    /// Nanoseconds for each stored byte beyond `room`.
    pub ns_per_byte: f64,
}

/// Decision for each value and each operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// True for each value that is stored.
    pub stored: Vec<bool>,
    /// True for each operation that runs again.
    pub repeated: Vec<bool>,
    /// Total bytes of the stored values.
    pub stored_bytes: u64,
    /// Compute time of the repeated operations in nanoseconds.
    pub repeated_ns: u64,
}

/// Prices are integers in this fraction of a nanosecond.
const PRICE_RESOLUTION: f64 = 1024.0;

/// Highest cost of storing one value: some minutes.
const MAX_PRICE: u64 = 1 << 48;

/// Relative price difference between the first and the last of equal layers, so that a price can separate them.
const LAYER_PRICE_SPREAD: f64 = 1.0 / 128.0;

/// Relative tolerance of the price at which the search ends.
const PRICE_TOLERANCE: f64 = LAYER_PRICE_SPREAD / 1000.0;

impl Forward {
    /// Returns the choice with the least time.
    ///
    /// # Errors
    ///
    /// If an index is not that of a value, or two operations produce one value.
    pub fn choose(&self) -> Result<Choice> {
        let makers = self.makers()?;
        let dearest = self.cheapest_at(self.ns_per_byte, &makers);
        let free = self.cheapest_at(0.0, &makers);
        if free.stored_bytes <= self.room || dearest.stored_bytes > self.room {
            return Ok(if free.stored_bytes <= self.room { free } else { dearest });
        }
        let (mut low, mut high, mut best) = (0.0, self.ns_per_byte, dearest);
        while high - low > high * PRICE_TOLERANCE {
            let price = (low + high) / 2.0;
            let choice = self.cheapest_at(price, &makers);
            if choice.stored_bytes > self.room {
                low = price;
            } else {
                high = price;
                best = choice;
            }
        }
        Ok(best)
    }

    /// Returns the operation that produces each value.
    fn makers(&self) -> Result<Vec<Option<usize>>> {
        let values = self.bytes.len();
        let mut makers = vec![None; values];
        if self.needed.len() != values {
            return Err(Error::Invalid(format!("{values} values, but {} are needed or not", self.needed.len())));
        }
        for (index, operation) in self.operations.iter().enumerate() {
            if let Some(value) = operation.inputs.iter().chain(&operation.outputs).find(|&&value| value >= values) {
                return Err(Error::Invalid(format!("operation {index} names value {value} of {values}")));
            }
            for &value in &operation.outputs {
                if makers[value].replace(index).is_some() {
                    return Err(Error::Invalid(format!("value {value} is made twice")));
                }
            }
        }
        Ok(makers)
    }

    /// Returns the choice that minimises the time of repeated operations plus the price of stored bytes.
    ///
    /// In the cut's network, a value on the source's side is available in backward, and an operation on that side runs
    /// again.
    fn cheapest_at(&self, ns_per_byte: f64, makers: &[Option<usize>]) -> Choice {
        let mut network = DiGraph::<(), u64>::new();
        let [source, sink] = [network.add_node(()), network.add_node(())];
        let values: Vec<_> = self.bytes.iter().map(|_| network.add_node(())).collect();
        let operations: Vec<_> = self.operations.iter().map(|_| network.add_node(())).collect();
        // Exceeds the sum of all finite capacities.
        let always = u64::MAX >> 8;
        let count = self.bytes.len().max(1) as f64;
        for (index, &value) in values.iter().enumerate() {
            let order = 1.0 + LAYER_PRICE_SPREAD * (1.0 - index as f64 / count);
            let price = ((self.bytes[index] as f64 * ns_per_byte * order * PRICE_RESOLUTION) as u64).min(MAX_PRICE);
            let maker = makers[index].filter(|&maker| self.operations[maker].repeatable);
            network.add_edge(value, maker.map_or(sink, |maker| operations[maker]), price);
            if self.needed[index] {
                network.add_edge(source, value, always);
            }
        }
        for (operation, &node) in self.operations.iter().zip(&operations) {
            if operation.repeatable {
                network.add_edge(node, sink, ((operation.ns as f64 * PRICE_RESOLUTION) as u64).min(MAX_PRICE));
                for &input in &operation.inputs {
                    network.add_edge(node, values[input], always);
                }
            }
        }
        let (_, flows) = dinics(&network, source, sink);
        let is_reached = reached(&network, &flows, source);
        let repeated: Vec<_> = operations.iter().map(|&node| is_reached[node.index()]).collect();
        let is_stored =
            |index: usize| is_reached[values[index].index()] && makers[index].is_none_or(|maker| !repeated[maker]);
        let stored: Vec<_> = (0..values.len()).map(is_stored).collect();
        Choice {
            stored_bytes: self.bytes.iter().zip(&stored).filter(|(_, stored)| **stored).map(|(bytes, _)| bytes).sum(),
            repeated_ns: self
                .operations
                .iter()
                .zip(&repeated)
                .filter(|(_, again)| **again)
                .map(|(one, _)| one.ns)
                .sum(),
            stored,
            repeated,
        }
    }
}

/// Returns the nodes that are reachable from the source after a maximum flow.
fn reached(network: &DiGraph<(), u64>, flows: &[u64], source: NodeIndex) -> Vec<bool> {
    let mut is_reached = vec![false; network.node_count()];
    is_reached[source.index()] = true;
    let mut open = vec![source];
    while let Some(node) = open.pop() {
        let ahead = network.edges(node).filter(|edge| flows[edge.id().index()] < *edge.weight());
        let back = network.edges_directed(node, Direction::Incoming).filter(|edge| flows[edge.id().index()] > 0);
        for next in ahead.map(|edge| edge.target()).chain(back.map(|edge| edge.source())) {
            if !std::mem::replace(&mut is_reached[next.index()], true) {
                open.push(next);
            }
        }
    }
    is_reached
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operation(ns: u64, inputs: &[usize], outputs: &[usize]) -> Operation {
        Operation { ns, inputs: inputs.to_vec(), outputs: outputs.to_vec(), repeatable: true }
    }

    /// A layer norm, a product, an activation and a product, as in a transformer: the activation is cheap to recompute.
    fn layer() -> Forward {
        Forward {
            operations: vec![
                Operation { repeatable: false, ..operation(0, &[], &[0]) },
                operation(10, &[0], &[1]),
                operation(1000, &[1], &[2]),
                operation(24, &[2], &[3]),
            ],
            bytes: vec![2, 2, 8, 8],
            needed: vec![true, true, true, true],
            room: 20,
            ns_per_byte: 1e6,
        }
    }

    #[test]
    fn with_room_for_all_everything_is_stored() {
        let choice = layer().choose().unwrap();
        assert_eq!((choice.stored_bytes, choice.repeated_ns), (20, 0));
    }

    #[test]
    fn cheap_values_are_recomputed_first() {
        // GIVEN less and less room, WHEN the forward chooses, THEN values are recomputed in the order of time per byte: the
        // activation (3 ns a byte), the norm (5), the product (125).
        let choose = |room| Forward { room, ..layer() }.choose().unwrap().repeated;
        assert_eq!(choose(12), [false, false, false, true]);
        assert_eq!(choose(10), [false, true, false, true]);
        assert_eq!(choose(2), [false, true, true, true]);
    }

    #[test]
    fn waiting_is_chosen_where_it_is_cheaper() {
        // GIVEN no room, and a bus that takes 20 ns per byte, WHEN the forward chooses, THEN the product is still stored.
        let choice = Forward { room: 0, ns_per_byte: 20.0, ..layer() }.choose().unwrap();
        assert_eq!((choice.stored, choice.repeated_ns), (vec![true, false, true, false], 34));
    }

    #[test]
    fn equal_layers_are_divided() {
        // GIVEN eight layers and room for twelve of their sixteen large values, WHEN the forward chooses, THEN it recomputes
        // some activations, and no more than necessary.
        let mut forward = Forward { room: 8 * 12 + 4 * 8, ns_per_byte: 1e6, ..Forward::default() };
        for index in 0..8 {
            let base = index * 4;
            forward.operations.extend(layer().operations.into_iter().map(|one| Operation {
                inputs: one.inputs.iter().map(|value| value + base).collect(),
                outputs: one.outputs.iter().map(|value| value + base).collect(),
                ..one
            }));
            forward.bytes.extend(layer().bytes);
            forward.needed.extend(layer().needed);
        }
        let choice = forward.choose().unwrap();
        assert!(choice.stored_bytes <= forward.room && choice.stored_bytes > forward.room - 8, "{choice:?}");
        assert_eq!(choice.repeated_ns, 4 * 24, "{choice:?}");
    }

    #[test]
    fn inconsistent_operations_are_refused() {
        let wrong =
            Forward { operations: vec![operation(1, &[7], &[0])], bytes: vec![1], needed: vec![true], ..layer() };
        assert!(wrong.choose().unwrap_err().to_string().contains("value 7 of 1"));
        let twice =
            Forward { operations: vec![operation(1, &[], &[0]); 2], bytes: vec![1], needed: vec![true], ..layer() };
        assert!(twice.choose().unwrap_err().to_string().contains("made twice"));
    }

    /// Tries all choices.
    fn brute_force(forward: &Forward, ns_per_byte: f64) -> f64 {
        let makers = forward.makers().unwrap();
        let count = forward.operations.len();
        let mut best = f64::INFINITY;
        for bits in 0u32..1 << count {
            let again = |index: usize| bits >> index & 1 == 1;
            if (0..count).any(|index| again(index) && !forward.operations[index].repeatable) {
                continue;
            }
            let mut there = forward.needed.clone();
            for (index, operation) in forward.operations.iter().enumerate() {
                if again(index) {
                    operation.inputs.iter().for_each(|&input| there[input] = true);
                }
            }
            let stored =
                (0..there.len()).filter(|&value| there[value] && makers[value].is_none_or(|maker| !again(maker)));
            let bytes: u64 = stored.map(|value| forward.bytes[value]).sum();
            let ns: u64 = (0..count).filter(|&index| again(index)).map(|index| forward.operations[index].ns).sum();
            best = best.min(ns as f64 + bytes as f64 * ns_per_byte);
        }
        best
    }

    #[test]
    fn it_is_as_good_as_trying_all_choices() {
        // GIVEN any small forward, WHEN it chooses at a price, THEN no other choice costs less (up to the spread between
        // layers).
        let one = (0u64..100, prop::collection::vec(any::<prop::sample::Index>(), 0..3), 1usize..3, any::<bool>());
        let forwards = prop::collection::vec(one, 1..8);
        proptest!(|(shapes in forwards, sizes in prop::collection::vec((0u64..50, any::<bool>()), 16), price in 0.0f64..4.0)| {
            let mut forward = Forward { ns_per_byte: price, ..Forward::default() };
            let mut values = 0;
            for (ns, inputs, outputs, repeatable) in shapes {
                let inputs = if values == 0 { vec![] } else { inputs.iter().map(|index| index.index(values)).collect() };
                forward.operations.push(Operation { ns, inputs, outputs: (values..values + outputs).collect(), repeatable });
                values += outputs;
            }
            (forward.bytes, forward.needed) = sizes.into_iter().cycle().take(values).unzip();
            let choice = forward.cheapest_at(price, &forward.makers().unwrap());
            let cost = choice.repeated_ns as f64 + choice.stored_bytes as f64 * price;
            let best = brute_force(&forward, price);
            prop_assert!(cost <= best * (1.0 + LAYER_PRICE_SPREAD) + 0.1, "{} instead of {}: {:?}", cost, best, choice);
        });
    }
}
