# SPDX-License-Identifier: Apache-2.0
"""Which voxels a ray visits, in which order: against all of its crossings, sorted as rational
numbers (`torchvox.reference.rays`)."""

import math

import pytest
import torch
from helpers import check_op
from hypothesis import given, settings
from hypothesis import strategies as st

import torchvox

INF, NAN = math.inf, math.nan
ORIGIN = [0.0, 0.0, 0.0]
# Faces, edges and corners, places between, and what is next to a face.
PLACES = [*(k / 4 for k in range(-14, 15)), *(math.nextafter(k, s) for k in (-2.0, 0.0, 3.0)
                                            for s in (-9.0, 9.0)), -0.0, 5e-324]  # fmt: skip
ENDS = st.lists(st.tuples(*[st.sampled_from(PLACES)] * 6), min_size=1, max_size=20)
SIZES = st.sampled_from([1.0, 0.5, 0.3])


RISING = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)]
FALLING = [(0, 0, 0), (0, 0, -1), (0, -1, -1), (-1, -1, -1)]


@pytest.mark.parametrize(
    ("start", "end", "options", "voxels"),
    [
        ((0.5, 0.5, 0.5), (2.5, 1.25, 0.5), {}, [(0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 1, 0)]),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), {}, [(0, 0, 0)]),
        # A ray that starts on a face and descends leaves at once; one that ends on a face stays
        # above it.
        ((1.0, 0.5, 0.5), (0.5, 0.5, 0.5), {}, [(1, 0, 0), (0, 0, 0)]),
        ((1.5, 0.5, 0.5), (1.0, 0.5, 0.5), {}, [(1, 0, 0)]),
        ((0.5, 0.5, 0.5), (1.0, 0.5, 0.5), {}, [(0, 0, 0), (1, 0, 0)]),
        ((-0.0, 0.0, 0.0), (0.0, -0.0, 0.0), {}, [(0, 0, 0)]),
        # Of equal crossings that of the higher axis comes first.
        ((0.5, 0.5, 0.5), (1.5, 1.5, 1.5), {}, RISING),
        ((0.5, 0.5, 0.5), (1.5, 1.5, 1.5), {"reverse": True}, RISING[::-1]),
        ((0.5, 0.5, 0.5), (-0.5, -0.5, -0.5), {}, FALLING),
        # Long rays are cut or dropped.
        ((0.5, 0.5, 0.5), (8.5, 0.5, 0.5), {"max_range": 2.2}, [(0, 0, 0), (1, 0, 0), (2, 0, 0)]),
        ((0.5, 0.5, 0.5), (8.5, 0.5, 0.5), {"max_range": 2.2, "long_rays": "drop"}, []),
    ],
)
def test_walks_drawn_by_hand(start, end, options, voxels, device):
    ends, starts = (torch.tensor([place], dtype=torch.float64) for place in (end, start))
    walk = check_op("ray_voxels", device, ends, starts, 1.0, ORIGIN, 100, **options)
    assert [tuple(row[:0:-1]) for row in walk[0][: int(walk[4][0, 0])].tolist()] == voxels


@settings(deadline=None, max_examples=60)
@given(ends=ENDS, size=SIZES, reverse=st.booleans())
def test_every_walk_is_that_of_the_sorted_crossings(ends, size, reverse):
    rays = torch.tensor(ends, dtype=torch.float64)
    options = {"origin_index": torch.arange(len(ends)), "reverse": reverse}
    starts = rays[:, 3:].contiguous()
    check_op("ray_voxels", "cpu", rays[:, :3], starts, size, ORIGIN, 2000, **options)


@settings(deadline=None, max_examples=60)
@given(ends=ENDS, size=SIZES, box=st.tuples(*[st.sampled_from([-3.0, -1.3, 0.0, 0.7, 2.0])] * 3),
       edges=st.tuples(*[st.sampled_from([0.5, 1.0, 2.9])] * 3))  # fmt: skip
