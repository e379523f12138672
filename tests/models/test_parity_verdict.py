# SPDX-License-Identifier: Apache-2.0
"""What agreement of boxes an import needs."""

from types import SimpleNamespace

import pytest
import torch

from torchvox.models.importing.detector_parity import DetectorReport, agreement


def boxes(count: int) -> tuple[torch.Tensor, ...]:
    """Cars ten meters apart, with scores and labels."""
    found = torch.ones(count, 7)
    found[:, 0] = 10.0 * torch.arange(count)
    return found, torch.full((count,), 0.5), torch.zeros(count, dtype=torch.int64)


@pytest.mark.parametrize(
    ("theirs", "ours", "fits"),
    [
        (49, 49, True),
        (50, 49, True),
        (49, 50, True),
        (49, 48, False),
        (48, 49, False),
        (1, 9, False),
    ],
)
def test_boxes_may_be_too_many_as_little_as_too_few(theirs, ours, fits):
    found = agreement(boxes(theirs), boxes(ours))
    assert (found.theirs, found.ours, found.same) == (theirs, ours, min(theirs, ours))
    report = SimpleNamespace(boxes=found, output=1.0, worst=lambda: 0.0)
    trouble = DetectorReport.trouble(report, 1e-4)
    words = f"{min(theirs, ours)} boxes agree of {theirs} there and {ours} here"
    assert trouble == (None if fits else words)
