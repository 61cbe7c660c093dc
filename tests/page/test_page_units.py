"""Number of bytes of neighbouring weights that memlab.page copies together."""

import pytest
from memlab._paging.units import LARGE_UNIT, SMALL_UNIT, largest_unit

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("budget", "nbytes", "largest"),
    [
        (None, GIB // 4, SMALL_UNIT),
        (None, 48 * 40 * MIB, 40 * MIB),
        (None, 40 * GIB, LARGE_UNIT),
        ("min", 40 * GIB, SMALL_UNIT),
        (GIB, 40 * GIB, SMALL_UNIT),
        (8 * MIB, 40 * GIB, 2 * MIB),
    ],
)
def test_units_are_large_without_a_budget_and_fit_several_times_within_one(budget, nbytes, largest):
    # GIVEN weights and a budget of these bytes; THEN neighbours up to the expected size are copied together
    assert largest_unit(budget, nbytes) == largest