def test_a_clip_box_is_a_filter_and_regions_are_those_of_the_visits(ends, size, box, edges):
    rays = torch.tensor(ends, dtype=torch.float64) * 7  # through several regions
    options = {
        "origin_index": torch.arange(len(ends)),
        "point_cloud_range": [7 * x for x in (*box, *(b + e for b, e in zip(box, edges)))],  # noqa: B905
        "ray_flags": (torch.arange(len(ends)) % 5).to(torch.uint8),
    }
    starts = rays[:, 3:].contiguous()
    check_op("ray_voxels", "cpu", rays[:, :3], starts, size, ORIGIN, 9000, **options)
    check_op("ray_regions", "cpu", rays[:, :3], starts, size, ORIGIN, 900, **options)


def test_long_rays_with_ties_everywhere(device):
    """Thousands of steps, corner to corner and along planes of equal crossings."""
    ends = torch.tensor([[3e3, 3e3, 3e3], [-3e3, 2e3, 1e3], [3e4, 0.0, 0.0], [1e3, 1e3, -2e3]])
    found = check_op("ray_voxels", device, ends, torch.zeros(1, 3), 1.0, ORIGIN, 60_000)
    assert found[3].tolist() == [0, 9_001, 15_002, 45_003, 49_004]


def test_what_is_left_out_is_counted_by_its_reason(device):
    origins = torch.tensor([[0.5, 0.5, 0.5], [NAN, 0.0, 0.0]], dtype=torch.float64)
    cases = {
        "skip": ((1.0, 0.0, 0.0), 0, 1, 3),
        "index": ((1.0, 0.0, 0.0), 2, 0, 3),
        "negative index": ((1.0, 0.0, 0.0), -1, 0, 3),
        "point": ((INF, 0.0, 0.0), 0, 0, 2),
        "origin": ((1.0, 0.0, 0.0), 1, 0, 2),
        "short": ((0.6, 0.5, 0.5), 0, 0, 3),
        "infinite length": ((1e200, 0.0, 0.0), 0, 0, 4),
        "extent": ((0.0, 2.0**23, 0.0), 0, 0, 4),
        "2^31 units": ((2.0**15 + 0.5, 0.5, 0.5), 0, 0, 4),
        "fewer": ((2.0**15 + 0.5 - 2.0**-16, 0.5, 0.5), 0, 0, None),
    }
    points = torch.tensor([c[0] for c in cases.values()], dtype=torch.float64)
    options = {
        "origin_index": torch.tensor([c[1] for c in cases.values()]),
        "ray_flags": torch.tensor([c[2] for c in cases.values()], dtype=torch.uint8),
        "min_range": 0.2,
        "num_valid": torch.tensor([len(cases)]),
    }
    found = check_op("ray_voxels", device, points, origins, 1.0, ORIGIN, 10, **options)
    assert found[4].tolist()[0][1:5] == [2**15 + 1, 2, 4, 3]
    options["num_valid"] -= 1  # the last one becomes padding
    found = check_op("ray_voxels", device, points, origins, 1.0, ORIGIN, 10, **options)
    assert found[4].tolist()[0][1:5] == [0, 2, 4, 3]


@pytest.mark.parametrize(("most", "kept"), [(0, 0), (3, 0), (4, 4), (13, 13), (14, 13), (20, 13)])
def test_regions_beyond_what_the_search_tells_apart(most, kept, device):
    """13 regions; a search for 3 has 8 places and tells 7 apart, one for 4 has 16. Keys come in
    ascending order, and in descending order, in which later ones take places of others."""
    for start, end in ((0.0, 100.0), (100.0, 0.0)):
        ends, starts = torch.tensor([[end, 0.0, 0.0]]), torch.tensor([[start, 0.0, 0.0]])
        found = check_op("ray_regions", device, ends, starts, 1.0, ORIGIN, most)
        total = 13 if most >= 4 else {0: 2, 3: 7}[most]
        assert found[1][0, :2].tolist() == [kept, total]


def test_points_under_poses_are_those_of_a_matrix_product():
    g = torch.Generator().manual_seed(3)
    points = torch.randn(500, 3, generator=g) * 1e3
    poses = torch.randn(1, 3, 4, generator=g, dtype=torch.float64)
    expected = points.double() @ poses[0, :, :3].T + poses[0, :, 3]
    assert torch.allclose(torchvox.transform_points(points, poses), expected)
