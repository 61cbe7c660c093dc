//! Names of ranks, lines and layers in the report on a job.

use std::sync::Arc;

use memlab_job::{ComparedMemory, Job, Layer, RankSummary};
use memlab_trace::Line;

use memlab_base::category::category_names;
use memlab_base::text::{NO_LAYER, NO_LINE, clean, place};
use memlab_units::format;

/// Number of rank ranges that are named.
const RANGES: usize = 4;

/// Names for one job.
pub struct RankNames<'j> {
    pub(super) job: &'j Job,
    directory: &'j str,
    several_roots: bool,
}

impl<'j> RankNames<'j> {
    /// Makes the names of a job.
    pub fn new(job: &'j Job) -> Self {
        let directory = job.ranks.first().map_or("", |rank| rank.header.directory.as_str());
        let layers = job.ranks.iter().filter_map(RankSummary::own_device).flat_map(|device| &device.layers);
        let mut roots = layers.filter_map(|(layer, _)| layer.root.as_ref());
        let first = roots.next();
        let several_roots = roots.any(|root| Some(root) != first);
        Self { job, directory, several_roots }
    }

    /// Number of the rank at a position.
    pub(super) fn rank(&self, at: usize) -> u32 {
        self.job.ranks[at].rank()
    }

    /// `rank 3`, `ranks 0–3, 7`, `both ranks`, `all 8 ranks`.
    pub(super) fn ranks(&self, at: impl IntoIterator<Item = usize>) -> String {
        let numbers: Vec<u32> = at.into_iter().map(|at| self.rank(at)).collect();
        match numbers.len() {
            1 => format!("rank {}", numbers[0]),
            2 if self.job.ranks.len() == 2 => "both ranks".to_owned(),
            count if count == self.job.ranks.len() => format!("all {} ranks", format::grouped(count as u64)),
            _ => format!("ranks {}", ranges(numbers)),
        }
    }

    /// `train.py:31  main`.
    pub(super) fn line(&self, line: Option<&Arc<Line>>) -> String {
        let Some(line) = line else { return NO_LINE.to_owned() };
        let function = line.function.rsplit("<locals>.").next().unwrap_or(&line.function);
        clean(format!("{}  {function}", place(line, self.directory)).trim_end()).into_owned()
    }

    /// `blocks.0.mlp  Linear`.
    fn layer(&self, layer: &Layer) -> String {
        let class = layer.class.as_deref().unwrap_or("");
        let root = layer.root.as_deref().unwrap_or("");
        let name = match layer.name.as_deref() {
            None => NO_LAYER.to_owned(),
            Some("") => format!("{root} (outermost)"),
            Some(name) if self.several_roots && !root.is_empty() => format!("{root}: {name}  {class}"),
            Some(name) => format!("{name}  {class}"),
        };
        clean(name.trim()).into_owned()
    }

    /// Kind and name of a difference.
    pub fn held(&self, held: &ComparedMemory) -> (&'static str, String) {
        match held {
            ComparedMemory::Peak => ("peak", "total allocated".to_owned()),
            ComparedMemory::Category(category) => ("category", category_names(*category).0.to_owned()),
            ComparedMemory::Line(line) => ("line", self.line(line.as_ref())),
            ComparedMemory::Layer(layer) => ("layer", self.layer(layer)),
        }
    }
}

/// `0–3, 7`, and the number of further ranges.
pub(super) fn ranges(mut numbers: Vec<u32>) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let count = |ranges: &[(u32, u32)]| ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum::<u64>();
    let range = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    };
    let named: Vec<String> = ranges.iter().take(RANGES).map(range).collect();
    let more = count(&ranges[ranges.len().min(RANGES)..]);
    if more > 0 { format!("{} and {} more", named.join(", "), format::grouped(more)) } else { named.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_printed_as_ranges() {
        assert_eq!(ranges(vec![3]), "3");
        assert_eq!(ranges(vec![5, 0, 1, 2, 6]), "0–2, 5, 6");
        assert_eq!(ranges((0..20).map(|number| number * 2).collect()), "0, 2, 4, 6 and 16 more");
    }
}
