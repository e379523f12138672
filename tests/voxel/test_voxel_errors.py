# SPDX-License-Identifier: Apache-2.0
"""Every refusal: its type, and a message that names op, argument, expected and got."""

import re

import pytest
import torch
from voxel_cases import GRID, run_op

from torchvox import reference

SIZE, RANGE = GRID
POINTS = torch.zeros(100, 4)
ROWS = torch.zeros(100, dtype=torch.int32)

GROUPING_ERRORS = {
    # name: (error, argument named in the message, changed arguments)
    "two columns": (ValueError, "points", {"points": torch.zeros(100, 2)}),
    "one dimension": (ValueError, "points", {"points": torch.zeros(100)}),
    "three dimensions": (ValueError, "points", {"points": torch.zeros(2, 100, 4)}),
    "int32 points": (TypeError, "points", {"points": torch.zeros(100, 4, dtype=torch.int32)}),
    "int64 points": (TypeError, "points", {"points": torch.zeros(100, 4, dtype=torch.int64)}),
    "uint8 points": (TypeError, "points", {"points": torch.zeros(100, 4, dtype=torch.uint8)}),
    "bool points": (TypeError, "points", {"points": torch.zeros(100, 4, dtype=torch.bool)}),
    "short size": (ValueError, "voxel_size", {"voxel_size": [0.2, 0.2]}),
    "long size": (ValueError, "voxel_size", {"voxel_size": [0.2] * 4}),
    "empty size": (ValueError, "voxel_size", {"voxel_size": []}),
    "zero size": (ValueError, "voxel_size", {"voxel_size": [0.2, 0.0, 0.2]}),
    "negative size": (ValueError, "voxel_size", {"voxel_size": [0.2, 0.2, -0.2]}),
    "nan size": (ValueError, "voxel_size", {"voxel_size": [float("nan"), 0.2, 0.2]}),
    "inf size": (ValueError, "voxel_size", {"voxel_size": [float("inf"), 0.2, 0.2]}),
    "size that is 0 in float32": (ValueError, "voxel_size", {"voxel_size": [1e-50, 1.0, 1.0]}),
    "short range": (ValueError, "point_cloud_range", {"point_cloud_range": RANGE[:5]}),
    "long range": (ValueError, "point_cloud_range", {"point_cloud_range": [*RANGE, 1.0]}),
    "reversed range": (ValueError, None, {"point_cloud_range": RANGE[3:] + RANGE[:3]}),
    "empty range": (ValueError, None, {"point_cloud_range": RANGE[:3] + RANGE[:3]}),
    "less than half a cell": (ValueError, None, {"voxel_size": [16.5, 0.2, 0.2]}),
    "nan range": (ValueError, None, {"point_cloud_range": [float("nan"), *RANGE[1:]]}),
    "inf range": (ValueError, None, {"point_cloud_range": [*RANGE[:5], float("inf")]}),
    "axis above 2^24": (ValueError, None, {"voxel_size": [4e-7, 1.0, 1.0]}),
    "max_points": (ValueError, "max_points", {"max_points": -2}),
    "max_voxels": (ValueError, "max_voxels", {"max_voxels": -2}),
    "order": (ValueError, "order", {"order": "yxz"}),
    "bounds": (ValueError, "bounds", {"bounds": "closed"}),
    "float offsets": (TypeError, "batch_offsets", {"batch_offsets": torch.zeros(2)}),
    "int16 offsets": (TypeError, "batch_offsets", {"batch_offsets": torch.zeros(2).short()}),
    "2-d offsets": (ValueError, "batch_offsets", {"batch_offsets": torch.zeros(1, 2).int()}),
    "0-d offsets": (ValueError, "batch_offsets", {"batch_offsets": torch.tensor(0)}),
    "empty offsets": (ValueError, "batch_offsets", {"batch_offsets": torch.zeros(0).int()}),
    "float num_valid": (TypeError, "num_valid", {"num_valid": torch.zeros(1)}),
    "long num_valid": (ValueError, "num_valid", {"num_valid": torch.zeros(2).int()}),
    "empty num_valid": (ValueError, "num_valid", {"num_valid": torch.zeros(0).int()}),
    "2-d num_valid": (ValueError, "num_valid", {"num_valid": torch.zeros(1, 1).int()}),
    "short num_valid": (
        ValueError,
        "num_valid",
        {"batch_offsets": torch.tensor([0, 50, 100]), "num_valid": torch.zeros(1).int()},
    ),
    "0-d num_valid of two samples": (
        ValueError,
        "num_valid",
        {"batch_offsets": torch.tensor([0, 50, 100]), "num_valid": torch.tensor(3)},
    ),
    "keys past int64": (
        ValueError,
        None,
        {"voxel_size": [1.0] * 3, "point_cloud_range": [0.0] * 3 + [2.0**24] * 3},
    ),
    "keys of a batch past int64": (
        ValueError,
        None,
        {
            "voxel_size": [1.0] * 3,
            "point_cloud_range": [0.0] * 3 + [2.0**24, 2.0**24, 2.0**14],
            "batch_offsets": torch.tensor([0, 10, 20, 100]),
        },
    ),
}

FEATURE_ERRORS = {
    "reduce": (ValueError, "reduce", {"reduce": "average"}),
    "none without a cap": (ValueError, "max_points", {"max_points": -1}),
    "int32 output": (TypeError, "out_dtype", {"out_dtype": torch.int32}),
    "uint8 output": (TypeError, "out_dtype", {"out_dtype": torch.uint8}),
    "bool output": (TypeError, "out_dtype", {"out_dtype": torch.bool}),
}


def cases(errors):
    return pytest.mark.parametrize(
        ("error", "argument", "changed"), errors.values(), ids=errors.keys()
    )


