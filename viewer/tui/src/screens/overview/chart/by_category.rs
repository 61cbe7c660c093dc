//! The chart by category: memory over time, from parameters at the bottom to the rest of the device's use at the top.

use memlab_trace::{Category, CategoryBytes, CategoryPoint};

use super::bands::Bands;
use memlab_base::category::LETTERS;
use memlab_base::category::category_index;
use memlab_base::resample::TimeColumn;
use memlab_base::theme::Theme;

/// Bands of columns. `edges`: their starts, and the end of the last, in nanoseconds.
///
/// Allocated memory is divided by the shares in the column's interval. Reserved memory and other use are above it.
pub fn bands(shares: &[CategoryPoint], edges: &[u64], columns: &[TimeColumn], theme: &Theme) -> Bands {
    let column_edges = |(ends, column): (&[u64], &TimeColumn)| self::edges(&at(shares, ends[0], ends[1]), column);
    let categories = of_allocated().map(|(_, category)| category);
    let categories = categories.chain([Category::Cached, Category::OtherArrays, Category::Context]);
    Bands {
        edges: edges.windows(2).zip(columns).map(column_edges).collect(),
        styles: categories.map(|category| (theme.category(category), LETTERS[category_index(category)])).collect(),
    }
}

/// Memory by category between two moments, at their maximum.
fn at(shares: &[CategoryPoint], from: u64, to: u64) -> CategoryBytes {
    let first = shares.partition_point(|point| point.time < from);
    let last = shares.partition_point(|point| point.time < to);
    let before = first.checked_sub(1).map(|index| shares[index].last);
    let within = shares[first..last].iter().map(|point| point.most);
    within.chain(before).max_by_key(sum).unwrap_or_default()
}

fn sum(shares: &CategoryBytes) -> u64 {
    shares.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Categories of the memory that PyTorch allocated, with their indexes.
fn of_allocated() -> impl Iterator<Item = (usize, Category)> {
    Category::ALL.into_iter().enumerate().filter(|(_, category)| *category != Category::OtherArrays)
}

/// Upper edges of a column's bands. Its figures may cover a shorter interval than the shares.
fn edges(shares: &CategoryBytes, column: &TimeColumn) -> Vec<u64> {
    let [_, allocated, reserved, used] = column.edges();
    let arrays = shares[Category::OtherArrays as usize];
    let whole = sum(shares).saturating_sub(arrays).max(1);
    let mut below: u64 = 0;
    let mut edges = Vec::with_capacity(shares.len() + 2);
    for (index, _) in of_allocated() {
        below = below.saturating_add(shares[index]);
        edges.push((u128::from(below) * u128::from(allocated) / u128::from(whole)) as u64);
    }
    edges.extend([reserved, reserved.saturating_add(arrays).min(used.max(reserved)), used]);
    edges
}

#[cfg(test)]
mod tests {
    use memlab_trace::Range;

    use super::*;

    fn shares(parameters: u64, activations: u64) -> CategoryBytes {
        let mut shares = CategoryBytes::default();
        (shares[0], shares[4]) = (parameters, activations);
        shares
    }

    #[test]
    fn a_column_is_shared_out_as_it_was_when_most_was_allocated() {
        let point = |time, most, last| CategoryPoint { time, most, last };
        let shares = [point(10, shares(4, 4), shares(4, 0)), point(50, shares(4, 12), shares(4, 1))];
        let column =
            |most: u64| TimeColumn { allocated: Range { min: 0, max: most, last: most }, reserved: 20, used: 30 };
        // Upper edges of the parameters, of all allocated, reserved and used memory.
        let shown = |from: u64, to: u64, most: u64| {
            let edges = edges(&at(&shares, from, to), &column(most));
            [edges[0], edges[4], edges[Category::COUNT], edges[Category::COUNT + 1]]
        };
        // GIVEN two intervals WHEN a column lies in the first THEN it is half and half, whatever its height
        assert_eq!(shown(5, 20, 8), [4, 8, 20, 30]);
        assert_eq!(shown(5, 20, 4), [2, 4, 20, 30]);
        // AND a column between the two shows the remains of the first
        assert_eq!(shown(30, 40, 4), [4, 4, 20, 30]);
        // AND a column over both shows the higher one, and a column before both is empty
        assert_eq!(shown(0, 100, 16), [4, 16, 20, 30]);
        assert_eq!(shown(0, 5, 0), [0, 0, 20, 30]);
    }

    #[test]
    fn other_arrays_are_above_what_pytorch_reserved() {
        let mut now = shares(4, 4);
        now[Category::OtherArrays as usize] = 6;
        let allocated = Range { min: 8, max: 8, last: 8 };
        let edges = edges(&now, &TimeColumn { allocated, reserved: 20, used: 30 });
        // THEN PyTorch's allocated memory ends at 8, its reserved memory at 20, the arrays at 26, and the rest at 30
        assert_eq!(edges[edges.len() - 4..], [8, 20, 26, 30]);
    }
}
