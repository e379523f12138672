# SPDX-License-Identifier: Apache-2.0
"""A program beside its model: each difference is counted or named."""

import pytest
import torch
from detectors import small

from torchvox._util.errors import TorchvoxError
from torchvox.models import export

NAN = float("nan")


@pytest.fixture(scope="module")
def model():
    return small("centers")


def compared(model, output, change):
    """With a program that gives another output."""

    def program(*inputs):
        outputs = list(model(*inputs))
        outputs[output] = change(outputs[output])
        return outputs

    return export.compare(model, program, 800)


@pytest.mark.parametrize(
    ("output", "change", "words"),
    [
        (1, lambda t: None, r"output scores .* must be float32 \[2, 166\] on cpu, got None"),
        (0, lambda t: t[..., :7], r"output boxes .* on cpu, got float32 \[2, 166, 7\]"),
        (2, lambda t: t.long(), r"output labels .* must be int32 .*, got int64"),
        (3, lambda t: t[0], r"output count .* must be int32 \[2\] on cpu, got int32 \[\]"),
        (3, lambda t: t + 1000, "output count must be from 0 to 166, got 1"),
        (4, lambda t: 7, "output overflow .*, got a int"),
    ],
)
def test_an_output_of_another_kind_is_named(model, output, change, words):
    with pytest.raises(TorchvoxError, match=words):
        compared(model, output, change)
    with pytest.raises(TorchvoxError, match=r"give 5 outputs \(boxes, .*\), got 1: None"):
        export.compare(model, lambda *inputs: None, 800)


def moved(column, by):
    step = torch.zeros(9)
    step[column] = by
    return lambda boxes: boxes + step


@pytest.mark.parametrize("column", range(9))
def test_a_box_that_is_off_in_any_number_is_a_stray(model, column):
    assert compared(model, 0, moved(column, 3.0)).strays > 0.9


@pytest.mark.parametrize(("output", "value"), [(0, NAN), (1, NAN), (1, 2.0), (2, 1)])
def test_other_scores_and_labels_and_nan_are_strays(model, output, value):
    assert compared(model, output, lambda t: torch.full_like(t, value)).strays > 0.2


def test_equal_outputs_agree_and_whole_turns_are_the_same_box(model):
    same = compared(model, 0, lambda boxes: boxes)
    assert same.same_bits and same.difference == 0 and same.strays == 0
    turned = compared(model, 0, moved(6, 2 * torch.pi))
    assert turned.strays == 0 and turned.difference < 1e-5 and not turned.same_bits
