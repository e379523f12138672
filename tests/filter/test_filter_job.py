# SPDX-License-Identifier: Apache-2.0
"""Files that become one: as the table in memory does, whatever a header says and whoever stops."""

import struct
import threading
from dataclasses import replace

import numpy as np
import pytest
import table_cases as cases
from helpers import read_points as read
from helpers import write_points as write

from torchvox._util.errors import CloudFileError, TorchvoxError, WrongUseError
from torchvox.filter import FilterJob, FilterOptions, downsample
from torchvox.filter.accumulator import WORK
from torchvox.filter.ray import Accumulate, merge_states, range_rows
from torchvox.io import PointTable
from torchvox.io.table import TableReader

SIZE = (1.0, 1.0, 1.0)
LASPY = pytest.mark.skipif("not __import__('importlib').util.find_spec('laspy')")
BOX_AT = 179  # of max x, min x, max y, ... in a LAS header


def las_table(n=400, seed=1) -> PointTable:
    table = cases.cloud(n, seed=seed)
    rng = np.random.default_rng(seed)
    names = ("intensity", "gps_time", "classification", "return_number", "distance", "label")
    kept = {name: table.attributes[name] for name in names}
    return replace(table, attributes=kept | {"withheld": (rng.random(n) < 0.2).astype(np.uint8)})


def run(sources, target, trace=None, progress=lambda _: None, **options):
    job = FilterJob(sources, FilterOptions(**{"voxel_size": SIZE, "chunk": 97, **options}))
    return job.run(target, trace, progress)


def same_points(made, expected):
    """The bits of coordinates and columns, whatever else the file has."""
    cases.same(
        replace(made, attributes={n: made.attributes[n] for n in expected.attributes}), expected
    )


@pytest.fixture(params=["npz", pytest.param("laz", marks=LASPY)])
def kind(request):
    if request.param == "laz":
        pytest.importorskip("lazrs", reason="the extra las is not installed")
    return request.param


@pytest.fixture
def quiet():
    """No thread and no folder is left."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk": 1000, "policy": {"label": "max", "gps_time": "drop"}},
        {"keep": "nearest_centroid"},
        {"keep": "random", "seed": 3, "memory_limit": 9000 * WORK},
        {"levels": 2, "max_points": 9, "min_points": 2},
        {"origin": "first-half", "layout": "zyx"},
        {"origin": "min"},
    ],
)
def test_chunks_of_a_file_give_what_the_table_in_memory_gives(
    tmp_path, device, kind, options, quiet
):
    source = write(tmp_path / f"a.{kind}", las_table())
    kept = {k: v for k, v in options.items() if k not in ("chunk", "memory_limit")}
    expected, rows = downsample(read(source), 1.0, trace=True, **kept)
    seen = []
    limited = "memory_limit" in options
    trace = None if limited else tmp_path / "t.npz"
    facts = run([source], tmp_path / f"b.{kind}", trace, seen.append, device=device, **options)
    assert sum(seen) == facts["points"] == 400 and facts["voxels"] == len(expected)
    same_points(read(tmp_path / f"b.{kind}"), expected)
    if not limited:
        assert np.load(trace)["point_voxel"].tolist() == rows.tolist()
    run([source], tmp_path / f"c.{kind}", device=device, **options)
    assert (tmp_path / f"b.{kind}").read_bytes() == (tmp_path / f"c.{kind}").read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("keep", ["centroid", "nearest_centroid", "last"])
def test_files_become_one_in_the_order_of_their_names(tmp_path, keep):
    """The offset of the second is 2 steps from that of the first."""
    table = las_table(300)
    options = {"keep": keep} if keep != "last" else {"policy": {"label": "last"}}
    parts = [table.rows(slice(0, 120)), table.rows(slice(120, 200)), table.rows(slice(200, 300))]
    parts[1] = replace(parts[1], xyz=parts[1].xyz - 2, offset=table.offset + 0.002)
    parts.append(table.schema)
    paths = [write(tmp_path / f"{i}.npz", part) for i, part in enumerate(parts)]
    facts = run(paths[::-1], tmp_path / "out.npz", tmp_path / "t.npz", **options)
    expected, rows = downsample(table, 1.0, trace=True, **options)
    cases.same(read(tmp_path / "out.npz"), expected)
    assert np.load(tmp_path / "t.npz")["point_voxel"].tolist() == rows.tolist()
    assert facts["inputs"] == [str(path) for path in paths] and facts["dropped"] == {}


def box_in(path, box):
    """Puts a box into a LAS header."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<6d", data, BOX_AT, *np.stack([box[1], box[0]], 1).ravel())
    path.write_bytes(data)


