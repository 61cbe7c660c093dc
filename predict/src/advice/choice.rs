//! Selects the modules of a pass to checkpoint: the cheapest selection whose peak is low enough.
//!
//! Modules of a pass are nested in time: the first forward has the last backward. At any moment, the modules whose
//! activations may have been dropped are therefore a prefix of the list. Only the total of dropped bytes affects later
//! peaks. The search walks over the modules and keeps this one number. Of two selections that dropped as much, it keeps
//! the cheaper.

/// A module of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PassModule {
    /// Bytes that it keeps for backward and that checkpointing drops.
    pub dropped: u64,
    /// Bytes allocated during its recomputation if no other module drops anything.
    pub level_again: u64,
    /// Cost of recomputing it.
    pub cost: u64,
}

/// A pass; modules are in the order of their forwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pass {
    pub parts: Vec<PassModule>,
    /// Entry `n`: peak bytes while the first `n` modules, and no others, are between forward and backward.
    ///
    /// One more entry than modules.
    pub levels: Vec<u64>,
}

/// A selection of modules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    /// Indices of modules, in order.
    pub chosen: Vec<usize>,
    pub cost: u64,
}

/// Limit on compared selections. Beyond it, the search drops every second one, and the result is only nearly optimal.
const MAX_PARTIAL_CHOICES: usize = 1 << 16;

/// A selection among the first modules.
#[derive(Clone, Copy)]
struct PartialChoice {
    dropped: u64,
    cost: u64,
    /// Index of the selection with one module less.
    before: usize,
    takes: bool,
}

impl Pass {
    /// Returns the peak of allocated bytes with a selection.
    #[cfg(test)]
    fn peak(&self, chosen: &[usize]) -> u64 {
        let (mut dropped, mut peak) = (0, 0);
        for (index, level) in self.levels.iter().enumerate() {
            peak = peak.max(level.saturating_sub(dropped));
            if let Some(part) = self.parts.get(index).filter(|_| chosen.contains(&index)) {
                peak = peak.max(part.level_again.saturating_sub(dropped));
                dropped += part.dropped;
            }
        }
        peak
    }

    /// Returns the cheapest selection that allocates at most `target` bytes, or `None`.
    pub fn cheapest(&self, target: u64) -> Option<Choice> {
        let mut steps = vec![vec![PartialChoice { dropped: 0, cost: 0, before: 0, takes: false }]];
        for (part, level) in self.parts.iter().zip(&self.levels) {
            let choices = steps.last()?;
            let mut next = Vec::with_capacity(2 * choices.len());
            for (before, choice) in
                choices.iter().enumerate().filter(|(_, choice)| level.saturating_sub(choice.dropped) <= target)
            {
                next.push(PartialChoice { before, takes: false, ..*choice });
                if part.dropped > 0 && part.level_again.saturating_sub(choice.dropped) <= target {
                    let (dropped, cost) = (choice.dropped + part.dropped, choice.cost + part.cost);
                    next.push(PartialChoice { dropped, cost, before, takes: true });
                }
            }
            steps.push(pareto_front(next));
        }
        let last = *self.levels.last()?;
        let ends = steps.last()?.iter().enumerate().filter(|(_, choice)| last.saturating_sub(choice.dropped) <= target);
        let (mut at, best) = ends.min_by_key(|(_, choice)| choice.cost)?;
        let cost = best.cost;
        let mut chosen = Vec::new();
        for (index, choices) in steps.iter().enumerate().skip(1).rev() {
            if choices[at].takes {
                chosen.push(index - 1);
            }
            at = choices[at].before;
        }
        chosen.reverse();
        Some(Choice { chosen, cost })
    }

    /// Returns the lowest peak of any selection.
    pub fn lowest(&self) -> u64 {
        let (mut too_little, mut enough) = (0, self.levels.iter().copied().max().unwrap_or(0));
        while enough - too_little > 1 {
            let middle = too_little + (enough - too_little) / 2;
            if self.cheapest(middle).is_some() {
                enough = middle;
            } else {
                too_little = middle;
            }
        }
        enough
    }
}

/// Keeps the selections on the Pareto front: no other drops as much for less.
fn pareto_front(mut choices: Vec<PartialChoice>) -> Vec<PartialChoice> {
    choices.sort_unstable_by_key(|choice| (choice.cost, std::cmp::Reverse(choice.dropped)));
    let mut most = None;
    choices.retain(|choice| {
        let is_better = most.is_none_or(|most| choice.dropped > most);
        most = most.max(Some(choice.dropped));
        is_better
    });
    while choices.len() > MAX_PARTIAL_CHOICES {
        let mut index = 0;
        choices.retain(|_| {
            index += 1;
            index % 2 == 1
        });
    }
    choices
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn a_pass() -> impl Strategy<Value = Pass> {
        let part = (0_u64..20, 0_u64..90, 0_u64..10);
        (prop::collection::vec(part, 0..9), prop::collection::vec(0_u64..100, 10)).prop_map(|(parts, levels)| Pass {
            levels: levels[..=parts.len()].to_vec(),
            parts: parts
                .into_iter()
                .map(|(dropped, level_again, cost)| PassModule { dropped, level_again, cost })
                .collect(),
        })
    }

    fn all_choices(pass: &Pass) -> Vec<Vec<usize>> {
        let count = pass.parts.len();
        let chosen = |bits: u32| (0..count).filter(|index| bits & 1 << index != 0).collect::<Vec<usize>>();
        (0..1_u32 << count)
            .map(chosen)
            .filter(|chosen| chosen.iter().all(|part| pass.parts[*part].dropped > 0))
            .collect()
    }

    proptest! {
        #[test]
        fn no_other_choice_is_cheaper(pass in a_pass(), target in 0_u64..100) {
            // GIVEN all selections that allocate at most the target
            let cost = |chosen: &[usize]| chosen.iter().map(|index| pass.parts[*index].cost).sum::<u64>();
            let choices = all_choices(&pass);
            let enough = choices.iter().filter(|chosen| pass.peak(chosen) <= target);
            // WHEN the cheapest is requested
            let found = pass.cheapest(target);
            // THEN it is one of them and has the lowest cost, or is `None` if the list is empty
            prop_assert_eq!(found.as_ref().map(|choice| choice.cost), enough.map(|chosen| cost(chosen)).min());
            if let Some(choice) = found {
                prop_assert!(pass.peak(&choice.chosen) <= target);
                prop_assert_eq!(cost(&choice.chosen), choice.cost);
            }
            // AND the lowest peak is the lowest of all selections
            let lowest = choices.iter().map(|chosen| pass.peak(chosen)).min().unwrap_or(0);
            prop_assert_eq!(pass.lowest().max(1), lowest.max(1));
        }
    }
}
