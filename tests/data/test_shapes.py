# SPDX-License-Identifier: Apache-2.0
"""The generated shapes: reproducible sample by sample, and shaped as they should be."""

import math

import pytest
import torch

from torchvox.data.counter_random import Draws
from torchvox.data.worlds.shapes import CLASSES, PART_OFFSETS, PARTS, SHAPES, generate_shapes
from torchvox.data.worlds.surfaces import Slab, arc, dome, ellipsoid, patch, ring, sample, triangle


def surface(pieces, count=40_000):
    """Points of one cloud on the pieces."""
    xyz, part = sample(pieces, Draws(0, "test", torch.zeros(1, dtype=torch.int64)), count)
    return xyz[0], part[0]


def test_clouds_are_centered_and_fill_the_unit_sphere():
    batch = generate_shapes(range(64), points=512)
    assert batch["points"].shape == (64, 512, 3) and batch["points"].dtype == torch.float32
    assert batch["points"].mean(1).abs().max() < 1e-6
    torch.testing.assert_close(batch["points"].norm(dim=-1).amax(1), torch.ones(64))


def test_labels_and_parts_belong_together():
    batch = generate_shapes(range(64), points=512)
    assert torch.equal(batch["label"], torch.arange(64) % 16)
    for label, parts in zip(batch["label"], batch["parts"], strict=True):
        wanted = range(PART_OFFSETS[label], PART_OFFSETS[label + 1])
        assert set(parts.unique().tolist()) <= set(wanted)
    assert len(PARTS) == PART_OFFSETS[-1] == 30 and len(CLASSES) == 16
    assert len(batch["parts"].unique()) == 30, "every part shows"


@pytest.mark.parametrize(
    ("pieces", "shares"),
    [
        ([ring(0.0, 2.0, 0.5, 0.5, 0), ring(0.0, 0.0, 0.0, 0.5, 1)], (2.0, 0.25)),
        ([dome(0.0, 0.4, 1, 0), ring(0.0, 1.0, 0.4, 0.4, 1)], (0.32, 0.8)),
        (
            [
                patch((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), 0),
                triangle((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.5, 0.5, 1.0), 1),
            ],
            (1.0, math.sqrt(1.25) / 2),
        ),
        (
            [Slab((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 0), Slab((0.0, 0.0, 1.0), (1.0, 1.0, 3.0), 1)],
            (5, 9),
        ),
    ],
)
def test_parts_get_points_by_the_area_that_shows(pieces, shares):
    part = surface(pieces)[1]
    found = (part == 0).double().mean().item()
    assert abs(found - shares[0] / sum(shares)) < 0.012


def test_a_ring_is_evenly_covered():
    xyz, _ = surface([ring(0.0, 1.0, 0.2, 0.8, 0)])
    # radius^2 is evenly spread over a cone's side
    square = (xyz[:, 0] ** 2 + xyz[:, 1] ** 2 - 0.04) / 0.6
    counts = torch.histc(square.float(), 10, 0, 1)
    assert (counts / 4000 - 1).abs().max() < 0.08
    torch.testing.assert_close(xyz[:, :2].norm(dim=1), 0.2 + 0.6 * xyz[:, 2])


def test_a_torus_is_evenly_covered():
    """The inner half holds less than half: pi - 2 r/R of 2 pi."""
    xyz, _ = surface([arc((0.0, 0.0, 0.0), 1.0, 0.4, (0.0, 1.0), 0)])
    reach = torch.hypot(xyz[:, 0], xyz[:, 2])
    torch.testing.assert_close((reach - 1) ** 2 + xyz[:, 1] ** 2, torch.full_like(reach, 0.16))
    assert abs((reach < 1).double().mean().item() - (0.5 - 0.4 / math.pi)) < 0.012


def test_an_ellipsoid_is_evenly_covered():
    """Of a flat one, nearly two faces, a disc of half the radius holds nearly a quarter."""
    xyz, _ = surface([ellipsoid((1.0, 1.0, 0.05), 0)])
    inner = (xyz[:, :2].norm(dim=1) < 0.5).double().mean().item()
    assert 0.235 < inner < 0.26
    torch.testing.assert_close(
        (xyz / torch.tensor([1, 1, 0.05])).norm(dim=1), torch.ones(40_000).double()
    )


def test_faces_between_slabs_do_not_show():
    for name in ("table", "chair", "cross", "bracket"):
        u = torch.full((4, 1), 0.5, dtype=torch.float64)
        pieces = SHAPES[name].build(list(u))
        xyz, _ = surface(pieces, 5000)
        for slab in pieces:
            low, high = (torch.tensor([float(v) for v in end]) for end in (slab.low, slab.high))
            assert not ((xyz > low + 1e-6) & (xyz < high - 1e-6)).all(-1).any()
    # The underside of a table's top is bare where the legs are.
    pieces = SHAPES["table"].build(list(torch.full((4, 1), 0.5, dtype=torch.float64)))
    xyz, part = surface(pieces)
    under = xyz[(part == 0) & (xyz[:, 2] == pieces[0].low[2])]
    assert len(under) > 5000
    assert not ((under[:, 0] < 0.0599) & (under[:, 1] < 0.0599)).any()