@LASPY
@pytest.mark.parametrize(
    ("box", "problem"),
    [
        ([[0, 0, 0], [0.5, 0.5, 0.5]], None),
        ([[5e3] * 3, [6e3] * 3], "the box of a header is not that of its points"),
        ([[-1e9] * 3, [1e9] * 3], "the box of a header is not that of its points"),
        ([[-1e300] * 3, [1e300] * 3], "the box of a header is not that of its points"),
        ([[0, 0, 0], [0, 0, 0]], "a.las: the box of its header is not that of its points"),
        ([[3, 3, 3], [-3, -3, -3]], "a.las: the box of its header is not that of its points"),
        ([[np.nan] * 3, [1, 1, 1]], "a.las: the box of its header is not that of its points"),
    ],
)
def test_a_header_that_lies_costs_a_second_pass_at_most(tmp_path, box, problem, quiet):
    source = write(tmp_path / "a.las", las_table(150))
    expected = downsample(read(source), 1.0, keep="nearest_centroid")
    box_in(source, np.array(box))
    job = FilterJob([source], FilterOptions(SIZE, keep="nearest_centroid", chunk=50))
    assert job.plan()["points"] == 150
    facts = job.run(tmp_path / "b.las", tmp_path / "t.npz")
    same_points(read(tmp_path / "b.las"), expected)
    if np.ptp(box) < 1:
        assert set(facts["problems"]) <= {"the box of a header is not that of its points", problem}
    else:
        assert facts["problems"] == [problem]


def test_bounds_and_withheld_points_are_left_out_and_counted(tmp_path, kind):
    table = las_table()
    source = write(tmp_path / f"a.{kind}", table)
    bounds = (-2.0, -2.0, -9.0, 1.25, 2.0, 9.0)
    world = table.world()
    inside = ((world >= bounds[:3]) & (world <= bounds[3:])).all(axis=1)
    withheld = inside & (table.attributes["withheld"] == 1)
    (at,) = np.nonzero(inside & ~withheld)
    options = {"bounds": bounds, "drop_withheld": True, "policy": {"withheld": "drop"}}
    facts = run([source], tmp_path / f"b.{kind}", tmp_path / "t.npz", min_points=2, **options)
    kept, rows = downsample(
        read(source).rows(at), 1.0, policy={"withheld": "drop"}, min_points=2, trace=True
    )
    same_points(read(tmp_path / f"b.{kind}"), kept)
    every = np.full(len(table), -1)
    every[at] = rows
    assert np.load(tmp_path / "t.npz")["point_voxel"].tolist() == every.tolist()
    assert facts["dropped"] == {
        "outside of the bounds": int((~inside).sum()),
        "withheld": int(withheld.sum()),
        "in voxels of too few": int((rows < 0).sum()),
    }
    assert facts["dropped_columns"] == ["withheld"]


@pytest.mark.parametrize("bounds", [None, (90.0, 90.0, 90.0, 91.0, 91.0, 91.0)])
def test_no_points_make_a_file_without_points(tmp_path, kind, bounds):
    table = las_table() if bounds else las_table().schema
    source = write(tmp_path / f"a.{kind}", table)
    for options in ({}, {"origin": "min"}, {"memory_limit": 1}, {"keep": "nearest_centroid"}):
        facts = run([source], tmp_path / f"b.{kind}", bounds=bounds, **options)
        assert facts["voxels"] == 0 and len(read(tmp_path / f"b.{kind}")) == 0
    run([source], tmp_path / f"b.{kind}", tmp_path / "t.npz", bounds=bounds)
    assert np.load(tmp_path / "t.npz")["point_voxel"].tolist() == [-1] * len(table)


def staged(paths, target, options, change=lambda rows: rows):
    """As FilterJob, by the stages for Ray Data."""
    stage = Accumulate(target.parent / "states", options, paths)
    rows = change(list(map(stage, range_rows(paths, 70, options))))
    return merge_states(rows[::-1], paths, target, options)


