# SPDX-License-Identifier: Apache-2.0
"""States give one set of bits however the points come, are merged, spilled or saved."""

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import table_cases as cases
import torch
from helpers import disk_of
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.filter import OutsideFrameError, VoxelAccumulator, downsample
from torchvox.filter.accumulator import WORK
from torchvox.filter.saved import ABOUT, write_state
from torchvox.io import PointTable
from torchvox.io.table import join

SIZE = (1.0, 1.0, 1.0)
TABLE = cases.cloud(700, seed=1)
BOX = TABLE.box
OPTIONS = {
    "centroid": {"policy": {"return_number": "last", "distance": "max"}},
    "random": {"keep": "random", "seed": 7, "policy": {"label": "majority"}},
    "none": {
        "keep": "center",
        "no_data": {"label": [2**40], "intensity": [7], "distance": [np.nan]},
    },
    "adaptive": {"levels": 3, "max_points": 25, "min_points": 2},
    "nearest": {"keep": "nearest_center", "layout": "zyx", "policy": {"distance": "sum"}},
}
SMALL = 18_000 * WORK  # bytes: some hundred voxels


def accumulator(table=TABLE, device="cpu", **options) -> VoxelAccumulator:
    return VoxelAccumulator(table.schema, SIZE, box=BOX, device=device, **options)


def filled(table: PointTable, **options) -> VoxelAccumulator:
    """An accumulator with the points of a table."""
    cells = accumulator(**options)
    cells.update(table)
    return cells


def result(cells: VoxelAccumulator) -> PointTable:
    return join([table for table, *_ in cells.finish()])


def chunks_of(name: str) -> list[np.ndarray]:
    """Places of the points of each chunk."""
    every = np.arange(len(TABLE))
    if name == "1":
        return [every[:1], every[1:2], every[2:2], every[2:]]
    if name == "shuffled":
        return np.array_split(np.random.default_rng(0).permutation(every), 9)
    if name == "7":
        return [*np.array_split(every[:140], 20), every[140:]]
    parts = np.array_split(every, [211, 422, 633] if name == "reversed" else [])
    return parts[::-1]


@pytest.fixture(scope="module")
def expected():
    """What the oracle makes of the table with the options of each name."""
    return {name: cases.check(TABLE, SIZE, **options) for name, options in OPTIONS.items()}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("chunks", ["1", "7", "whole", "reversed", "shuffled"])
