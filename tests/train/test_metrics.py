# SPDX-License-Identifier: Apache-2.0
"""One confusion matrix, every sample once; the scores agree with torchmetrics' own."""

import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from torchvox.train.metrics import ConfusionOfSamples, class_scores, scores

CLASSES = 5


def sample(count, points=40):
    g = torch.Generator().manual_seed(3)
    shape = (count,) if points is None else (count, points)
    target = torch.randint(0, CLASSES - 1, shape, generator=g)  # the last class never occurs
    wrong = torch.rand(shape, generator=g) < 0.4
    guess = torch.where(wrong, torch.randint(0, CLASSES, shape, generator=g), target)
    return torch.arange(count) * 7, guess, target


@pytest.mark.parametrize("points", [None, 40])
def test_scores_agree_with_torchmetrics(points):
    ids, guess, target = sample(200, points)
    metric = ConfusionOfSamples(CLASSES)
    for part in torch.arange(200).split(33):
        metric.update(ids[part], guess[part], target[part])
    found = scores(metric.compute())
    overall = MulticlassAccuracy(CLASSES, average="micro")(guess, target)
    jaccard = MulticlassJaccardIndex(CLASSES)(guess, target)
    assert found["accuracy"] == pytest.approx(float(overall), abs=1e-6)
    assert found["miou"] == pytest.approx(float(jaccard), abs=1e-6)
    per_class = [(guess[target == c] == c).double().mean() for c in range(CLASSES - 1)]
    assert found["mean_accuracy"] == pytest.approx(float(sum(per_class)) / len(per_class))


def test_by_hand():
    metric = ConfusionOfSamples(3)
    metric.update(
        torch.tensor([4, 9]), torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0, 0], [1, 1]])
    )
    metric.update(torch.tensor([5]), torch.tensor([[2, 1]]), torch.tensor([[-1, -1]]))  # ignored
    metric.update(torch.tensor([4]), torch.tensor([[0, 1]]), torch.tensor([[0, 0]]))  # again
    matrix = metric.compute()
    assert matrix.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    assert scores(matrix) == {
        "accuracy": 0.75,
        "mean_accuracy": 0.75,
        "miou": pytest.approx((1 / 2 + 2 / 3) / 2),
    }
    name, count, recall, iou = class_scores(matrix, "abc")[1]
    assert (name, count, recall, iou) == ("b", 2, 1.0, pytest.approx(2 / 3))


def test_nothing_seen_scores_nothing_and_reset_forgets():
    metric = ConfusionOfSamples(2)
    assert scores(metric.compute()) == {"accuracy": 0.0, "mean_accuracy": 0.0, "miou": 0.0}
    metric.update(torch.tensor([0]), torch.tensor([1]), torch.tensor([1]))
    metric.reset()
    assert metric.compute().sum() == 0
