# SPDX-License-Identifier: Apache-2.0
"""The fused multiply-add of the reference is rounded exactly once."""

import numpy as np
import pytest

from torchvox.reference.fma import fma

# (1 + e)(1 - e) 2^-24 with e = 2^-23 is 2^-24 - 2^-70: a hair less than half a step of c.
E, TINY, BIG = 2.0**-23, 2.0**-149, float(np.float32(3e38))


@pytest.mark.parametrize(
    ("a", "b", "c", "expected", "dtype"),
    [
        (2.0**-24 * (1 + E), 1 - E, 1 + E, 1 + E, np.float32),  # rounded twice: 1 + 2e
        (-(2.0**-24) * (1 + E), 1 - E, -(1 + E), -(1 + E), np.float32),
        (2.0**-24, 1.0, 1.0, 1.0, np.float32),  # a tie, to even
        (2.0**-24, 1.0, 1 + E, 1 + 2 * E, np.float32),
        (BIG, BIG, 0.0, np.inf, np.float32),
        (BIG, 2.0, -BIG, BIG, np.float32),  # no overflow in between
        (TINY, 0.5, 0.0, 0.0, np.float32),  # a tie, to even
        (TINY, 0.5, TINY, 2 * TINY, np.float32),
        # (1 + 2^-52)^2 - 1 - 2^-51 = 2^-104; in two steps it is 0.
        (1 + 2.0**-52, 1 + 2.0**-52, -(1 + 2.0**-51), 2.0**-104, np.float64),
    ],
)
def test_values_worked_out_by_hand(a, b, c, expected, dtype):
    result = fma(*(np.array([v], dtype) for v in (a, b, c)))
    assert result.dtype == dtype and result[0] == dtype(expected)
