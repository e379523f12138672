# SPDX-License-Identifier: Apache-2.0
"""How the input lies in memory, how wide it is, and what the outputs share with it."""

import itertools

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import FLOAT_DTYPES, GRID, REDUCTIONS, check_op, check_voxelize, street_cloud


def row_strided(cloud):
    return cloud.repeat_interleave(3, dim=0)[::3]


def wide_rows(cloud):
    padding = torch.full((len(cloud), 5), 77.0, dtype=cloud.dtype, device=cloud.device)
    return torch.cat([cloud, padding], dim=1)[:, : cloud.shape[1]]


def column_major(cloud):
    return cloud.t().contiguous().t()


def strided_columns(cloud):
    return cloud.repeat_interleave(2, dim=1)[:, ::2]


def at_an_offset_of(elements):
    """Storage that starts this many elements later: 16-byte loads would be unaligned."""

    def place(cloud):
        storage = cloud.new_empty(cloud.numel() + elements)
        view = storage[elements:].view(cloud.shape)
        return view.copy_(cloud)

    return place


LAYOUTS = {
    "row strided": row_strided,
    "wide rows": wide_rows,
    "column major": column_major,
    "strided columns": strided_columns,
    "offset 1": at_an_offset_of(1),
    "offset 3": at_an_offset_of(3),
}


@pytest.mark.one_of("num_features", "reduce", "dtype")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("reduce", ["none", "mean"])
@pytest.mark.parametrize("num_features", [3, 4, 5])
def test_layouts_equal_contiguous(device, num_features, reduce, dtype, layout):
    cloud = street_cloud(400, num_features, seed=71, dtype=dtype)
    expected = check_voxelize(device, cloud, *GRID, 3, 150, reduce=reduce)
    arranged = layout(cloud.to(device))
    actual = torch.ops.torchvox.voxelize(arranged, *GRID, 3, 150, reduce=reduce)
    for a, e in zip(actual, expected, strict=True):
        assert_same_bits(a.cpu(), e)
        assert a.is_contiguous()


def test_expanded_rows_are_one_voxel(device):
    cloud = torch.tensor([[0.1, 0.2, 0.3, 4.0]], device=device).expand(500, 4)
    features, *_, counts = torch.ops.torchvox.voxelize(cloud, *GRID, -1, 2, reduce="sum")
    assert features[0, 3].item() == 2000.0
    assert counts[0].tolist() == [1, 1, 500, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_gradient_of_a_layout_equals_contiguous(device, layout):
    cloud = street_cloud(400, 5, seed=72).to(device)
    gradients = []
    for arranged in (cloud.clone(), layout(cloud).detach()):
        leaf = arranged.requires_grad_()
        torch.ops.torchvox.voxelize(leaf, *GRID, 3, 150, reduce="mean")[0].square().sum().backward()
        gradients.append(leaf.grad)
    assert_same_bits(gradients[1].cpu(), gradients[0].cpu())


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_scatter_layouts_equal_contiguous(device, reduce, layout):
    feats = torch.randn(300, 6, generator=torch.Generator().manual_seed(73))
    rows = torch.randint(-1, 40, (300,), generator=torch.Generator().manual_seed(74)).int()
    expected = check_op("voxel_scatter", device, feats, rows, 40, reduce)
    strided_rows = rows.repeat_interleave(2)[::2].to(device)
    actual = torch.ops.torchvox.voxel_scatter(layout(feats.to(device)), strided_rows, 40, reduce)
    for a, e in zip(actual, expected, strict=True):
        assert_same_bits(a.cpu(), e)


def test_strided_index_tensors(device):
    cloud = street_cloud(300, seed=75)
    offsets, valid = torch.tensor([0, 100, 180, 300]), torch.tensor([90, 0, 110])
    expected = check_voxelize(device, cloud, *GRID, 3, 60, batch_offsets=offsets, num_valid=valid)
    actual = torch.ops.torchvox.voxelize(
        cloud.to(device), *GRID, 3, 60,
        batch_offsets=offsets.repeat_interleave(2).to(device)[::2],
        num_valid=valid.repeat_interleave(3).to(device)[1::3],
    )  # fmt: skip
    for a, e in zip(actual, expected, strict=True):
        assert_same_bits(a.cpu(), e)


@pytest.mark.one_of("reduce", "dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("num_features", [*range(3, 17), 64])
def test_every_number_of_features(device, num_features, reduce, dtype):
    cloud = street_cloud(250, num_features, seed=num_features, dtype=dtype)
    check_voxelize(device, cloud, *GRID, 3, -1, reduce=reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_inputs_are_unchanged_and_outputs_are_fresh(device, reduce):
    tensors = {
        "points": street_cloud(300, seed=76).to(device),
        "batch_offsets": torch.tensor([0, 100, 290], device=device),
        "num_valid": torch.tensor([90, 190], device=device),
    }
    before = {k: v.clone() for k, v in tensors.items()}
    points = tensors["points"]
    index_arguments = {k: tensors[k] for k in ("batch_offsets", "num_valid")}
    outputs = torch.ops.torchvox.voxelize(points, *GRID, 3, 80, reduce=reduce, **index_arguments)
    outputs += torch.ops.torchvox.voxel_map(points, *GRID, 3, 80, **index_arguments)
    outputs += torch.ops.torchvox.voxel_csr(outputs[3], 160)
    scatter = "mean" if reduce == "none" else reduce
    outputs += torch.ops.torchvox.voxel_scatter(points, outputs[3], 160, scatter)[:1]
    for name, tensor in tensors.items():
        assert_same_bits(tensor.cpu(), before[name].cpu(), name)
    for a, b in itertools.combinations([*tensors.values(), *outputs], 2):
        assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def test_no_state_survives_a_call(device):
    small, large = street_cloud(100, seed=77), street_cloud(3000, seed=78)
    for cloud in (small, large, small, torch.empty(0, 4), small):
        check_voxelize(device, cloud, *GRID, 3, 400, reduce="mean")


def test_indices_rows_are_aligned_to_16_bytes(device):
    for n in (1, 3, 7, 100):
        indices = torch.ops.torchvox.voxelize(street_cloud(n).to(device), *GRID, 3, n)[1]
        assert indices.data_ptr() % 16 == 0
        assert indices.stride() == (4, 1)
