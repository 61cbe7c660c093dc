//! Growth of a request's size.

/// Polynomial through the recorded sizes: a constant, a line or a parabola.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// (Batch or length, bytes). Unused entries repeat the last recorded point.
    points: [(u64, u64); 3],
    count: usize,
}

impl Growth {
    /// Returns the same size everywhere.
    pub fn constant(size: u64) -> Growth {
        Growth { points: [(0, size); 3], count: 1 }
    }

    /// Interpolates up to three points, smallest first, each at another place.
    pub fn through(points: impl IntoIterator<Item = (u64, u64)>) -> Option<Growth> {
        let mut points = points.into_iter();
        let first = points.next()?;
        let mut growth = Growth { points: [first; 3], count: 1 };
        for point in points.take(2) {
            growth.points[growth.count] = point;
            growth.count += 1;
        }
        Some(growth)
    }

    /// Returns the size at the largest recorded place.
    pub fn last(&self) -> u64 {
        self.points[self.count - 1].1
    }

    /// Returns true if the first two sizes are equal or proportional to their places, up to rounding, as for tensors.
    pub fn is_plain(&self) -> bool {
        const ROUNDING: i128 = 512;
        let [(x0, y0), (x1, y1), _] = self.points.map(|(place, size)| (i128::from(place), i128::from(size)));
        (y1 - y0).abs() <= ROUNDING || (y1 * x0 - y0 * x1).abs() <= ROUNDING * x1
    }

    /// Returns the size at a place, at least 1.
    pub fn at(&self, place: u64) -> u64 {
        let x = i128::from(place);
        let [(x0, y0), (x1, y1), (x2, y2)] = self.points.map(|(place, size)| (i128::from(place), i128::from(size)));
        let (numerator, denominator) = match self.count {
            1 => (y0, 1),
            2 => (y0 * (x1 - x) + y1 * (x - x0), x1 - x0),
            _ => (
                y0 * (x - x1) * (x - x2) * (x2 - x1) - y1 * (x - x0) * (x - x2) * (x2 - x0)
                    + y2 * (x - x0) * (x - x1) * (x1 - x0),
                (x1 - x0) * (x2 - x0) * (x2 - x1),
            ),
        };
        // Rounds up: nearly all allocations grow by whole elements.
        let size = numerator.div_euclid(denominator) + i128::from(numerator.rem_euclid(denominator) != 0);
        u64::try_from(size.max(1)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_grow_plainly_and_workspaces_do_not() {
        let is_plain =
            |at_8: u64, at_16: u64| Growth::through([(8, at_8), (16, at_16)]).is_some_and(|growth| growth.is_plain());
        assert!(is_plain(4096, 4096));
        assert!(is_plain(4096, 8192));
        assert!(is_plain(4096 + 131, 8192 + 131), "a workspace with some bytes for itself");
        assert!(!is_plain(1 << 20, 3 << 20));
        assert!(!is_plain(1 << 20, 3 << 19));
        assert!(!is_plain(2 << 20, 1 << 20));
        assert!(Growth::constant(7).is_plain());
    }

    #[test]
    fn a_polynomial_is_met_to_the_byte() {
        // GIVEN a parabola with a minimum below zero, a line and a constant at three places or fewer
        let parabola = |x: u64| 12 * x * x + 7 * x + 512;
        let through = |places: &[u64]| Growth::through(places.iter().map(|x| (*x, parabola(*x)))).unwrap();
        // THEN three places reproduce the parabola everywhere
        for x in [1, 100, 128, 777, 1 << 20] {
            assert_eq!(through(&[128, 256, 512]).at(x), parabola(x));
        }
        // AND two places give a line, rounded up, and one the same size
        let line = Growth::through([(2, 10), (4, 21)]).unwrap();
        assert_eq!([line.at(2), line.at(3), line.at(4), line.at(6)], [10, 16, 21, 32]);
        assert_eq!((line.at(0), Growth::constant(7).at(1 << 40)), (1, 7));
        assert_eq!((line.last(), through(&[3]).last()), (21, parabola(3)));
        assert!(Growth::through([]).is_none());
    }
}
