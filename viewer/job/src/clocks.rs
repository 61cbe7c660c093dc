//! Clocks of hosts, set by the optimizer steps that their ranks ended together.
//!
//! A trace has no event of a collective, but in a synchronous training all ranks end a step soon after they exchanged its
//! gradients. If hosts differ on when the same steps ended by more than a step takes, their clocks differ, and the median of the
//! differences says by how much. A smaller difference can be the program's own (stages of a pipeline end a step one after the
//! other): then the clocks stay as they are.

use std::collections::BTreeMap;

use crate::statistics::median;
use crate::summary::RankSummary;

/// Clocks are compared if hosts have at least this many ends of steps in common.
const MIN_COMMON_STEPS: usize = 3;

/// By how much the clock of a host is ahead of that of the first rank's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostClock {
    /// The host.
    pub host: String,
    /// Nanoseconds ahead; 0 if the difference is not known to be one of the clocks.
    pub ahead_ns: i64,
}

/// The clock of each host, that of the first rank's host first.
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

/// By how much `other` is ahead of `first`, if it is a difference of clocks.
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
