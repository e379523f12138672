# SPDX-License-Identifier: Apache-2.0
"""Planes of a volume: each against its definition, cell by cell."""

import pytest
import torch
from helpers import assert_same_bits

import torchvox

VOXEL, RANGE = [0.5, 0.5, 0.25], [0.0, 0.0, -1.0, 2.0, 1.5, 0.75]  # 4 x 3 x 7 cells
NAMES = ["free", "occupied", "unknown", "free_top", "occupied_top", "slices:3", "slices:7"]


@pytest.fixture
def volume():
    generator = torch.Generator().manual_seed(0)
    volume = torch.randint(0, 3, (2, 7, 3, 4), generator=generator, dtype=torch.uint8)
    volume[0, :, 0, 0] = 0
    volume[0, :, 0, 1] = 1
    return volume


def by_hand(column: list[int]) -> list[float]:
    planes = [column.count(code) / 7 for code in (1, 2, 0)]
    for code in (1, 2):
        highest = max((k + 1 for k, value in enumerate(column) if value == code), default=0)
        planes.append(-1.0 + 0.25 * highest)
    for first, last in ((0, 2), (2, 4), (4, 7), *((k, k + 1) for k in range(7))):
        signs = [{0: 0, 1: -1, 2: 1}[value] for value in column[first:last]]
        planes.append(sum(signs) / len(signs))
    return planes


def test_every_plane_is_its_definition(volume, device):
    planes = torchvox.visibility_channels(volume.to(device), NAMES, VOXEL, RANGE)
    assert planes.dtype == torch.float32 and planes.shape == (2, 15, 3, 4)
    expected = torch.empty(2, 15, 3, 4)
    for b in range(2):
        for y in range(3):
            for x in range(4):
                expected[b, :, y, x] = torch.tensor(by_hand(volume[b, :, y, x].tolist()))
    assert_same_bits((planes.cpu(),), (expected,), "planes")


def test_a_script_and_a_compiled_program_give_the_same_bits(volume):
    expected = torchvox.visibility_channels(volume, NAMES, VOXEL, RANGE)
    scripted = torch.jit.script(torchvox.visibility_channels)(volume, NAMES, VOXEL, RANGE)
    compiled = torch.compile(torchvox.visibility_channels, fullgraph=True, backend="aot_eager")
    again = compiled(volume, NAMES, VOXEL, RANGE)
    assert_same_bits((scripted, again), (expected,) * 2, "planes")


@pytest.mark.parametrize(
    ("channels", "words"),
    [
        ("height", "free, occupied, unknown, .* K from 1 to 7, got height"),
        ("slices:8", "got slices:8"),
        ("slices:0", "got slices:0"),
        ("slices:", "got slices:"),
        ("free_top", "free_top needs voxel_size and point_cloud_range"),
    ],
)
def test_wrong_channels_and_volumes_are_named(volume, channels, words):
    with pytest.raises(ValueError, match=words):
        torchvox.visibility_channels(volume, [channels])
    with pytest.raises(ValueError, match=r"volume must be \[B, nz, ny, nx\], got \[7, 3, 4\]"):
        torchvox.visibility_channels(volume[0], ["free"])


def test_the_planes_lie_on_the_canvas_of_the_pillars():
    """Row and column of a wall's cells are those of its pillars."""
    module = torchvox.nn.RayVisibility(VOXEL, RANGE)
    points = torch.tensor([[1.75, 0.25 + 0.5 * i, 0.3] for i in range(3)])
    seen = module(points, torch.tensor([[0.25, 0.25, 0.3]]))
    occupied = torchvox.visibility_channels(seen.visibility, ["occupied"])[0, 0] > 0
    pillars = torchvox.voxel_map(points, [0.5, 0.5, 1.75], RANGE, -1, -1).indices
    canvas = torchvox.pillar_scatter(torch.ones(3, 1), pillars, 1, [4, 3])[0, 0] > 0
    assert torch.equal(occupied, canvas) and occupied[:, 3].all() and occupied.sum() == 3
    assert seen.reached.tolist() == [0, 0, 0] and seen.visibility[0, 5, 0, :3].eq(1).all()
