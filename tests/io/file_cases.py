# SPDX-License-Identifier: Apache-2.0
"""Files of other programs, and what reading them gives: the form of the tables of cases."""

import re

import numpy as np
import pytest
from helpers import read_points as read

from torchvox._util.errors import TorchvoxError
from torchvox.io import open_points


def check(path, data, expected, layout=None):
    """expected: "! words of the refusal", or "name type values; .. | words of the one problem" of
    the columns besides the points 1 2 3 and 4 5 6 (`xyz f8 ..`: other points)."""
    path.write_bytes(data)
    if expected.startswith("!"):
        with pytest.raises(TorchvoxError, match=expected[2:]) as error:
            open_points(path, layout)
        assert "\n" not in str(error.value)
        return
    columns, mark, words = expected.partition("|")
    problems = open_points(path, layout).problems
    assert len(problems) == len(mark) and re.search(words.strip(), " ".join(problems)), problems
    parts = [part.split() for part in columns.split(";") if part.strip()]
    lists = {"xyz": ["f8", *"123456"], **{name.replace("#", " "): words for name, *words in parts}}
    table = read(path, layout)
    assert ["xyz", *table.attributes] == list(lists)
    for name, (type_, *values) in lists.items():
        got = table.world() if name == "xyz" else table.attributes[name]
        assert got.dtype == type_, name
        number = int if got.dtype.kind in "iu" else float
        np.testing.assert_array_equal(got.ravel(), np.array([*map(number, values)], type_))
