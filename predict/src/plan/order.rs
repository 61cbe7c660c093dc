//! Order in which a training sees samples of different lengths.

use crate::splitmix::{STEP, splitmix64};

/// Reordering of the steps' lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The given order.
    Given,
    /// A random order, determined by the seed.
    Shuffled(u64),
    /// The longest first, then the others in the given order.
    LongestFirst,
    /// Shortest first.
    Ascending,
    /// The given order, with lengths padded up to a multiple.
    Buckets(u64),
}

impl Order {
    /// Orders in common use.
    pub const CANDIDATES: [Order; 7] = [
        Order::Given,
        Order::Shuffled(0),
        Order::LongestFirst,
        Order::Ascending,
        Order::Buckets(64),
        Order::Buckets(128),
        Order::Buckets(256),
    ];

    /// Returns the lengths in this order.
    pub fn of(self, lengths: &[u64]) -> Vec<u64> {
        let mut lengths = lengths.to_vec();
        match self {
            Self::Given => {}
            Self::Shuffled(seed) => shuffle(&mut lengths, seed),
            Self::LongestFirst => {
                let longest =
                    lengths.iter().copied().max().and_then(|most| lengths.iter().position(|length| *length == most));
                if let Some(at) = longest {
                    lengths[..=at].rotate_right(1);
                }
            }
            Self::Ascending => lengths.sort_unstable(),
            Self::Buckets(width) => {
                for length in &mut lengths {
                    *length = length.next_multiple_of(width.max(1));
                }
            }
        }
        lengths
    }
}

/// Returns at most `most` of the lengths, evenly spaced, including the longest.
pub fn thinned(lengths: &[u64], most: usize) -> Vec<u64> {
    let (count, most) = (lengths.len(), most.max(1));
    if count <= most {
        return lengths.to_vec();
    }
    let longest = lengths.iter().copied().max();
    let stretch = |index: usize| &lengths[index * count / most..(index + 1) * count / most];
    let of_stretch = |stretch: &[u64]| longest.filter(|longest| stretch.contains(longest)).unwrap_or(stretch[0]);
    (0..most).map(|index| of_stretch(stretch(index))).collect()
}

/// Shuffles by Fisher and Yates.
fn shuffle(lengths: &mut [u64], seed: u64) {
    let mut state = seed;
    for last in (1..lengths.len()).rev() {
        state = state.wrapping_add(STEP);
        lengths.swap(last, (splitmix64(state) % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_has_the_lengths() {
        let lengths: Vec<u64> = vec![70, 3, 128, 129, 5, 129, 40];
        assert_eq!(Order::Given.of(&lengths), lengths);
        assert_eq!(Order::LongestFirst.of(&lengths), [129, 70, 3, 128, 5, 129, 40]);
        assert_eq!(Order::Ascending.of(&lengths), [3, 5, 40, 70, 128, 129, 129]);
        assert_eq!(Order::Buckets(64).of(&lengths), [128, 64, 128, 192, 64, 192, 64]);
        // A shuffled order has the same lengths in another order, and repeats with its seed.
        let shuffled = Order::Shuffled(0).of(&lengths);
        assert_ne!(shuffled, lengths);
        assert_eq!(shuffled, Order::Shuffled(0).of(&lengths));
        assert_ne!(shuffled, Order::Shuffled(1).of(&lengths));
        assert_eq!(Order::Ascending.of(&shuffled), Order::Ascending.of(&lengths));
        assert!(Order::CANDIDATES.iter().all(|order| order.of(&[]).is_empty()));
    }

    #[test]
    fn of_many_lengths_some_are_taken_and_the_longest() {
        let lengths: Vec<u64> = (1..=1000).rev().chain([5000]).chain(1..=1000).collect();
        let some = thinned(&lengths, 100);
        assert_eq!(some.len(), 100);
        assert!(some.contains(&5000) && some[..50].is_sorted_by(|a, b| a > b));
        assert_eq!(thinned(&lengths, 5000), lengths);
        assert!(thinned(&[], 5).is_empty());
    }
}
