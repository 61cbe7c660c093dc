//! Aligns the clocks of hosts with the optimizer steps that their ranks completed together.
//!
//! A trace has no event for a collective. In a synchronous training, all ranks end a step soon after they exchanged its
//! gradients. If hosts disagree on the ends of the same steps by more than a step's duration, their clocks differ, by the
//! median of the differences. A smaller difference can come from the program (stages of a pipeline end a step one after the
//! other). The clocks then stay as they are.

use std::collections::BTreeMap;

use crate::statistics::median;
use crate::summary::RankSummary;

/// Smallest number of common step ends needed to compare clocks.
const MIN_COMMON_STEPS: usize = 3;

/// Offset of a host's clock from the clock of the first rank's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostClock {
    /// Name of the host.
    pub host: String,
    /// Nanoseconds ahead; 0 if the difference is not known to come from the clocks.
    pub ahead_ns: i64,
}

/// Returns the clock of each host, first the host of the first rank.
pub(crate) fn clocks(ranks: &[RankSummary]) -> Vec<HostClock> {
    let mut ends: BTreeMap<&str, BTreeMap<u64, Vec<u64>>> = BTreeMap::new();
    let mut hosts: Vec<&str> = Vec::new();
    for rank in ranks {
        let host = rank.header.host.as_str();
        if !ends.contains_key(host) {
            hosts.push(host);
        }
        let of_host = ends.entry(host).or_default();
        for (step, time) in &rank.step_ends {
            of_host.entry(*step).or_default().push(*time);
        }
    }
    let ends: BTreeMap<&str, BTreeMap<u64, u64>> = ends
        .into_iter()
        .map(|(host, steps)| (host, steps.into_iter().map(|(step, times)| (step, median(times))).collect()))
        .collect();
    let first = hosts.first().and_then(|host| ends.get(host));
    let ahead = |host: &str| first.zip(ends.get(host)).map_or(0, |(first, other)| ahead_by(first, other));
    hosts.iter().map(|host| HostClock { host: (*host).to_owned(), ahead_ns: ahead(host) }).collect()
}

/// Returns the lead of `other` over `first`, if it comes from the clocks.
fn ahead_by(first: &BTreeMap<u64, u64>, other: &BTreeMap<u64, u64>) -> i64 {
    let mut differences: Vec<i128> =
        first.iter().filter_map(|(step, time)| Some(i128::from(*other.get(step)?) - i128::from(*time))).collect();
    if differences.len() < MIN_COMMON_STEPS {
        return 0;
    }
    differences.sort_unstable();
    let difference = differences[(differences.len() - 1) / 2];
    let times: Vec<(&u64, &u64)> = first.iter().collect();
    let step = median(times.windows(2).map(|pair| {
        let (steps, time) = (pair[1].0 - pair[0].0, pair[1].1.saturating_sub(*pair[0].1));
        time / steps
    }));
    if difference.unsigned_abs() > u128::from(step) { difference.try_into().unwrap_or(0) } else { 0 }
}
