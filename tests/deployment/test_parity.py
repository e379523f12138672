# SPDX-License-Identifier: Apache-2.0
"""What counts as a difference between a model and its artefact."""

import math
import re

import pytest
import torch
from torch import nn

import torchvox
from torchvox import models
from torchvox._util.errors import TorchvoxError
from torchvox.models import export
from torchvox.models.artefact import Comparison, without_tf32

ROOM = 4  # rows of the outputs


def outputs(*boxes):
    """What a detector gives for one scan. boxes: x, yaw, score, label of each."""
    rows = torch.zeros(1, ROOM, 7)
    scores, labels = torch.zeros(1, ROOM), torch.full((1, ROOM), -1, dtype=torch.int32)
    for i, (x, yaw, score, label) in enumerate(boxes):
        rows[0, i] = torch.tensor([x, 0.0, 0.0, 4.0, 2.0, 1.5, yaw])
        scores[0, i], labels[0, i] = score, label
    count = torch.tensor([len(boxes)], dtype=torch.int32)
    return rows, scores, labels, count, torch.zeros(1, dtype=torch.int32)


CAR, FAR = (10.0, 0.5, 0.8, 0), (-20.0, 1.0, 0.6, 1)


@pytest.mark.parametrize(
    ("mine", "other", "least", "expected"),
    [  # boxes of both, those without a match, greatest difference, difference of scores
        ([CAR, FAR], [CAR, FAR], 0.1, (4, 0, 0.0, 0.0)),
        ([CAR, FAR], [FAR, CAR], 0.1, (4, 0, 0.0, 0.0)),  # the order is no difference
        ([CAR], [(10.03, 0.5, 0.8, 0)], 0.1, (2, 0, 0.03, 0.0)),
        ([CAR], [(10.0, 0.5, 0.79, 0)], 0.1, (2, 0, 0.01, 0.01)),
        ([CAR], [(10.0, 0.5 + 2 * math.pi, 0.8, 0)], 0.1, (2, 0, 0.0, 0.0)),  # a whole turn
        ([CAR], [(10.06, 0.5, 0.8, 0)], 0.1, (2, 2, 0.0, 0.0)),  # too far
        ([CAR], [(10.0, 0.5, 0.8, 1)], 0.1, (2, 2, 0.0, 0.0)),  # another class
        ([CAR], [(10.0, 0.5 + math.pi, 0.8, 0)], 0.1, (2, 2, 0.0, 0.0)),  # flipped
        ([CAR, FAR], [CAR], 0.1, (3, 1, 0.0, 0.0)),
        ([CAR, FAR], [], 0.1, (2, 2, 0.0, 0.0)),
        ([CAR, FAR], [CAR], 0.7, (2, 0, 0.0, 0.0)),  # below the least score
        ([(10.0, 0.5, 0.71, 0)], [(10.0, 0.5, 0.69, 0)], 0.7, (1, 0, 0.02, 0.02)),  # on both sides
        ([CAR], [(math.nan, 0.5, 0.8, 0)], 0.1, (2, 2, 0.0, 0.0)),
        ([CAR], [(10.0, 0.5, math.nan, 0)], 0.1, (2, 2, 0.0, 0.0)),
        ([CAR], [CAR, CAR], 0.1, (3, 1, 0.0, 0.0)),  # a box matches one
        ([CAR, CAR], [CAR, CAR], 0.1, (4, 0, 0.0, 0.0)),
        ([CAR], [(10.04, 0.5, 0.8, 0), (10.01, 0.5, 0.8, 0)], 0.1, (3, 1, 0.01, 0.0)),
        ([], [], 0.1, (0, 0, 0.0, 0.0)),
    ],
)
def test_boxes_that_belong_together(mine, other, least, expected):
    found = export.agreement(outputs(*mine), outputs(*other), True, least)
    strays = round(found.strays * found.boxes)
    assert (found.boxes, strays) == expected[:2]
    assert (found.difference, found.score_difference) == pytest.approx(expected[2:], abs=1e-6)
    assert found.same_bits == (mine == other)


def test_a_limit_is_of_finite_numbers():
    """Else any difference would be within it."""
    low = (math.inf, 0.5, 0.05, 0)
    scores = torch.tensor([[math.inf, -3.0, math.nan]])
    assert export.agreement(scores, torch.zeros(1, 3), False).greatest == 3.0
    assert export.agreement(outputs(CAR, low), outputs(CAR), True, 0.1).greatest == 10.0


class Shifted(nn.Module):
    """Scores of a model and something more, by the number of the call."""

    def __init__(self, model, *shifts, batch=None):
        super().__init__()
        self.model, self.shifts, self.batch, self.calls = model, list(shifts), batch, 0

    def forward(self, points, lengths):
        assert self.batch in (None, len(points))
        self.calls += 1
        return self.model(points, lengths) + self.shifts[max(0, self.calls - 2)]


