//! Training progress by optimizer step.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::history_views::TrainingView;
use super::steps::{LATEST_STEPS, MAX_EARLIER_STEPS, MAX_STEPS, MIN_STEPS};
use memlab_format::record;

/// Maximum number of names kept, of models and methods; a training has a few. Further names are dropped.
const MAX_NAMES: usize = 64;

/// Maximum number of entries after the entry of a late record.
///
/// Records are written some steps late. Later ones are ignored.
const MAX_LATE_STEPS: usize = 1 << 12;

/// Maximum number of entries.
///
/// This keeps more of the latest entries separate than `steps` does, so that no entry joins steps that `steps` separates.
const MAX_ENTRIES: usize = MAX_STEPS + MAX_LATE_STEPS;

/// Training progress of the steps of all devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trainings {
    /// Entries by step.
    pub(crate) list: Vec<Training>,
    /// Divisor of step numbers: an entry before the latest joins the steps with the same quotient; 0: none yet.
    pub(crate) joined: u64,
    pub(crate) names: Vec<Arc<str>>,
}

/// One step, or several joined steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Training {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    /// Index in the names, from 1; 0: none.
    pub(crate) phase: u32,
    pub(crate) samples: u64,
    pub(crate) duration: u64,
    /// Mean over `loss_samples`.
    pub(crate) loss: f64,
    /// Samples with a known loss; 0: the loss is not known.
    pub(crate) loss_samples: u64,
    /// Index in the names, as `phase`.
    pub(crate) way: u32,
    pub(crate) pieces: u64,
    pub(crate) offloaded_bytes: u64,
}

impl Training {
    /// Joins two entries.
    fn joined(self, other: Self) -> Self {
        let (earlier, later) = if other.last < self.last { (other, self) } else { (self, other) };
        Self {
            first: earlier.first.min(later.first),
            samples: earlier.samples.saturating_add(later.samples),
            duration: earlier.duration.saturating_add(later.duration),
            loss: mean(&earlier, &later),
            loss_samples: earlier.loss_samples.saturating_add(later.loss_samples),
            pieces: earlier.pieces.max(later.pieces),
            offloaded_bytes: earlier.offloaded_bytes.saturating_add(later.offloaded_bytes),
            ..later
        }
    }
}

fn mean(one: &Training, other: &Training) -> f64 {
    match (one.loss_samples, other.loss_samples) {
        (_, 0) => one.loss,
        (0, _) => other.loss,
        (a, b) => (one.loss * a as f64 + other.loss * b as f64) / (a as f64 + b as f64),
    }
}

impl Trainings {
    /// Adds a record.
    pub(crate) fn note(&mut self, record: &record::Trained) {
        let training = Training {
            first: record.trained,
            last: record.trained,
            epoch: record.epoch,
            batch: record.batch,
            phase: self.name(record.phase.as_deref()),
            samples: record.samples,
            duration: record.duration,
            loss: record.loss.unwrap_or_default().0,
            loss_samples: if record.loss.is_some() { record.samples.max(1) } else { 0 },
            way: self.name(record.way.as_deref()),
            pieces: record.pieces,
            offloaded_bytes: record.offloaded,
        };
        let at = self.list.partition_point(|other| other.last < training.last);
        if self.list.len() - at > MAX_LATE_STEPS {
            return;
        }
        match self.list.get_mut(at) {
            Some(other) if other.first <= training.last => *other = other.joined(training),
            _ => self.list.insert(at, training),
        }
        if self.list.len() >= MAX_ENTRIES {
            self.join_earlier();
        }
    }

    /// Returns the training progress of these steps.
    pub(crate) fn of(&self, steps: RangeInclusive<u64>) -> Option<TrainingView> {
        let begin = self.list.partition_point(|training| training.last < *steps.start());
        let those = self.list.get(begin..)?.iter().take_while(|training| training.last <= *steps.end());
        let training = those.copied().reduce(Training::joined)?;
        Some(TrainingView {
            epoch: training.epoch,
            batch: training.batch,
            phase: self.named(training.phase),
            samples: training.samples,
            duration: training.duration,
            loss: (training.loss_samples > 0).then_some(training.loss),
            way: self.named(training.way),
            pieces: training.pieces,
            offloaded_bytes: training.offloaded_bytes,
        })
    }

