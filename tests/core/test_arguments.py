# SPDX-License-Identifier: Apache-2.0
"""What people pass by mistake: a sentence at run time, an error of the type checker before.

What the ops themselves refuse is in test_errors.py.
"""

import inspect
import os
import pickle
import re
import subprocess
import sys
import typing
from typing import List, Optional, Union

import numpy as np
import pytest
import torch
from helpers import ROOT
from samples import OPS
from torch import Tensor

import torchvox
from torchvox.data import generate_shapes
from torchvox.ops.mistakes import naming_mistakes

POINTS = torch.rand(50, 4) * 4
BOX = [0.0, 0.0, 0.0, 4.0, 4.0, 4.0]
VOXELS = dict(voxel_size=[0.5] * 3, point_cloud_range=BOX, max_points=5, max_voxels=20)
FUNCTIONS = [name for name in torchvox.ops.__all__ if inspect.isfunction(getattr(torchvox, name))]


def wrong(kind):
    """Values that no argument of this type takes, each with what is said of it."""
    if typing.get_origin(kind) is Union:
        return [(v, s) for v, s in wrong(typing.get_args(kind)[0]) if v is not None]
    if kind is Tensor:
        array = np.ones((4, 3), np.float32)
        return [(array, "a numpy.ndarray of float32"), ([1.0], "a list"), (None, "None")]
    if kind is int:
        return [(2.5, "2.5"), (2j, "a complex"), (None, "None")]
    if kind in (float, bool):
        return [("half", "'half'"), ([0.5], "[0.5]")]
    if kind is str:
        return [(3, "3"), (None, "None")]
    if kind is torch.dtype:
        return [("half", "'half'")]
    if typing.get_origin(kind) is list:
        return [(0.25, "0.25"), (POINTS, "a torch.Tensor of shape [50, 4]"), ([None], "[None]")]
    return [(3, "3")] if hasattr(kind, "_fields") else []


def good_calls():
    """Arguments of each public function."""
    calls = {op.name: op.call(40, 0) for op in reversed(OPS)}
    calls["bev_affine"] = dict(point_cloud_range=BOX, size=[4, 4])
    calls["chamfer_distance"] = dict(x=POINTS[None], y=POINTS[None])
    calls["grid_cells"] = calls["grid_sample"] = dict(points=POINTS, grid_size=0.5)
    calls["grid_size"] = dict(voxel_size=[0.5] * 3, point_cloud_range=BOX)
    calls["occupancy_state"] = calls["occupancy_layout"] = dict(capacity=4)
    calls["serialize"] = dict(cells=torch.ones(4, 3, dtype=torch.int32), order=["z"])
    calls["trim_voxels"] = dict(voxels=torchvox.voxelize(POINTS, **VOXELS))
    return calls


def wrong_words(function, call, argument, value, said):
    """What the function says of a wrong value, unless it says it well."""
    try:
        function(**{**call, argument: value})
        return f"{argument}={said} is taken"
    except Exception as error:
        sentence, start = str(error), f"{function.__name__}: {argument} must be "
        good = isinstance(error, TypeError) and sentence.startswith(start)
        if good and f", got {said}" in sentence and "\n" not in sentence and len(sentence) < 250:
            return None
        return f"{argument}={said}: {type(error).__name__}: {sentence}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_type_is_told_by_op_argument_and_value(name):
    function = getattr(torchvox, name)
    known = inspect.signature(function).parameters
    call = {k: v for k, v in good_calls().get(name, {}).items() if k in known}
    found = [
        wrong_words(function, call, argument, value, said)
        for argument, kind in typing.get_type_hints(function).items()
        if argument in known and argument != "trim"  # anything is true or false
        for value, said in wrong(kind)
    ]
    assert found and not any(found), "\n".join(filter(None, found))


def test_nothing_is_said_of_arguments_that_torch_takes_or_of_other_failures():
    """A call that fails for another reason fails as it did."""

    def fails(
        points: Tensor,
        size: List[float],
        count: int = 3,
        words: Optional[List[str]] = None,
        device: Optional[torch.device] = None,
    ):
        raise MemoryError("no memory")

    call = naming_mistakes(fails)
    taken = (np.ones(3), range(3), (1, np.float32(2)), [torch.tensor(0.5)])
    for size in taken:
        with pytest.raises(MemoryError, match=r"^no memory$"):
            call(POINTS, size, np.int64(3), ("a",), device="cpu")
    with pytest.raises(TypeError, match=r"fails\(\) missing 1 required positional argument"):
        call(POINTS)
    with pytest.raises(TypeError, match=r"fails\(\) got an unexpected keyword argument 'depth'"):
        call(POINTS, [1.0], depth=3)