@pytest.fixture
def classifier():
    torch.manual_seed(0)
    levels = [
        {"points": 4, "radii": [0.4], "neighbors": [4], "channels": [[8]]},
        {"points": None, "radii": [], "neighbors": [], "channels": [[8]]},
    ]
    return models.PointNet2Classifier(5, in_channels=3, levels=levels, head=[8]).eval()


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize(
    ("dtype", "shifts", "worst", "difference", "holds"),
    [
        (None, [0.0, 0.0, 0.0], None, 0.0, True),
        (None, [0.0, 0.5, 0.25], "1", 0.5, False),
        (None, [0.5, math.nan, 0.5], "1", math.nan, False),
        (None, [0.5, math.inf, 0.5], "1", math.inf, False),
        (None, [0.0, 0.0, 2e-5], "2", 2e-5, False),  # scores are below 1
        ("float16", [0.0, 0.0, 4e-3], "2", 4e-3, True),
        ("float16", [0.0, 0.0, 6e-3], "2", 6e-3, False),
    ],
)
def test_scans_are_compared_one_by_one_and_the_worst_is_named(
    classifier, batch, dtype, shifts, worst, difference, holds
):
    artefact = Shifted(classifier, *shifts, batch=batch)
    artefact.facts = {} if dtype is None else {"dtype": dtype}
    comparison = Comparison(classifier, artefact)
    for i in range(3):
        comparison.add(str(i), (torch.rand(1, 20 + i, 3), torch.tensor([20 + i])))
    parity = comparison.parity()
    assert (parity.scans, parity.strays, parity.dtype) == (3, 0, dtype or "float32")
    assert parity.worst in (worst or "012") and parity.holds is holds
    assert parity.difference == pytest.approx(difference, abs=1e-6, nan_ok=True)
    assert not any(shifts) or not parity.same_bits
    assert parity.seconds_model > 0 and parity.seconds_artefact > 0


@pytest.mark.parametrize(
    ("dtype", "strays", "holds"),
    [("float32", 0, True), ("float32", 1, False), ("float16", 5, True), ("float16", 6, False)],
)
def test_boxes_of_one_alone_end_the_parity(classifier, dtype, strays, holds):
    artefact = Shifted(classifier)
    artefact.facts = {"dtype": dtype}
    comparison = Comparison(classifier, artefact)
    some = export.Agreement(False, 4e-4, 40.0, strays / 800, 800)
    rest = export.Agreement(False, 1e-4, 10.0, 0.0, 100)
    comparison.results = [("a", rest, 1.0, 1.0), ("b", some, 2.0, 3.0), ("c", rest, 4.0, 4.0)]
    comparison.detects = True
    parity = comparison.parity()
    assert (parity.boxes, parity.strays, parity.holds) == (1000, strays, holds)
    assert not parity._replace(boxes=0, strays=0).holds
    assert (parity.worst, parity.seconds_model, parity.seconds_artefact) == ("b", 2.0, 3.0)


def broken(*inputs):
    raise ValueError("first\nlast")


@pytest.mark.parametrize(
    ("artefact", "words"),
    [
        (lambda *inputs: None, "scores of the program must be float32 .* got None"),
        (lambda points, lengths: points, "must be float32 .1, 5. on cpu, got float32 .1, 9, 3."),
        (broken, "the artefact does not run: first$"),
    ],
)
def test_an_artefact_that_does_something_else_ends_in_a_sentence(classifier, artefact, words):
    comparison = Comparison(classifier, artefact)
    with pytest.raises(TorchvoxError, match=words):
        comparison.add("a", (torch.rand(1, 9, 3), torch.tensor([9])))


@pytest.mark.parametrize(
    ("name", "value"),
    [("classes", ["Car"]), ("columns", 5), ("point_cloud_range", [0.0] * 6)],
)
def test_an_artefact_of_another_kind_is_refused(detector_onnx, name, value):
    model = models.get_model("center_world_small", "default")
    artefact = torchvox.onnx.Program(detector_onnx)
    Comparison(model, artefact)
    setattr(artefact, name, value)
    words = re.escape(f", got {value}")
    with pytest.raises(TorchvoxError, match=f"{name} of the artefact must be .*{words}"):
        Comparison(model, artefact)


def test_a_detector_is_no_artefact_of_a_classifier(classifier, detector_onnx):
    with pytest.raises(TorchvoxError, match=r"task of the artefact must be classify .* got detect"):
        Comparison(classifier, torchvox.onnx.Program(detector_onnx))


def test_tf32_is_off_inside_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with without_tf32():
        assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
