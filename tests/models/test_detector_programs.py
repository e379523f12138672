# SPDX-License-Identifier: Apache-2.0
"""A program beside its model: what is not the same is found, and said."""

import pytest
import torch
from detectors import small
from torch import Tensor, nn

from torchvox._errors import TorchvoxError
from torchvox.models import export


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return small("centers")


def changed(model: nn.Module, output: int, change):
    """The model with another output."""

    def program(*inputs):
        outputs = list(model(*inputs))
        outputs[output] = change(outputs[output])
        return outputs

    return program


def test_a_program_with_the_outputs_of_the_model_agrees(model):
    found = export.compare(model, changed(model, 0, lambda boxes: boxes), 800)
    assert found.same_bits and found.difference == 0 and found.strays == 0


@pytest.mark.parametrize(
    ("output", "change", "words"),
    [
        (1, lambda t: None, r"output scores .* must be float32 \[2, 166\] on cpu, got None"),
        (
            0,
            lambda t: t[..., :7],
            r"output boxes .*\[2, 166, 9\] on cpu, got float32 \[2, 166, 7\]",
        ),
        (2, lambda t: t.long(), r"output labels .* must be int32 .*, got int64"),
        (3, lambda t: t[0], r"output count .* must be int32 \[2\] on cpu, got int32 \[\]"),
        (3, lambda t: t + 1000, "output count must be from 0 to 166, got 1"),
        (4, lambda t: 7, "output overflow .*, got a int"),
    ],
)
def test_an_output_that_is_no_such_tensor_is_named(model, output, change, words):
    with pytest.raises(TorchvoxError, match=words):
        export.compare(model, changed(model, output, change), 800)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, r"must give 5 outputs \(boxes, scores, labels, count, overflow\), got 1: None"),
        ((), "must give 5 outputs .*, got 0"),
        ([torch.zeros(2)] * 6, "got 6: float32"),
    ],
)
def test_another_number_of_outputs_is_named(model, answer, words):
    with pytest.raises(TorchvoxError, match=words):
        export.compare(model, lambda *inputs: answer, 800)


def moved(column: int, by: float):
    def change(boxes: Tensor) -> Tensor:
        boxes = boxes.clone()
        boxes[..., column] += by
        return boxes

    return change


@pytest.mark.parametrize("column", range(9))
def test_a_box_that_is_off_in_any_number_is_no_box_of_the_model(model, column):
    found = export.compare(model, changed(model, 0, moved(column, 3.0)), 800)
    assert found.strays > 0.9


@pytest.mark.parametrize(
    ("output", "value"), [(0, float("nan")), (1, float("nan")), (1, 2.0), (2, 1)]
)
def test_other_scores_and_labels_and_what_is_no_number_are_strays(model, output, value):
    program = changed(model, output, lambda t: torch.full_like(t, value))
    assert export.compare(model, program, 800).strays > 0.2


def test_whole_turns_of_the_yaw_are_the_same_box(model):
    found = export.compare(model, changed(model, 0, moved(6, 2 * torch.pi)), 800)
    assert found.strays == 0 and found.difference < 1e-5 and not found.same_bits
