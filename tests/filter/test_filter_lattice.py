# SPDX-License-Identifier: Apache-2.0
"""Cells of LAS coordinates are exact; frames of boxes; coordinates that name no cell."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import table_cases as cases
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvox._util.errors import WrongUseError
from torchvox.filter import OutsideFrameError, VoxelAccumulator, downsample
from torchvox.filter.lattice import ALIGNED, MOST_BITS, Lattice
from torchvox.filter.memory import origin_of
from torchvox.io import PointTable
from torchvox.ops.filter import voxel_cells
from torchvox.reference.filter_table import table_cells

CPU = torch.device("cpu")
ZERO = (0.0, 0.0, 0.0)


def las(xyz, scale=0.01, offset=0.0) -> PointTable:
    scale, offset = (np.broadcast_to(np.array(v, np.float64), 3).copy() for v in (scale, offset))
    return PointTable(np.array(xyz, np.int32).reshape(-1, 3), {}, scale, offset)


def cells_of(table: PointTable, size, origin=ZERO, device=CPU) -> tuple[Lattice, list]:
    lattice = Lattice.of(table, size, origin, table.box)
    keys = lattice.keys(table.xyz, torch.device(device))
    cells = voxel_cells(keys, lattice.bits, [0, 0, 0])[:, [3, 2, 1]].cpu().long()
    return lattice, (cells + torch.tensor(lattice.lower)).tolist()


def faces(size, origin, scale, offset, rng) -> np.ndarray:
    """Stored coordinates at and beside the faces of cells."""
    q, t, v, o = (Fraction(repr(float(number))) for number in (scale, offset, size, origin))
    first = int((o - t) / q)
    steps = [first + int(k * v / q) + d for k in rng.integers(-300, 300, 40) for d in (-1, 0, 1)]
    return np.clip(steps, -(2**31), 2**31 - 1).astype(np.int32)


numbers = st.decimals(-850_000, 850_000, places=3).map(float)


@given(
    st.sampled_from([0.01, 0.001, 0.0025, -0.01, 0.3048, 0.1]),
    st.sampled_from([0.05, 0.125, 0.3, 1.0, 0.99, 7.25]),
    numbers,
    numbers,
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=40)
def test_any_lattice_gives_the_cells_of_fractions(device, scale, size, offset, origin, seed):
    x = faces(size, origin, scale, offset, np.random.default_rng(seed))
    table = las(np.stack([x, x, x], 1), scale, offset)
    lattice, cells = cells_of(table, (size,) * 3, (origin,) * 3, device)
    assert lattice.exact
    assert [tuple(c) for c in cells] == table_cells(table, (size,) * 3, (origin,) * 3)


@pytest.mark.parametrize(
    ("offset", "exact"),
    [
        (1 + 1e-6, True),  # mul is 10^k for an offset of 10^-k quanta, |mul * X| reaches 2^31 * mul
        (1 + 1e-7, False),
        (2.0**52 - 2**31 - 1, True),  # mul 1: 2^31 + |add| < 2^52
        (2.0**52 - 2**31, False),
    ],
)
def test_numbers_below_2_to_the_52_are_exact_and_others_go_through_floats(offset, exact):
    if offset > 2:
        lattice = Lattice.of(las([], 1.0, offset), (2.0**20,) * 3, ZERO, None)
        assert lattice.exact is exact
        return
    table, size = las([[1, 2, 3], [2**31 - 1, -(2**31), 0]], 1.0, offset), (4096.0,) * 3
    lattice, cells = cells_of(table, size)
    assert lattice.exact is exact
    assert [tuple(c) for c in cells] == table_cells(table, size, ZERO, exact)
    assert VoxelAccumulator(table.schema, size, box=table.box).exact_cells is exact
    cases.check(table, size, exact=exact)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_faces_of_floats_are_divided_in_their_type(device, kind):
    size = (0.05, 0.1, 0.3)
    edges = np.arange(-60, 60)[:, None] * np.array(size)
    around = [np.nextafter(edges.astype(kind), np.array(e, kind)) for e in (-np.inf, np.inf)]
    table = PointTable(np.concatenate([edges.astype(kind), *around]))
    _, cells = cells_of(table, size, device=device)
    assert [tuple(c) for c in cells] == table_cells(table, size, ZERO)


def test_the_frame_is_the_smallest_that_begins_at_a_multiple_of_1024():
    for low, high, lower, bits in (
        (0, 0, 0, 1),
        (5, 1023, 0, 10),
        (5, 1024, 0, 11),
        (-1, 0, -ALIGNED, 11),
        (-2000, -1500, -2048, 10),
        (0, 2**MOST_BITS - 1, 0, MOST_BITS),
    ):
        table = PointTable(np.array([[low] * 3, [high] * 3], np.float64) + 0.5)
        lattice = Lattice.of(table, (1.0,) * 3, ZERO, table.box)
        assert (lattice.lower, lattice.bits) == ((lower,) * 3, bits)


def test_a_box_beyond_32_bits_is_that_of_all_coordinates():
    """A header may claim it."""
    table = las([[-(2**31)] * 3, [2**31 - 1] * 3])
    lattice = Lattice.of(table, (1e5,) * 3, ZERO, np.array([[-1e300] * 3, [1e300] * 3]))
    assert lattice == Lattice.of(table, (1e5,) * 3, ZERO, table.box)
    assert (lattice.keys(table.xyz, CPU) >= 0).all()


@pytest.mark.parametrize(
    ("table", "size"),
    [
        *((las([[0, 0, 0], [2 * 10**9, 5, -7]], scale), 0.001) for scale in (0.01, -0.01)),
        *(
            (PointTable(np.array([[-3.0, 0, 0], [top, 0, 0]])), 1.0)
            for top in (2.0**21 + 1, 3.1e7, 123456789.0, 1e12)
        ),
    ],
)
def test_the_voxel_size_that_an_error_names_works(table, size):
    with pytest.raises(OutsideFrameError, match="bits on x, a key has 21") as caught:
        downsample(table, size, keep="center")
    enough = float(str(caught.value).split(">=")[1])
    assert 0 < enough < 1e7 and len(downsample(table, enough, keep="center")) == 2


ORIGIN_TABLE = PointTable(np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("table", "size", "options", "words"),
    [
        *((ORIGIN_TABLE, (1, s, 1), {}, "three numbers above 0") for s in (0, -1, np.nan, np.inf)),
        *((ORIGIN_TABLE, 1, {"origin": (0, o, 0)}, "finite") for o in (np.nan, np.inf)),
        (PointTable(np.array([[1e300, 0, 0]])), 1e-300, {"keep": "center"}, "take a larger one"),
        (las([[2**31 - 1] * 3], 0.01), 1e6, {"keep": "center"}, "more than 32 bits"),
    ],
)
def test_sizes_and_origins_that_make_no_cells_are_refused(table, size, options, words):
    with pytest.raises(WrongUseError, match=words):
        downsample(table, size, **options)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_points_that_are_not_finite_are_dropped(device, kind):
    bad = [[np.nan, 0, 0], [0, np.inf, 0], [0.5, 0, -np.inf]]
    for good, rows in ([[0, 0, 0], [0.5, 0, 0]], [-1] * 3 + [0, 0]), ([], [-1] * 3):
        table = PointTable(np.array([*bad, *good], kind))
        result, trace = downsample(table, 1.0, trace=True, device=device)
        assert result.xyz.tolist() == [[0.25, 0, 0]] * bool(good) and trace.tolist() == rows


def test_offsets_that_lie_whole_quanta_apart_share_a_lattice(device):
    one = las([[0, 0, 0], [149, 0, 10]], 0.01, (500.0, 0.0, -3.0))
    two = las([[100, 0, 0], [-51, 0, 10]], 0.01, (502.0, 0.0, -3.0))
    whole = las([[0, 0, 0], [149, 0, 10], [300, 0, 0], [149, 0, 10]], 0.01, (500.0, 0.0, -3.0))
    box = whole.box
    cells = VoxelAccumulator(one.schema, (1.0,) * 3, box=box, device=device)
    cells.update(one)
    cells.update(two)
    ((output, keys, number, level),) = cells.finish()
    cases.same(output, downsample(whole, 1.0))
    assert number.tolist() == [1, 2, 1]
    assert cells.rows_of(two, keys, level).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (las([[0, 0, 0]], 0.01, 0.005), "b.las has the offset .*, a.las .* convert --scale"),
        (las([[0, 0, 0]], 0.02, 0.0), "b.las has int32 coordinates of scale .* a.las int32"),
        (las([[0, 0, 0]], 0.01, 3e7), "share a lattice of 32 bits"),
        (las([[0, 0, 0]], 0.01, 1e300), "share a lattice of 32 bits"),
        (PointTable(np.zeros((1, 3))), "b.las has float64 coordinates of scale None"),
    ],
)
def test_tables_on_other_lattices_are_refused_by_name(other, says):
    cells = VoxelAccumulator(replace(las([]), path="a.las"), (1.0,) * 3)
    with pytest.raises(WrongUseError, match=says):
        cells.update(replace(other, path="b.las"))


@pytest.mark.parametrize(
    ("word", "origin"),
    [("min", (1, 2, 3)), ("min-half", (0, 0, -1)), ("first", (5, 6, 7)), ("first-half", (4, 4, 3))],
)
def test_an_origin_may_come_from_the_data(word, origin):
    assert origin_of(word, [2.0, 4.0, 8.0], np.arange(1.0, 4), np.arange(5.0, 8)) == origin
