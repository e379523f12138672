# SPDX-License-Identifier: Apache-2.0
"""place_boxes: who may join a scene, alone and in groups."""

import pytest
import torch
from box_cases import box
from helpers import check_op
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import on

import torchvox

FOUR, TWICE = [[4.0], [5.0], [6.5], [20.0]], [[0.5, 9.0], [0.4, 30.0]]
TRIES = [[0.5, 1.9, 2.0, 9.0], [0.1, 0.2, 0.3, 0.4]]


@pytest.mark.parametrize(
    ("boxes", "tries", "group", "options", "choice"),
    [
        # One alone takes its first free try; boxes that touch do not overlap.
        ([0.0], TRIES, [0, 1], {}, [2, -1]),
        ([0.0], TRIES, [0, -1], {"lengths": [0]}, [0, -1]),
        # Groups join in rising number, and are in the way of the next.
        ([0.0], [[4.0], [4.5], [8.0]], [5, 2, 9], {}, [-1, 0, 0]),
        # Of several that meet all go, or the first frees the others. One that a box drives out
        # stands in the way of those before it, not of those behind.
        ([0.0], FOUR, [1] * 4, {}, [-1, -1, -1, 0]),
        ([0.0], FOUR, [1] * 4, {"mode": "greedy"}, [-1, -1, 0, 0]),
        ([0.0], [[2.5], [1.0], [2.6]], [1] * 3, {"mode": "greedy"}, [-1, -1, 0]),
        # A candidate may stand for a box, which leaves.
        ([0.0, 9.0], TWICE, [0, 1], {"replaces": [[0, -1]]}, [0, 1]),
        ([0.0, 9.0], [[8.5], [0.0]], [0, 1], {"replaces": [[1, 0]]}, [0, 0]),
    ],
)
def test_squares_of_two_meters_on_a_line(boxes, tries, group, options, choice, device):
    rows = torch.tensor([[box(x, l=2.0, w=2.0) for x in boxes]]).reshape(1, -1, 7)
    tries = torch.tensor([[[box(x, l=2.0, w=2.0) for x in each] for each in tries]])
    call = {"boxes": rows, "candidates": tries, "group": torch.tensor([group])}
    call |= {k: torch.tensor(v) if isinstance(v, list) else v for k, v in options.items()}
    assert torchvox.place_boxes(**on(device, call)).tolist() == [choice]


def test_a_box_without_area_meets_nothing(device):
    candidates = torch.tensor([[[box(l=0.0)], [box(x=float("nan"))], [box()]]], device=device)
    group = torch.tensor([[0, 1, 2]], device=device)
    boxes = torch.tensor([[box(l=-1.0)]], device=device)
    assert torchvox.place_boxes(boxes, candidates, group).tolist() == [[0, 0, 0]]


def boxes_on_a_lattice(g: torch.Generator, *shape: int) -> torch.Tensor:
    boxes = torch.ones(*shape, 8)
    for column, values in ((0, range(9)), (1, range(3)), (3, (1, 2, 0)), (6, (0.0, 0.6))):
        chosen = torch.randint(len(values), shape, generator=g)
        boxes[..., column] = torch.tensor(values).float()[chosen]
    return boxes


@settings(max_examples=300)
@given(
    *(st.integers(0, most) for most in (4, 9, 4)), st.sampled_from(["both", "greedy"]),
    st.integers(0, 2**30),
)  # fmt: skip
def test_any_scene_is_filled_as_the_loops_do(boxes, count, tries, mode, seed):
    g = torch.Generator().manual_seed(seed)
    call = {
        "boxes": boxes_on_a_lattice(g, 2, boxes),
        "candidates": boxes_on_a_lattice(g, 2, count, tries),
        "group": torch.randint(-1, 5, (2, count), generator=g),
        "lengths": torch.randint(-1, 7, (2,), generator=g),
        "mode": mode,
        "replaces": torch.randint(-2, 6, (2, count), generator=g),
    }
    check_op("place_boxes", "cpu", **call)


@pytest.mark.parametrize("mode", ["both", "greedy"])
def test_a_crowded_scene_is_filled_as_the_loops_do(mode, device):
    """45 candidates of three classes, and 40 with 20 tries each."""
    g = torch.Generator().manual_seed(1)
    scale = torch.tensor([60.0, 60, 1, 4, 2, 1, 6])
    call = {
        "boxes": torch.rand(2, 50, 7, generator=g) * scale,
        "candidates": torch.rand(2, 85, 20, 7, generator=g) * scale,
        "group": torch.tensor([0] * 15 + [1] * 15 + [2] * 15 + list(range(3, 43))).expand(2, 85),
        "lengths": torch.tensor([50, 20]),
        "mode": mode,
    }
    want = check_op("place_boxes", device, **call)
    assert (want > 0).any() and (want < 0).any()