def test_chunks_do_not_change_the_result(device, expected, name, chunks):
    with accumulator(device=device, **OPTIONS[name]) as cells:
        for at in chunks_of(chunks):
            cells.update(TABLE.rows(at), at)
        assert cells.points == len(TABLE)
        cases.same(result(cells), expected[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_tree_of_merges_does_not_change_the_result(device, expected, name, tmp_path):
    rng = np.random.default_rng(3)
    cells = []
    for i, at in enumerate(np.array_split(rng.permutation(len(TABLE)), 8)):
        cells.append(accumulator(device=device if i % 2 else "cpu", **OPTIONS[name]))
        cells[-1].update(TABLE.rows(at), at)
    while len(cells) > 1:
        a, b = (cells.pop(rng.integers(len(cells))) for _ in range(2))
        if rng.random() < 0.5:
            b.save(path := tmp_path / f"{len(cells)}")
            b = path
        a.merge(b)
        cells.append(a)
    assert cells[0].points == len(TABLE)
    cases.same(result(cells[0]), expected[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_spilling_does_not_change_the_result(device, expected, name, tmp_path):
    options = OPTIONS[name] | {"memory_limit": SMALL, "spill_dir": tmp_path / "new" / "spill"}
    with accumulator(device=device, **options) as cells:
        for at in np.array_split(np.arange(len(TABLE)), 5):
            cells.update(TABLE.rows(at), at)
        assert len(cells._runs) > 1
        parts = [table for table, *_ in cells.finish()]
        assert len(parts) > 1
        cases.same(join(parts), expected[name])
        cells.save(tmp_path / "state")
        with accumulator(device=device, **options) as other:
            other.merge(tmp_path / "state")
            assert other._runs  # it came in parts
            cases.same(result(other), expected[name])
    assert not list((tmp_path / "new" / "spill").iterdir())


@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(1, 40))
@settings(max_examples=4)
def test_adaptive_cells_are_an_octree(seed, levels, most):
    rng = np.random.default_rng(seed)
    xyz = rng.normal(0, rng.choice([1.0, 20.0]), (int(rng.integers(0, 150)), 3))
    cases.check(PointTable(xyz), 0.5, levels=levels, max_points=most)


@pytest.mark.parametrize("kind", ["int32", "float32", "float64"])
@pytest.mark.parametrize("count", [0, 1])
def test_no_point_and_one_point(device, kind, count):
    table = cases.cloud(count, kind, seed=4)
    for options in ({}, {"keep": "random"}, {"keep": "nearest_centroid"}, {"levels": 2}):
        output = cases.check(table, device=device, **options)
        assert len(output) == count
    with VoxelAccumulator(table.schema, SIZE, memory_limit=1) as cells:
        assert len(result(cells)) == 0
        cells.update(table)
        cells.spill()
        assert len(result(cells)) == count
        assert list(result(cells).columns) == list(cells.result_schema.columns)


def test_points_of_too_few_leave_and_more_may_come_after_the_result(expected):
    cells = filled(TABLE.rows(slice(0, 400)))
    assert len(result(cells)) < len(downsample(TABLE, 1.0))
    cells.update(TABLE.rows(slice(400, None)))
    cases.same(result(cells), downsample(TABLE, 1.0))
    few = TABLE.rows(slice(0, 200))
    assert 0 < len(cases.check(few, 2.0, min_points=4)) < len(downsample(few, 2.0))
    assert len(cases.check(few, min_points=10**6)) == 0


def test_keys_of_63_bits(device):
    """Cells at both ends of the longest frame."""
    table = PointTable(np.array([[0.5] * 3, [2**21 - 0.5] * 3, [0.5, 2**21 - 0.5, 7.5]]))
    for layout in ("morton", "zyx"):
        output = cases.check(table, layout=layout, device=device, keep="first")
        assert len(output) == 3
    cases.check(table, levels=10, max_points=1, device=device)


def test_a_point_outside_of_the_box_is_refused_and_leaves_the_state_as_it_was():
    cells = filled(TABLE)
    far = replace(TABLE.rows(slice(0, 1)), xyz=TABLE.xyz[:1] + 10**7)
    with pytest.raises(OutsideFrameError, match=r"1 points .* give a box that holds all"):
        cells.update(far)
    assert cells.points == len(TABLE)
    cases.same(result(cells), downsample(TABLE, 1.0))


def test_what_does_not_fit_an_update_is_refused():
    cells = accumulator()
    with pytest.raises(WrongUseError, match="do not join"):
        cells.update(TABLE.rows(slice(0, 5), ["label"]))
    with pytest.raises(WrongUseError, match="5 points need as many numbers, got 4"):
        cells.update(TABLE.rows(slice(0, 5)), np.arange(4))
    with pytest.raises(WrongUseError, match="other keeps take none"):
        cells.update(TABLE, scores=np.zeros(len(TABLE)))
    with pytest.raises(WrongUseError, match="downsample"):
        accumulator(keep="nearest_centroid").update(TABLE)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"keep": "center"}, "keep center"),
        ({"seed": 1}, "seed 1"),
        ({"policy": {"label": "min"}}, "rules"),
        ({"no_data": {"label": np.array([3])}}, "no_data"),
        ({"origin": (0.5, 0, 0)}, "origin"),
        ({"layout": "zyx"}, "layout zyx"),
        ({"box": BOX * 1000}, "lower|bits"),
    ],
)
def test_states_of_other_jobs_are_refused(tmp_path, option, says):
    other = VoxelAccumulator(TABLE.schema, SIZE, **({"box": BOX} | option))
    other.update(TABLE)
    other.save(tmp_path / "state")
    cells = accumulator()
    for state in (other, tmp_path / "state"):
        with pytest.raises(WrongUseError, match=f"has the ({says}).* of one job"):
            cells.merge(state)
    assert cells.points == 0 and len(result(cells)) == 0


def about(**changes):
    return lambda s: (s / ABOUT).write_text(
        json.dumps(json.loads((s / ABOUT).read_text()) | changes)
    )


def column(name, change):
    return lambda s: change(np.fromfile(s / name, np.int64)).tofile(s / name)


