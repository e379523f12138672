# SPDX-License-Identifier: Apache-2.0
"""Strides, autocast, threads and repeated runs of the BEV rasters."""

import pytest
import torch
from bev_cases import (
    CHANNELS,
    RANGE,
    SIZE,
    assert_all_as_reference,
    assert_as_reference,
    call,
    ops,
    polluted,
    scan,
)
from helpers import assert_same_bits

import torchvox


def everything(points, **options):
    return [
        *ops.bev_max_height_with_index(points, RANGE, SIZE, **options),
        *ops.bev_rasterize(points, RANGE, SIZE, CHANNELS, **options),
    ]


def assert_same(actual, expected):
    for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(a, e, f"output {k}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_strides_do_not_matter(device, dtype):
    points = polluted().to(dtype).to(device)
    expected = everything(points)
    wide = torch.cat([torch.full_like(points, 9.0), points], 1)
    storage = torch.cat([points.new_zeros(1), points.flatten()])
    views = {
        "columns of wider rows": wide[:, 4:],
        "every other row": torch.stack([points, points + 1], 1).flatten(0, 1)[::2],
        "columns apart": points.t().contiguous().t(),
        "unaligned storage": storage[1:].view(-1, 4),
    }
    for name, view in views.items():
        assert torch.equal(view.nan_to_num(7), points.nan_to_num(7)), name
        assert_same(everything(view), expected)


def test_expanded_points(device):
    row = torch.tensor([[0.5, 0.5, 0.5, 0.25]], device=device)
    assert_same(everything(row.expand(100, 4)), everything(row.repeat(100, 1)))


def test_strided_features_and_offsets(device):
    points = polluted(900).to(device)
    features = torch.randn(900, 2, device=device)
    offsets = torch.tensor([[0, 9], [300, 9], [900, 9]], device=device)
    call_options = [
        {"features": features[:, 1], "batch_offsets": offsets[:, 0]},
        {"features": features[:, 1].clone(), "batch_offsets": offsets[:, 0].clone()},
    ]
    a, b = (ops.bev_rasterize(points, RANGE, SIZE, CHANNELS, **o) for o in call_options)
    assert_same(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_nothing(device, dtype):
    points = polluted().to(device)
    expected = everything(points)
    with torch.autocast(torch.device(device).type, dtype=dtype):
        actual = everything(points)
    assert_same(actual, expected)


def test_inputs_stay_as_they_were_and_outputs_are_fresh(device):
    points = polluted().nan_to_num().to(device)
    before = points.clone()
    first, second = everything(points), everything(points)
    assert torch.equal(points, before)
    pointers = [o.data_ptr() for o in (*first, *second)]
    assert len(set(pointers)) == len(pointers)


def test_every_run_gives_the_same_bits(device):
    points = polluted(20_000).to(device)
    first = everything(points)
    for _ in range(5 if str(device) == "cpu" else 100):
        assert_same(everything(points), first)


def test_the_result_does_not_depend_on_the_number_of_threads():
    points = polluted(50_000)
    threads = torch.get_num_threads()
    try:
        results = []
        for t in (1, 2, 8):
            torch.set_num_threads(t)
            results.append(everything(points))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert_same(result, results[0])


def test_deterministic_mode_gives_the_same_bits_without_warning(device, recwarn):
    points = polluted().to(device)
    expected = everything(points)
    torch.use_deterministic_algorithms(True)
    try:
        actual = everything(points)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(actual, expected)
    assert not [w for w in recwarn if "determin" in str(w.message)]


@pytest.mark.parametrize("name", ["hdl64", "kitti", "nuscenes"])
@pytest.mark.parametrize("orientation", ["grid", "image"])
def test_real_scans(device, name, orientation):
    points = scan(name)
    bounds = [-50.0, -50.0, -3.0, 50.0, 50.0, 2.0]
    _, _, counts = assert_all_as_reference(
        device, points, bounds, [512, 512], orientation=orientation
    )
    assert counts[0, 1:].sum() == len(points) and counts[0, 1] > 0.8 * len(points)


def test_codes_of_a_real_scan(device):
    points, bounds = scan(), [-50.0, -50.0, -3.0, 50.0, 50.0, 2.0]
    for dtype in (torch.uint8, torch.uint16):
        codes, _ = assert_as_reference(
            device, "bev_max_height", points, bounds, [1024, 1024], out_dtype=dtype
        )
        assert codes.int().max() > 200
    assert call(device, "bev_max_height", points, bounds, [1024, 1024])[0].max() < 2


@pytest.mark.parametrize("name", ["bev_max_height", "bev_max_height_with_index", "bev_rasterize"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_offsets": torch.tensor([0, 150, 400])},
        {"num_valid": torch.tensor([150])},
        {"orientation": "image"},
        {"fill": -7.0},
        {"out_dtype": torch.uint8, "lowest_code": 9},
        {"features": torch.linspace(0, 1, 400), "density_base": 8},
    ],
    ids=lambda options: "-".join(options) or "none",
)
def test_each_option_of_the_python_function_reaches_the_operator(name, options, device):
    schema = getattr(torch.ops.torchvox, name).default._schema
    known = {k: v for k, v in options.items() if k in {a.name for a in schema.arguments}}
    more = [["density", "intensity_top"]] if name == "bev_rasterize" else []
    known = {k: v.to(device) if torch.is_tensor(v) else v for k, v in known.items()}
    points = polluted(400).to(device)
    expected = getattr(torch.ops.torchvox, name)(points, RANGE, SIZE, *more, **known)
    assert_same_bits(getattr(torchvox, name)(points, RANGE, SIZE, *more, **known), expected)
