# SPDX-License-Identifier: Apache-2.0
"""What the BEV rasters refuse, and in which words: op, argument, expected, got."""

import pytest
import torch
from bev_cases import RANGE, SIZE, cloud, ops, to

NAMES = ["bev_max_height", "bev_max_height_with_index", "bev_rasterize"]


def run(device, name, points=None, bounds=RANGE, size=SIZE, channels=("count",), **options):
    points = cloud(20) if points is None else points
    args = [list(channels)] if name == "bev_rasterize" else []
    options = {k: to(device, v) for k, v in options.items()}
    return getattr(ops, name)(points.to(device), list(bounds), list(size), *args, **options)


def refused(error, op, argument, got=""):
    return pytest.raises(error, match=rf"^{op}: {argument}\b.*, got {got}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(20,), (20, 2), (1, 20, 3)])
def test_points_are_rows_of_three_or_more(device, name, shape):
    got = "\\[" + ", ".join(map(str, shape)) + "\\]"
    with refused(ValueError, name, "points", got):
        run(device, name, torch.ones(shape))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_points_are_floating_point(device, name, dtype):
    with refused(TypeError, name, "points"):
        run(device, name, torch.ones(20, 4, dtype=dtype))


BAD_RANGES = [
    RANGE[:5],
    [*RANGE, 1.0],
    [],
    [8.0, -6.0, -2.0, -8.0, 6.0, 2.0],
    [0.0, 0.0, 0.0, 1.0, 1.0, 0.0],
    [0.0, 0.0, 0.0, 1.0, float("inf"), 1.0],
    [float("nan"), 0.0, 0.0, 1.0, 1.0, 1.0],
    [0.0, 0.0, 0.0, 1e39, 1.0, 1.0],  # infinite in float32
    [-3e38, 0.0, 0.0, 3e38, 1.0, 1.0],  # its extent is
    [0.0, 0.0, -3e38, 1.0, 1.0, 3e38],
    [1.0, 0.0, 0.0, 1.0 + 1e-12, 1.0, 1.0],  # equal in float32
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bounds", BAD_RANGES, ids=str)
def test_ranges_are_six_finite_increasing_numbers(device, name, bounds):
    with refused(ValueError, name, "point_cloud_range"):
        run(device, name, bounds=bounds)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [[], [4], [4, 4, 4], [0, 4], [4, -1], [4, 2**24 + 1]], ids=str)
def test_sizes_are_two_positive_numbers(device, name, size):
    with refused(ValueError, name, "size"):
        run(device, name, size=size)


@pytest.mark.parametrize("name", NAMES)
def test_cells_have_a_width(device, name):
    with pytest.raises(ValueError, match=rf"^{name}: (point_cloud_range|size)\b.*, got"):
        run(device, name, bounds=[0.0, 0.0, 0.0, 1e-45, 1.0, 1.0], size=[8, 8])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("orientation", ["", "Grid", "south"])
def test_unknown_orientations(device, name, orientation):
    with refused(ValueError, name, "orientation", f".?{orientation}"):
        run(device, name, orientation=orientation)


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.bool])
def test_other_output_types(device, name, dtype):
    with refused(TypeError, name, "out_dtype"):
        run(device, name, out_dtype=dtype)


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("lowest_code", [-1, 255, 1000])
def test_lowest_code_is_below_255(device, name, lowest_code):
    with refused(ValueError, name, "lowest_code", str(lowest_code)):
        run(device, name, lowest_code=lowest_code, out_dtype=torch.uint8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("argument", ["batch_offsets", "num_valid"])
def test_offsets_and_counts_are_integers(device, name, argument):
    for dtype in (torch.float32, torch.int16, torch.bool):
        with refused(TypeError, name, argument):
            run(device, name, **{argument: torch.ones(1, dtype=dtype)})


@pytest.mark.parametrize("name", NAMES)
def test_offsets_are_a_vector_of_one_or_more(device, name):
    for shape in ((), (0,), (2, 1)):
        with refused(ValueError, name, "batch_offsets", r"\["):
            run(device, name, batch_offsets=torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("name", NAMES)
def test_num_valid_has_one_element_per_sample(device, name):
    with refused(ValueError, name, "num_valid"):
        run(device, name, num_valid=torch.zeros(2, dtype=torch.int64))
    with refused(ValueError, name, "num_valid"):
        offsets = torch.tensor([0, 5, 10])
        run(device, name, num_valid=torch.tensor(5), batch_offsets=offsets)


BAD_CHANNELS = [
    "", "height", "Height_max", "slices", "occupancy", "slices:", "slices:0", "slices:-1",
    "slices:x", "slices:1.5", "count:2", "height_max:1", "slices:3:4", " count",
]  # fmt: skip


@pytest.mark.parametrize("channel", BAD_CHANNELS, ids=repr)
def test_unknown_channels(device, channel):
    with refused(ValueError, "bev_rasterize", "channels", f".?{channel}"):
        run(device, "bev_rasterize", channels=["count", channel])


@pytest.mark.parametrize(
    "channels",
    [[], ["slices:257"], ["slices:256", "count"], ["slices:99999999999"], [f"slices:{10**30}"]],
    ids=str,
)
def test_one_to_256_planes(device, channels):
    with refused(ValueError, "bev_rasterize", "channels"):
        run(device, "bev_rasterize", channels=channels)


@pytest.mark.parametrize("channel", ["intensity_top", "intensity_mean", "intensity_max"])
def test_intensities_need_a_column_or_features(device, channel):
    with refused(ValueError, "bev_rasterize", "points", r"\[20, 3\]"):
        run(device, "bev_rasterize", cloud(20)[:, :3], channels=[channel])


def test_features_are_one_number_per_point(device):
    for shape in ((19,), (20, 2), (1, 20), (20, 1, 1), ()):
        with refused(ValueError, "bev_rasterize", "features", r"\["):
            run(device, "bev_rasterize", features=torch.ones(shape))
    with refused(TypeError, "bev_rasterize", "features"):
        run(device, "bev_rasterize", features=torch.ones(20, dtype=torch.int32))


@pytest.mark.parametrize("base", [-1, 0, 1, 513])
def test_density_base_is_2_to_512(device, base):
    with refused(ValueError, "bev_rasterize", "density_base", str(base)):
        run(device, "bev_rasterize", density_base=base)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_all_tensors_share_one_device(name):
    for argument in ("batch_offsets", "num_valid"):
        with refused(RuntimeError, name, argument, "cpu"):
            value = torch.zeros(1, dtype=torch.int64)
            args = [["count"]] if name == "bev_rasterize" else []
            getattr(ops, name)(cloud(20).cuda(), RANGE, SIZE, *args, **{argument: value})
