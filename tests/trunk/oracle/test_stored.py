"""What stored episodes are held against: the error and its interval are one number's, however small it is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envgym.oracle.stored import _by_group

FINITE = st.floats(-1e3, 1e3).filter(lambda value: value == 0 or abs(value) > 1e-9)


@given(st.lists(st.tuples(FINITE, FINITE, st.booleans()), min_size=2, max_size=12), st.booleans())
def test_the_interval_of_two_groups_holds_the_error_to_the_last_bit(rows, rounded):
    """Two groups drawn anew are one of them alone half of the time: the error of both lies between."""
    credit, true = (np.array([row[at] for row in rows]) for at in (0, 1))
    group = np.array([row[2] for row in rows], np.intp)
    group[:2] = 0, 1
    # the measure's own error is as large as what is found, but for rounding
    off = (credit - true) ** 2 / 3
    error = np.sqrt(off + off + off) if rounded else np.zeros(len(true))
    mse, excess, ways = _by_group(credit, true, error, group)
    assert excess is not None
    assert excess[0] <= mse <= excess[1]
    assert ways is not None
    assert -1 <= ways[0] <= ways[1] <= 1


def test_one_group_says_nothing_of_scatter():
    credit, true = np.array([1.0, 2.0]), np.array([0.0, 2.0])
    assert _by_group(credit, true, np.zeros(2), np.zeros(2, np.intp)) == (0.5, None, None)