@pytest.mark.parametrize("options", [{}, {"keep": "random"}, {"bounds": (-2.0,) * 3 + (9.0,) * 3}])
def test_stages_give_the_file_of_one_process(tmp_path, options):
    """Whatever states are there, of files that had fewer points, and with votes by all files."""
    options = FilterOptions(SIZE, policy={"label": "first"}, chunk=50, **options)
    tables = [cases.cloud(n, seed=n) for n in (100, 150, 130)]
    for table, half in zip(tables, (0.0, 0.0, 0.5), strict=True):
        table.attributes["ids"] = np.arange(len(table)) // 9 + half
    paths = [tmp_path / "a" / "1.npz", tmp_path / "a-b" / "1.npz"]  # in the order of paths
    write(paths[1], tables[1])
    for first, rule in ((tables[0], "majority"), (tables[2], "mean")):
        job = FilterJob([write(paths[0], first), paths[1]], options)
        assert job.rules["ids"] == (rule if options.keep == "centroid" else "representative")
        assert staged(paths, tmp_path / "c.npz", options) == job.run(tmp_path / "b.npz")["voxels"]
        assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "c.npz").read_bytes()


@LASPY
@pytest.mark.parametrize(
    "box", [[[0, 0, 0], [0.5] * 3], [[5e3] * 3, [6e3] * 3], [[-1e9] * 3, [1e9] * 3]]
)
def test_stages_read_what_has_a_wrong_header_box(tmp_path, box):
    paths = [write(tmp_path / f"{i}.las", las_table(100, i)) for i in range(2)]
    for path in paths:
        box_in(path, np.array(box))
    FilterJob(paths, FilterOptions(SIZE)).run(tmp_path / "b.npz")
    staged(paths, tmp_path / "c.npz", FilterOptions(SIZE))
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "c.npz").read_bytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows[1:], "lack points 0 to 70 of all 250"),
        (lambda rows: rows[:2] + rows[3:], "lack points 100 to 170"),
        (lambda rows: rows + rows[:1], "twice, .* points 0 to 70"),
        (lambda rows: [*rows[:-1], {**rows[-1], "count": 11}], "past the end, points 250 to 251"),
        (lambda rows: [{**rows[0], "path": "x"}, *rows[1:]], "0 to 70 of x are not"),
        (lambda rows: [{**rows[0], "first": 1}, *rows[1:]], "1 to 71 of .*0.npz are not"),
        (lambda rows: [{**rows[0], "state": rows[1]["state"]}, *rows[1:]], "holds 30 points"),
        (lambda rows: [{**rows[0], "error": "no luck"}, *rows[1:]], "no luck"),
        (lambda rows: [{**rows[0], "box": "null"}, *rows[1:]], "other boxes"),
    ],
)
def test_rows_that_do_not_add_up_to_the_files_are_refused(tmp_path, change, says):
    paths = [write(tmp_path / f"{i}.npz", las_table(n, i)) for i, n in enumerate((100, 150))]
    with pytest.raises(TorchvoxError, match=says):
        staged(paths, tmp_path / "c.npz", FilterOptions(SIZE), change)
    assert not (tmp_path / "c.npz").exists()


def test_files_in_other_steps_are_refused_and_averages_are_named(tmp_path, monkeypatch):
    readers = {}
    for name, scale in (("a", 0.5), ("b", 0.25)):
        columns = {
            "s": np.arange(9),
            "f": np.full(9, 1e-9),
            "g": np.ones(9, "f4"),
            "i": np.arange(9),
        }
        steps = {"s": (np.array([scale]), np.zeros(1))}
        path = write(tmp_path / f"{name}.npz", PointTable(np.zeros((9, 3)), columns))
        readers[path] = TableReader(PointTable(np.zeros((9, 3)), columns, steps=steps, path=path))
    monkeypatch.setattr("torchvox.filter.job.open_points", lambda path, *_, **__: readers[path])
    with pytest.raises(WrongUseError, match=r"b.npz and .*a.npz store s in different steps"):
        FilterJob(readers, FilterOptions(SIZE))
    readers[path].no_data = {"f": np.array([7.5])}
    with pytest.raises(WrongUseError, match=r"same no-data values: .*f.*7\.5.* and {}"):
        FilterJob(readers, FilterOptions(SIZE))
    readers[path].no_data = {}
    facts = run(readers, tmp_path / "c.npz", policy={"s": "drop"})
    assert (facts["averaged_columns"], facts["small_columns"]) == (["f", "g"], ["f"])
    facts = run(list(readers)[:1], tmp_path / "c.npz", policy={"s": "mean", "f": "max"})
    assert (facts["averaged_columns"], facts["small_columns"]) == (["s", "g"], [])
    assert read(tmp_path / "c.npz").attributes["s"].tolist() == [2.0]