DAMAGE = {
    "text": lambda state: (state / ABOUT).write_text("{"),
    "depth": lambda state: (state / ABOUT).write_text("[" * 10**6),
    "gone": lambda state: (state / ABOUT).unlink(),
    "column": lambda state: (state / "sums.0").unlink(),
    "bytes": lambda state: os.truncate(state / "sums.0", (state / "sums.0").stat().st_size - 3),
    "earlier": about(digest=None),
    "points": about(points=-5),
    "rows": column("key.0", lambda values: values[:2]),
    "votes": column("count.1", lambda values: values + 1),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_state_is_one_sentence(tmp_path, how):
    filled(TABLE).save(tmp_path / "state")
    DAMAGE[how](tmp_path / "state")
    empty = accumulator()
    with pytest.raises(CloudFileError, match="state is not a saved state of a filter"):
        empty.merge(tmp_path / "state")
    assert empty.points == 0 and len(result(empty)) == 0


@pytest.mark.parametrize("column", ["key", "sums"])
@pytest.mark.parametrize("change", [lambda c: c.flip(0), lambda c: -c, lambda c: c + (1 << 60)])
def test_a_state_that_is_written_wrong_is_refused(tmp_path, column, change):
    cells = filled(TABLE.rows(slice(0, 9)))
    (state,) = cells._states
    state[0][column] = change(state[0][column])
    if column == "sums":
        state[0][column] -= 1
    about = {"job": cells.fingerprint(), "points": 9, "not_finite": 0}
    write_state([state], tmp_path / "state", about)
    with pytest.raises(CloudFileError, match=r"disorder|below 1|voxels of"):
        accumulator().merge(tmp_path / "state")


def test_points_that_are_not_finite_are_merged_with_their_states(tmp_path):
    table = cases.cloud(300, "float64")
    parts = [VoxelAccumulator(table.schema, SIZE, box=table.box) for _ in range(3)]
    for cells, at in zip(parts, np.array_split(np.arange(300), 3), strict=True):
        cells.update(table.rows(at), at)
    parts[2].save(tmp_path / "state")
    with pytest.raises(WrongUseError, match="exists already"):
        parts[1].save(tmp_path / "state")
    parts[0].merge(parts[1])
    parts[0].merge(tmp_path / "state")
    bad = int((~np.isfinite(table.xyz).all(axis=1)).sum())
    assert parts[1].not_finite and (parts[0].points, parts[0].not_finite) == (300, bad)


def test_tables_in_other_steps_are_refused_by_name():
    def table(scale):
        columns, steps = {"a": np.arange(3)}, {"a": (np.array([scale]), np.zeros(1))}
        return PointTable(np.zeros((3, 3)), columns, steps=steps, path=f"{scale}.las")

    cells = VoxelAccumulator(table(0.5).schema, SIZE, box=BOX)
    with pytest.raises(WrongUseError, match=r"0.25.las and 0.5.las store a in different steps"):
        cells.update(table(0.25))
    with pytest.raises(WrongUseError, match="has the steps"):
        cells.merge(VoxelAccumulator(table(0.25).schema, SIZE, box=BOX))


def save_and_die(path, calls):
    """Ends by SIGKILL at a certain call of fsync."""
    left = [calls]
    sync = os.fsync

    def fsync(handle):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(handle)

    os.fsync = fsync
    filled(TABLE).save(path)


def test_killed_while_it_saves_there_is_no_state_or_a_whole_one(tmp_path):
    path, seen = tmp_path / "state", set()
    expected = downsample(TABLE, 1.0)
    for calls in (0, 3, 9, 11, 13, 100):
        child = multiprocessing.get_context("fork").Process(target=save_and_die, args=(path, calls))
        child.start()
        child.join(60)
        seen.add((child.exitcode, path.exists()))
        if path.exists():
            cells = accumulator()
            cells.merge(path)
            cases.same(result(cells), expected)
            shutil.rmtree(path)
    assert {(-signal.SIGKILL, False), (0, True)} <= seen


@pytest.mark.parametrize("how", ["update", "merge"])
def test_a_full_disk_is_one_sentence_and_changes_nothing(tmp_path, how, expected):
    parts = [TABLE.rows(at) for at in np.array_split(np.arange(len(TABLE)), 4)]
    others = [accumulator(**OPTIONS["centroid"]) for _ in parts]
    with accumulator(memory_limit=SMALL, spill_dir=tmp_path, **OPTIONS["centroid"]) as cells:
        for i, (part, other) in enumerate(zip(parts, others, strict=True)):
            other.update(part, first := 175 * i)
            step = {"update": (part, first), "merge": (other,)}[how]
            before = cells.points, [*cells._states], [*cells._runs], {*tmp_path.rglob("*")}
            with disk_of(100), pytest.raises(CloudFileError, match="File too large"):
                getattr(cells, how)(*step)
            assert before == (cells.points, cells._states, cells._runs, {*tmp_path.rglob("*")})
            getattr(cells, how)(*step)
        assert cells.points == len(TABLE)
        cases.same(result(cells), expected["centroid"])
        with disk_of(100), pytest.raises(CloudFileError, match="File too large"):
            cells.save(tmp_path / "state")
    assert not list(tmp_path.iterdir())


def test_the_size_of_a_state_is_that_of_the_plan():
    cells = filled(TABLE)
    ((voxels, *_),) = cells._states
    assert sum(c.nbytes for c in voxels.values()) == len(voxels["key"]) * cells.bytes_a_voxel()
    assert torch.equal(voxels["key"], voxels["key"].unique())
