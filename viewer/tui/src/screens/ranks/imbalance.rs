//! Imbalance between the devices of a job.

use memlab_job::median;

use super::item::RankItem;

/// Imbalance between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imbalance {
    /// Row with the highest peak, as an index in [`Context::targets`](crate::context::Context::targets).
    pub highest: usize,
    /// Its peak.
    pub peak_bytes: u64,
    /// Median of all peaks.
    pub median_bytes: u64,
    /// Number of compared rows.
    pub count: usize,
    /// Row with the fewest ended steps, and its lag behind the row with the most; `None`: all are equal.
    pub behind: Option<(usize, u64)>,
}

impl Imbalance {
    /// Compares these rows, or only the ranks among them if any. `None`: fewer than two rows to compare.
    pub fn of(items: &[RankItem]) -> Option<Self> {
        let has_ranks = items.iter().any(|item| item.rank.is_some());
        let compared = items.iter().filter(|item| !has_ranks || item.rank.is_some());
        let mut compared: Vec<_> = compared.filter(|item| item.peak_allocated_bytes > 0).collect();
        // The first of equal peaks.
        compared.sort_by_key(|item| (std::cmp::Reverse(item.peak_allocated_bytes), item.target));
        let [highest, _, ..] = compared[..] else { return None };
        let count = compared.len();
        let slowest = compared.iter().min_by_key(|item| (item.steps_ended, item.target))?;
        let most = compared.iter().map(|item| item.steps_ended).max()?;
        let lag = most - slowest.steps_ended;
        Some(Self {
            highest: highest.target,
            peak_bytes: highest.peak_allocated_bytes,
            median_bytes: median(compared.iter().map(|item| item.peak_allocated_bytes)),
            count,
            behind: (lag > 0).then_some((slowest.target, lag)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(target: usize, rank: Option<u32>, peak_allocated_bytes: u64, steps_ended: u64) -> RankItem {
        RankItem { target, rank, peak_allocated_bytes, steps_ended, ..RankItem::default() }
    }

    #[test]
    fn the_highest_peak_is_compared_with_the_median() {
        // GIVEN four ranks, one with a higher peak and one that lags, and a child without a rank
        let ranks =
            [item(0, Some(0), 10, 5), item(1, Some(1), 40, 5), item(2, Some(2), 12, 3), item(3, Some(3), 10, 5)];
        let mut items = ranks.to_vec();
        items.push(item(4, None, 900, 0));
        // WHEN compared THEN the child is ignored, and the median is a rank's peak: the lower of the two in the middle
        let all = Imbalance { highest: 1, peak_bytes: 40, median_bytes: 10, count: 4, behind: Some((2, 2)) };
        assert_eq!(Imbalance::of(&items), Some(all));
        // AND of three ranks it is the one in the middle
        let three = Imbalance { median_bytes: 12, count: 3, ..all };
        assert_eq!(Imbalance::of(&ranks[..3]), Some(three));
        // AND a single rank, or one beside ranks without memory, is not compared
        assert_eq!(Imbalance::of(&ranks[..1]), None);
        assert_eq!(Imbalance::of(&[item(0, None, 5, 0), item(1, None, 0, 0)]), None);
    }
}