    /// Halves the number of entries. Returns false if only a few exist.
    pub(crate) fn shorten(&mut self) -> bool {
        let is_long = self.list.len() > MIN_STEPS;
        if is_long {
            self.join_more();
        }
        is_long
    }

    /// Returns the approximate heap size in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.list.capacity() * size_of::<Training>() + self.names.iter().map(|name| name.len()).sum::<usize>()
    }

    /// Joins neighbours before the latest steps.
    fn join_earlier(&mut self) {
        let latest = self.list.split_off(self.list.len() - LATEST_STEPS - MAX_LATE_STEPS);
        self.join_neighbours();
        while self.list.len() > MAX_EARLIER_STEPS && self.joined < u64::MAX {
            self.join_more();
        }
        self.list.extend(latest);
    }

    fn join_more(&mut self) {
        self.joined = self.joined.max(1).saturating_mul(2);
        self.join_neighbours();
    }

    fn join_neighbours(&mut self) {
        let joined = self.joined.max(1);
        self.list.dedup_by(|later, earlier| {
            let fits = earlier.last / joined == later.last / joined;
            if fits {
                *earlier = earlier.joined(*later);
            }
            fits
        });
    }

    fn name(&mut self, name: Option<&str>) -> u32 {
        let Some(name) = name else { return 0 };
        if let Some(known) = self.names.iter().position(|known| **known == *name) {
            return known as u32 + 1;
        }
        if self.names.len() == MAX_NAMES {
            return 0;
        }
        self.names.push(name.into());
        self.names.len() as u32
    }

    fn named(&self, name: u32) -> Option<Arc<str>> {
        self.names.get((name as usize).checked_sub(1)?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlab_format::record::{Loss, Trained};

    fn trained(step: u64, loss: f64) -> Trained {
        Trained { trained: step, samples: 4, duration: 10, loss: Some(Loss(loss)), pieces: 2, ..Trained::default() }
    }

    #[test]
    fn a_record_finds_its_step_also_when_it_is_late() {
        // GIVEN the records of three steps, the second of which arrives last
        let mut trainings = Trainings::default();
        for step in [0, 2, 1] {
            trainings.note(&trained(step, step as f64));
        }
        // THEN each step has its own loss, and joined steps have the mean
        assert_eq!(trainings.of(1..=1).and_then(|training| training.loss), Some(1.0));
        let both = trainings.of(1..=2).expect("both are known");
        assert_eq!((both.loss, both.samples, both.pieces), (Some(1.5), 8, 2));
        assert_eq!(trainings.of(3..=9), None);
    }

    #[test]
    fn a_long_training_is_joined_and_nothing_of_it_is_lost() {
        // GIVEN more steps than the limit
        let mut trainings = Trainings::default();
        let steps = 3 * MAX_ENTRIES as u64 + 10;
        (0..steps).for_each(|step| trainings.note(&trained(step, 1.0)));
        // THEN neighbours are joined, and no samples are lost
        assert!(trainings.list.len() < MAX_ENTRIES);
        let all = trainings.of(0..=steps).expect("they are known");
        assert_eq!((all.samples, all.duration, all.loss), (4 * steps, 10 * steps, Some(1.0)));
        // AND a late record is added to its entry
        trainings.note(&trained(steps - 3, 1.0));
        assert_eq!(trainings.of(0..=steps).expect("they are known").samples, 4 * steps + 4);
    }

    #[test]
    fn a_loss_that_is_not_known_is_not_averaged() {
        let mut trainings = Trainings::default();
        trainings.note(&Trained { loss: None, ..trained(0, 0.0) });
        trainings.note(&trained(1, 3.0));
        assert_eq!(trainings.of(0..=0).expect("it is known").loss, None);
        assert_eq!(trainings.of(0..=1).expect("they are known").loss, Some(3.0));
    }
}
