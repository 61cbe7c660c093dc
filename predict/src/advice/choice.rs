//! Which modules of a pass to checkpoint: those that cost least among all choices with which the peak is low enough.
//!
//! Modules of a pass are nested in time: the one whose forward comes first is the one whose backward comes last. So at any
//! moment the modules whose activations could have been dropped are the first few, and how much of them was dropped is all
//! that the past has to say about what follows. That makes the choice a walk over the modules with one number, and of two
//! ways to get there the cheaper one that dropped as much is enough.

/// A module of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PassModule {
    /// Bytes that it keeps for backward and would drop.
    pub dropped: u64,
    /// What is allocated while it is computed again if no other module drops anything.
    pub level_again: u64,
    /// What computing it again costs.
    pub cost: u64,
}

/// A pass, with the modules in the order of their forwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pass {
    pub parts: Vec<PassModule>,
    /// The most that is allocated while the forwards of exactly the first so many modules are over and their backwards have
    /// not begun. One more than there are modules.
    pub levels: Vec<u64>,
}

/// A choice of modules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    /// Indices of modules, in order.
    pub chosen: Vec<usize>,
    pub cost: u64,
}

/// The most choices compared. Where there are more, every other one is given up, and the result is only nearly the
/// best.
const MAX_PARTIAL_CHOICES: usize = 1 << 16;

/// A choice among the first few modules.
#[derive(Clone, Copy)]
struct PartialChoice {
    dropped: u64,
    cost: u64,
    /// The index of the choice for one module less.
    before: usize,
    takes: bool,
}

impl Pass {
    /// The most that is allocated with a choice.
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

    /// The choice that costs least with which at most `target` is allocated; `None`: there is none.
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

    /// The least that can be allocated with any choice.
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

/// The choices that no other one is better than: none drops as much for less.
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
            // GIVEN all choices with which at most the target is allocated
            let cost = |chosen: &[usize]| chosen.iter().map(|index| pass.parts[*index].cost).sum::<u64>();
            let choices = all_choices(&pass);
            let enough = choices.iter().filter(|chosen| pass.peak(chosen) <= target);
            // WHEN the cheapest is asked for
            let found = pass.cheapest(target);
            // THEN it is one of them and costs what the cheapest of them costs, and if there are none there is none
            prop_assert_eq!(found.as_ref().map(|choice| choice.cost), enough.map(|chosen| cost(chosen)).min());
            if let Some(choice) = found {
                prop_assert!(pass.peak(&choice.chosen) <= target);
                prop_assert_eq!(cost(&choice.chosen), choice.cost);
            }
            // AND the lowest peak is the lowest of all choices
            let lowest = choices.iter().map(|chosen| pass.peak(chosen)).min().unwrap_or(0);
            prop_assert_eq!(pass.lowest().max(1), lowest.max(1));
        }
    }
}