def expect(error, op, argument, call):
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value).splitlines()[0]
    assert re.match(rf"{op}: .+, got .+", message), message
    if argument is not None:
        assert re.search(rf"\b{argument}\b", message), message


def expect_from_op_and_reference(device, error, argument, op, *args, **kwargs):
    expect(error, op, argument, lambda: getattr(reference, op)(*args, **kwargs))
    expect(error, op, argument, lambda: run_op(op, device, *args, **kwargs))


def grouping_call(changed):
    arguments = {
        "points": POINTS,
        "voxel_size": SIZE,
        "point_cloud_range": RANGE,
        "max_points": 3,
        "max_voxels": 10,
        **changed,
    }
    positional = ("points", "voxel_size", "point_cloud_range", "max_points", "max_voxels")
    return [arguments.pop(name) for name in positional], arguments


@cases(GROUPING_ERRORS)
@pytest.mark.parametrize("op", ["voxelize", "voxel_map"])
def test_grouping_refuses(device, op, error, argument, changed):
    args, kwargs = grouping_call(changed)
    expect_from_op_and_reference(device, error, argument, op, *args, **kwargs)


@cases(FEATURE_ERRORS)
def test_voxelize_refuses(device, error, argument, changed):
    args, kwargs = grouping_call(changed)
    expect_from_op_and_reference(device, error, argument, "voxelize", *args, **kwargs)


def test_the_form_of_the_message(device):
    message = re.escape("voxelize: points must be [N, C] with C >= 3, got [100, 2]")
    for call in (reference.voxelize, torch.ops.torchvox.voxelize):
        with pytest.raises(ValueError, match=f"^{message}"):
            call(torch.zeros(100, 2), *GRID, 3, 10)


def test_key_overflow_names_the_numbers(device):
    args, kwargs = grouping_call(GROUPING_ERRORS["keys of a batch past int64"][2])
    with pytest.raises(ValueError) as raised:
        run_op("voxelize", device, *args, **kwargs)
    for number in ("3", "16777216", "16384"):
        assert number in str(raised.value)


SCATTER_ERRORS = {
    "integer feats": (TypeError, "feats", {"feats": ROWS[:, None]}),
    "1-d feats": (ValueError, "feats", {"feats": POINTS[:, 0]}),
    "3-d feats": (ValueError, "feats", {"feats": POINTS[:, None]}),
    "float rows": (TypeError, "point_voxel", {"point_voxel": POINTS[:, 0]}),
    "2-d rows": (ValueError, "point_voxel", {"point_voxel": ROWS[:, None]}),
    "fewer rows than feats": (ValueError, "point_voxel", {"point_voxel": ROWS[:99]}),
    "negative num_rows": (ValueError, "num_rows", {"num_rows": -1}),
    "no reduction": (ValueError, "reduce", {"reduce": "none"}),
    "unknown reduction": (ValueError, "reduce", {"reduce": "amax"}),
    "offsets alone": (ValueError, None, {"offsets": torch.zeros(6).int()}),
    "perm alone": (ValueError, None, {"perm": ROWS}),
    "short offsets": (ValueError, "offsets", {"offsets": ROWS[:5], "perm": ROWS}),
    "short perm": (ValueError, "perm", {"offsets": ROWS[:6], "perm": ROWS[:99]}),
    "float offsets": (TypeError, "offsets", {"offsets": torch.zeros(6), "perm": ROWS}),
    "float perm": (TypeError, "perm", {"offsets": ROWS[:6], "perm": POINTS[:, 0]}),
}


@cases(SCATTER_ERRORS)
def test_scatter_refuses(device, error, argument, changed):
    arguments = {"feats": POINTS, "point_voxel": ROWS, "num_rows": 5, "reduce": "sum", **changed}
    args = [arguments.pop(name) for name in ("feats", "point_voxel", "num_rows", "reduce")]
    expect_from_op_and_reference(device, error, argument, "voxel_scatter", *args, **arguments)


@cases(
    {
        k: v
        for k, v in SCATTER_ERRORS.items()
        if k in ("float rows", "2-d rows", "negative num_rows")
    }
)
def test_csr_refuses(device, error, argument, changed):
    arguments = {"point_voxel": ROWS, "num_rows": 5, **changed}
    expect_from_op_and_reference(device, error, argument, "voxel_csr", *arguments.values())


@pytest.mark.parametrize(
    "changed",
    [
        {"voxel_size": [0.2] * 2},
        {"voxel_size": [0.2, 0.2, 0.0]},
        {"point_cloud_range": RANGE[:4]},
        {"point_cloud_range": RANGE[3:] + RANGE[:3]},
        {"voxel_size": [4e-7, 1.0, 1.0]},
    ],
)
def test_grid_size_refuses(changed):
    import torchvox

    arguments = {"voxel_size": SIZE, "point_cloud_range": RANGE, **changed}
    for grid_size in (reference.grid_size, torchvox.grid_size):
        expect(ValueError, "grid_size", None, lambda f=grid_size: f(*arguments.values()))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["batch_offsets", "num_valid"])
def test_tensors_of_two_devices_are_refused(name):
    for points, other in ((POINTS.cuda(), torch.tensor([0])), (POINTS, torch.tensor([0]).cuda())):
        with pytest.raises(RuntimeError, match=name):
            torch.ops.torchvox.voxelize(points, *GRID, 3, 10, **{name: other})


def test_a_refused_call_leaves_the_op_usable(device):
    with pytest.raises(ValueError):
        run_op("voxelize", device, torch.zeros(5, 2), *GRID, 3, 10)
    assert run_op("voxelize", device, torch.zeros(5, 3), *GRID, 3, 10)[4][0, 0] == 1
