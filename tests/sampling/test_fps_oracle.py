# SPDX-License-Identifier: Apache-2.0
"""furthest_point_sample returns the bits of the sequential reference."""

import numpy as np
import pytest
import torch
from fps_cases import assert_as_reference, samples
from helpers import ODD_CLOUDS, cube, lattice
from hypothesis import given, settings
from hypothesis import strategies as st

RULES = [
    {},
    {"dist_order": "loop"},
    {"tie": "mmcv"},
    {"tie": "mmcv", "tie_block": 64, "exhausted": "repeat", "init_dist2": 1e10},
    {"exhausted": "repeat"},
    {"skip_origin": True},
    {"nonfinite": "last"},
    {"start": 5},
]

TIED = ("duplicates", "all equal", "regular lattice", "lattice", "nonfinite")  # sampled empty
NONFINITE, BAD = cube(80), [3, 14, 25, 36]
NONFINITE[0, BAD] = torch.tensor([float("nan"), float("inf"), -float("inf"), float("nan")])[:, None]


def rule_id(rules):
    return "-".join(f"{k}={v}" for k, v in rules.items()) or "defaults"


@pytest.mark.parametrize("rules", RULES, ids=rule_id)
@pytest.mark.parametrize("name", [*ODD_CLOUDS, "nonfinite"])
def test_every_cloud_under_every_rule(device, name, rules):
    points = NONFINITE if name == "nonfinite" else ODD_CLOUDS[name]
    count = points.size(1) + 5 if name in TIED else 60
    idx, _ = assert_as_reference(device, points, count, **rules)
    assert name != "nonfinite" or "nonfinite" in rules or not np.isin(idx, BAD).any()


TABLE_EDGES = [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023,
               1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193]  # fmt: skip


@pytest.mark.parametrize("n", TABLE_EDGES)
@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
def test_sizes_around_every_edge_of_the_launch_table(device, n, tie):
    assert_as_reference(device, lattice(n, side=40, seed=n), min(n, 24), tie=tie)


@pytest.mark.parametrize("name", [*ODD_CLOUDS, "large"])
def test_a_prefix_of_an_order_is_the_order_of_the_prefix(device, name):
    points = lattice(9000, side=30) if name == "large" else ODD_CLOUDS[name]
    order, dist2 = samples(device, points, 64)
    for s in (1, 2, 17, 64):
        idx, inner = samples(device, points[:, order[0, :s]], s)
        assert idx[0].tolist() == list(range(s))
        np.testing.assert_array_equal(inner[0], dist2[0, :s])


def regular(side: int) -> torch.Tensor:
    """Top tie groups of thousands: more than a window or a pool of the lazy kernel holds."""
    points = torch.cartesian_prod(*[torch.arange(float(side))] * 3)[None]
    return torch.cat([points, points[:, ::3]], dim=1)


SLOW = pytest.mark.slow
REPEAT = {"exhausted": "repeat", "init_dist2": 0.01}
HALVES = (torch.float16, torch.bfloat16)
STARTS = torch.from_numpy(np.random.default_rng(0).integers(-5, 9005, (2, 130)))
LENGTHS, COUNTS = torch.tensor([80, 79, 1, 0, 500, -3]), torch.tensor([0, 1, 7, 20, 500, -2])
SIX = lattice(80, batch=6)
SIX[:, 79] = 1e6  # the furthest by far, visible only to full clouds
CALLS = {
    "cube beyond a block": (cube(70_000, seed=1), 40, {}),
    "lattice beyond a block": (lattice(20_000, seed=2), 40, {}),
    **{f"a lattice of {side}, {rule}": (regular(side), min(600, side**3 + 9), {"exhausted": rule})
       for side in (4, 9, 16) for rule in ("distinct", "repeat")},
    "many small clouds": (lattice(16, side=3, seed=1, batch=3000), 8, {}),
    "a long start set": (lattice(300, side=20, batch=2), 160, {"start_idx": STARTS}),
    "starts in a large cloud": (lattice(9000, side=20, batch=2), 160, {"start_idx": STARTS}),
    "lengths, mmcv": (SIX, 40, {"lengths": LENGTHS.int(), "tie": "mmcv", "exhausted": "repeat"}),
    "counts, repeated": (cube(60, batch=6), 20, {"counts": COUNTS, "exhausted": "repeat"}),
    **{f"{d} axes, {order}": (cube(150, d=d, seed=d), 40, {"dist_order": order})
       for d in (1, 2, 3, 4, 6, 17) for order in ("pn2", "loop")},
    **{f"{d} axes of float64, {rules}": (cube(90, d=d, seed=d).double() / 3, 24, rules)
       for d in (2, 3, 5) for rules in ({}, {"dist_order": "loop"}, {"tie": "mmcv", **REPEAT})},
    **{f"{d} axes of {dtype}": (cube(300, d=d, seed=6).to(dtype), 40, {})
       for dtype in HALVES for d in (3, 5)},
}  # fmt: skip
LARGE = [
    pytest.param((lattice(16_384, seed=9), 4096, {"tie": "mmcv"}), id="many samples", marks=SLOW),
    pytest.param(
        (cube(16, seed=2, batch=65_537), 4, {}),
        id="more clouds than a grid dimension holds",
        marks=[SLOW, pytest.mark.gpu],
    ),
]


@pytest.mark.parametrize("call", [*(pytest.param(v, id=k) for k, v in CALLS.items()), *LARGE])
def test_every_call_has_the_bits_of_the_reference(device, call):
    points, count, options = call
    assert_as_reference(device, points, count, **options)


coordinate = st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.1, 1e-3, 1e5, 3e38, -1.0, 1e-40]) | st.floats(
    width=32, allow_nan=True, allow_infinity=True
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_small_cloud_under_any_rules(device, data):
    n = data.draw(st.integers(0, 12), "n")
    rows = data.draw(st.lists(st.tuples(*[coordinate] * 3), min_size=n, max_size=n), "rows")
    points = torch.from_numpy(np.array(rows, np.float32).reshape(1, n, 3))
    exhausted = data.draw(st.sampled_from(["distinct", "repeat"]))
    last = exhausted == "distinct" and data.draw(st.booleans(), "last")
    s = data.draw(st.integers(0, 15), "s")
    starts = data.draw(st.lists(st.integers(-2, 14), min_size=1, max_size=3), "starts")
    options = {
        "start_idx": torch.tensor([starts]),
        "tie": data.draw(st.sampled_from(["lowest", "mmcv"])),
        "tie_block": data.draw(st.sampled_from([1, 4, 1024])),
        "dist_order": data.draw(st.sampled_from(["pn2", "loop"])),
        "exhausted": exhausted,
        "nonfinite": "last" if last else "skip",
        "skip_origin": data.draw(st.booleans()),
        "init_dist2": data.draw(st.sampled_from([None, 1e10, 1.0])),
    }
    assert_as_reference(device, points, s, **options)