ARRAY = r"torch.Tensor.*, got a numpy.ndarray of float64 \(torch.from_numpy makes it one\)"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.integrate(np.eye(3), torch.eye(3)), f"points must be a {ARRAY}"),
        (lambda m: m.integrate(torch.eye(3), np.eye(3)), f"origins must be a {ARRAY}"),
        (lambda m: m.integrate(torch.eye(3), pose=np.eye(4)), f"integrate: pose must be a {ARRAY}"),
        (lambda m: m.integrate(torch.eye(3), pose=torch.eye(2)), r"pose must be .* got \[2, 2\]"),
        (lambda m: m.raycast(torch.eye(3), [0.0] * 3), "raycast: origins must be .* got a list"),
        (lambda m: m.query(np.eye(3)), f"OccupancyMap.query: points must be a {ARRAY}"),
        (lambda _: generate_shapes(60), "generate_shapes: samples must be a list of ints.*got 60"),
        (lambda _: torchvox.nn.SharedMLP(3, [4])(torch.eye(3).double()), "must be torch.float32 "),
    ],
)
def test_what_stands_on_the_ops_names_a_mistake_as_they_do(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(torchvox.OccupancyMap(0.5, 8))


def test_a_function_with_words_for_mistakes_is_still_that_function():
    function = torchvox.voxelize
    assert pickle.loads(pickle.dumps(function)) is function is torchvox.ops.voxel.voxelize
    assert list(inspect.signature(function).parameters)[:2] == ["points", "voxel_size"]
    assert function.__doc__ and function.__name__ == "voxelize"


def test_compiled_calls_keep_the_words_of_the_function():
    """A tracer goes through the wrapper, but not through its search for a mistake."""

    def sampled(points):
        return torchvox.furthest_point_sample(points, 4, convention="nope").idx

    with pytest.raises(Exception, match="convention must be one of"):
        torch.compile(sampled, backend="eager", fullgraph=True)(POINTS[None])


SCRIPTED = (  # functions without options by keyword, which TorchScript cannot compile
    *("grid_cells", "grid_sample", "grid_size", "occupancy_remove_", "pillar_norm"),
    *("pillar_scatter", "trim_voxels", "unique_cells", "visibility_channels", "voxel_csr"),
    *("voxel_mean", "voxel_mean_of_sums", "voxel_sum"),
)


def test_functions_script_and_are_called_from_scripts():
    for name in SCRIPTED:
        assert torch.jit.script(getattr(torchvox, name)).schema
    calls = torch.jit.script(calls_a_function)
    cells = torch.tensor([[3, 1], [0, 2], [3, 1]])
    assert torch.equal(calls(cells), torchvox.unique_cells(cells, -1, "sorted").indices)


def calls_a_function(cells: Tensor) -> Tensor:
    return torchvox.unique_cells(cells, -1, "sorted").indices


# As people write it: tuples, lists of ints, a grid's own fields, one size of samples and several.
PROGRAM = """
import torch
import torchvox
from torchvox.io.grids import load_grid
points, grid = torch.rand(100, 4), load_grid("kitti_pillars")
sizes = [1, 1, 1]
a = torchvox.voxelize(points, (0.2, 0.2, 4), grid.point_cloud_range, 10, 100, reduce="mean")
b = torchvox.voxelize(points, grid.voxel_size, grid.point_cloud_range, 10, 100)
c = torchvox.voxel_keys(points, sizes, origin=(0, 0, 0), lower=(0, 0, 0))
d = torchvox.bev_max_height(points, grid.point_cloud_range, (10, 10), orientation="image")
idx = torchvox.furthest_point_sample(points[None], 16, start="random").idx
last = torchvox.furthest_point_sample(points[None], (16, 8))[1].idx
kept = torchvox.rotated_nms(points, points[:, 0], 0.5, mode="circle").index
net = torchvox.nn.Voxelize(grid.voxel_size, grid.point_cloud_range, reduce="mean")
"""
WRONG_PROGRAM = """
torchvox.voxelize(points, sizes, sizes, 10, 100, reduce="avg")
torchvox.furthest_point_sample(points[None], "16")
torchvox.rotated_iou(points, points, mode="3D")
torchvox.voxelize(points, 0.2, sizes, 10, 100)
"""


def test_a_type_checker_takes_calls_as_people_write_them(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM + WRONG_PROGRAM)
    options = ["--no-error-summary", "--follow-imports=silent", "--cache-dir", ROOT / "build/mypy"]
    options += ["--config-file", ROOT / "pyproject.toml"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    first = len(PROGRAM.splitlines()) + 2
    found = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert found == [first, first + 1, first + 2, first + 3], done.stdout + done.stderr


def test_dtypes_are_said_as_users_write_them():
    with pytest.raises(TypeError, match=r"^voxelize: points must be float16, .*, got int32$"):
        torchvox.voxelize(POINTS.int(), **VOXELS)
    rule = r"^knn: query must have the dtype of points, float32, got float64$"
    with pytest.raises(TypeError, match=rule):
        torchvox.knn(POINTS[None], POINTS[None].double(), 2)


def test_every_result_says_what_its_fields_hold():
    results = [getattr(torchvox, n) for n in torchvox.ops.__all__ if n not in FUNCTIONS]
    assert len(results) > 25
    for result in results:
        lines = re.findall(r"^ *(\w+): .*", inspect.getdoc(result), re.MULTILINE)
        assert result is torchvox.StateTensor or lines == list(result._fields), result


def test_the_package_shows_its_own_names():
    shown = [name for name in dir(torchvox) if not name.startswith("_")]
    assert not {"Path", "importlib", "Any", "TYPE_CHECKING"} & set(shown)
    assert {"voxelize", "models", "io", "nn", "OccupancyMap", "cmake_prefix_path"} <= set(shown)
    for package in (torchvox.ops, torchvox.io):
        assert dir(package) == sorted(package.__all__)