def test_the_plan_says_what_the_job_does(tmp_path):
    source = write(tmp_path / "a.npz", las_table())
    job = FilterJob([source], FilterOptions(SIZE, chunk=150))
    plan = job.plan()
    assert (plan["points"], plan["chunks"], plan["key_bits"]) == (400, 3, 33)
    assert plan["lower"] == [-1024] * 3
    small = FilterJob([source], FilterOptions(SIZE, chunk=150, memory_limit=1000)).plan()
    assert plan["peak_bytes"] > small["peak_bytes"] > 1000


OTHER = replace(las_table(9), attributes={"a": np.arange(9)})


@pytest.mark.parametrize(
    ("tables", "options", "says"),
    [
        ([las_table(9), OTHER], {}, r"1.npz and .*0.npz do not have the same columns: .* a int64"),
        ([las_table(9), replace(las_table(9), scale=np.full(3, 0.01))], {}, "1.npz has .*0.npz"),
        ([las_table(9), replace(las_table(9), offset=np.full(3, 0.0003))], {}, "1.npz .*0.npz"),
        ([las_table(9)] * 2, {"origin": "min"}, "three numbers, or for one file min"),
        ([las_table(9)], {"origin": "middle"}, "or for one file min, min-half, first"),
        ([OTHER], {"drop_withheld": True}, "no column withheld: remove --drop-withheld"),
        ([OTHER], {"keep": "nearest_centroid", "memory_limit": 9}, "remove the memory limit"),
        ([OTHER], {"policy": {"b": "min"}}, "there is no column b"),
        ([OTHER], {"voxel_size": (1.0, 0.0, 1.0)}, "above 0"),
        ([OTHER], {"voxel_size": (1e-9,) * 3}, "needs .* bits on .*: take a voxel size >="),
        ([OTHER], {"bounds": (0, 0, 0, 1, float("nan"), 1)}, "bounds must be .*got 0,0,0,1,nan,1"),
        ([], {}, "no file"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_a_file_is_written(tmp_path, tables, options, says):
    paths = [write(tmp_path / f"{i}.npz", table) for i, table in enumerate(tables)]
    with pytest.raises(WrongUseError, match=says):
        run(paths, tmp_path / "out.npz", **options)
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_no_input_is_replaced(tmp_path):
    source = write(tmp_path / "a.npz", las_table())
    before = source.read_bytes()
    (tmp_path / "b.npz").symlink_to(source)
    for target, trace in (("a.npz", None), ("b.npz", None), ("c.npz", "a.npz")):
        with pytest.raises(WrongUseError, match="would replace the file that it is made from"):
            run([source], tmp_path / target, trace and tmp_path / trace)
    with pytest.raises(WrongUseError, match="remove the memory limit"):
        run([source], tmp_path / "c.npz", tmp_path / "t.npz", memory_limit=10**6)
    assert source.read_bytes() == before and not (tmp_path / "c.npz").exists()


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [CloudFileError("cut short"), KeyboardInterrupt(), Stop()])
@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("who", ["reader", "consumer"])
def test_whoever_stops_no_thread_file_or_folder_is_left(tmp_path, error, after, who):
    source = write(tmp_path / "a.npz", las_table())
    job = FilterJob([source], FilterOptions(SIZE, chunk=40, memory_limit=2000 * WORK))
    left, chunks = [after], job.readers[0].chunks

    def count(_=None):
        left[0] -= 1
        if left[0] < 0:
            raise error

    def counted(*args, **kwargs):
        for table in chunks(*args, **kwargs):
            count()
            yield table

    if who == "reader":
        _ = job.box  # reads
        job.readers[0].chunks = counted
    before = set(threading.enumerate())
    with pytest.raises(type(error)) as caught:
        job.run(tmp_path / "b.npz", progress=count if who == "consumer" else lambda _: None)
    assert caught.value is error  # which holds the frames of the job
    assert set(threading.enumerate()) <= before
    assert list(tmp_path.iterdir()) == [source]
