# SPDX-License-Identifier: Apache-2.0
"""Files of other programs, and what reading them gives: the form of the tables of cases."""

import re

import numpy as np
import pytest

from torchvox._errors import TorchvoxError
from torchvox.io import open_points
from torchvox.io.table import join

XYZ = [[1, 2, 3], [4, 5, 6]]


def read(path, layout=None):
    reader = open_points(path, layout)
    return join([reader.schema, *reader.chunks()])


def check(path, data, wanted, layout=None):
    """wanted: words of the refusal, or name -> (type, values) of the columns besides the points
    XYZ; "xyz": other points; "problems": words of the only sentence about the file."""
    path.write_bytes(data)
    if isinstance(wanted, str):
        with pytest.raises(TorchvoxError, match=wanted) as error:
            open_points(path, layout)
        assert "\n" not in str(error.value) and "validation" not in str(error.value)
        return
    problems = open_points(path, layout).problems
    wanted = {"xyz": XYZ, "problems": None, **wanted}
    words = wanted.pop("problems")
    assert len(problems) == (words is not None), problems
    assert words is None or re.search(words, problems[0]), problems
    table = read(path, layout)
    np.testing.assert_array_equal(table.world(), np.array(wanted.pop("xyz"), float).reshape(-1, 3))
    assert list(table.attributes) == list(wanted)
    for name, (type_, values) in wanted.items():
        assert table.columns[name] == np.dtype(type_), name
        np.testing.assert_array_equal(table.attributes[name], np.array(values, np.dtype(type_).base))
