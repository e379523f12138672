# SPDX-License-Identifier: Apache-2.0
"""The generated shapes: reproducible sample by sample, and shaped as they should be."""

import hashlib
import math
import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from torchvox.data.counter_random import Draws
from torchvox.data.shapes import (
    CLASSES,
    PART_OFFSETS,
    PARTS,
    SHAPES,
    Shapes,
    generate_shapes,
)
from torchvox.data.surfaces import Slab, arc, dome, ellipsoid, patch, ring, sample, triangle

# SHA-256 of the float32 coordinates of training clouds of 256 points, and of their part labels.
CHECKSUMS = {
    0: "3255f2d1c9142554",
    1: "cb8ec256b0c5218f",
    7: "ef51a47128b40a13",
    10: "715f746d58476f86",
    11: "5493681ebcb165d8",
    12: "9f152bdc88771949",
    13: "36937eaf27dabd08",
    63: "745f78eea13fdc32",
}


def digest(cloud: dict) -> str:
    whole = cloud["points"].cpu().numpy().tobytes() + cloud["parts"].cpu().numpy().tobytes()
    return hashlib.sha256(whole).hexdigest()[:16]


def surface(pieces, count=40_000):
    """Points of one cloud on the pieces."""
    xyz, part = sample(pieces, Draws(0, "test", torch.zeros(1, dtype=torch.int64)), count)
    return xyz[0], part[0]


@pytest.mark.parametrize("number", CHECKSUMS)
def test_reference_samples_have_their_recorded_bits(number, device):
    cloud = generate_shapes([number], points=256, device=device)
    assert digest(cloud) == CHECKSUMS[number]


def test_a_sample_is_the_same_alone_and_in_any_batch():
    numbers = [31, 2, 2, 18, 400]
    batch = generate_shapes(numbers, points=64)
    for row, number in enumerate(numbers):
        alone = generate_shapes([number], points=64)
        for name, value in alone.items():
            assert torch.equal(batch[name][row], value[0]), name


def test_workers_give_what_the_process_gives():
    data = Shapes(points=32, size=48)
    here = [data[i] for i in range(48)]
    loader = DataLoader(data, batch_size=7, num_workers=2, multiprocessing_context="fork")
    there = list(loader)
    for name in ("points", "label", "parts", "id"):
        assert torch.equal(
            torch.cat([batch[name] for batch in there]), torch.stack([s[name] for s in here])
        )


def test_seeds_splits_and_samples_differ():
    clouds = [
        generate_shapes([0], points=8),
        generate_shapes([16], points=8),
        generate_shapes([0], points=8, seed=1),
        generate_shapes([0], points=8, split="val"),
    ]
    assert len({digest(cloud) for cloud in clouds}) == 4


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


def test_bad_arguments_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="points must be >= 1"):
        generate_shapes([0], points=0)
    with pytest.raises(ValueError, match="samples >= 0"):
        generate_shapes([-1])
    with pytest.raises(ValueError, match="split must be one of train, val"):
        Shapes("test")
    with pytest.raises(IndexError, match="sample 5 of 5"):
        Shapes(size=5)[5]
    assert generate_shapes([], points=4)["points"].shape == (0, 4, 3)


def test_the_data_set_pickles():
    data = pickle.loads(pickle.dumps(Shapes(points=16)))
    assert len(data) == 3200 and len(Shapes("val")) == 640
    assert torch.equal(data[3]["points"], Shapes(points=16)[3]["points"])


@pytest.mark.gpu
def test_the_gpu_makes_the_same_bits():
    here = generate_shapes(range(160), points=1024)
    there = generate_shapes(range(160), points=1024, device="cuda")
    for name, value in here.items():
        assert torch.equal(there[name].cpu(), value), name
