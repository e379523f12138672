# SPDX-License-Identifier: Apache-2.0
"""spconv's voxel generators, of both versions, against loops."""

import numpy as np
import pytest
import torch

from tests.compat import loops
from tests.helpers import cube
from torchvox.compat import spconv_utils
from torchvox.compat._errors import NotCoveredError

SIZE, BOUNDS, P, V = [0.25, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], 3, 6


@pytest.fixture
def points():
    return cube(60, 4, scale=1.2)[0] - 0.1


def expected(points, mean):
    """Voxels [M, P, 4], z y x, points of each, the voxel of each point."""
    rows, cells, of_point, _ = loops.voxels(points.numpy(), SIZE, BOUNDS, P, V)
    voxels = np.zeros((len(rows), P, 4), dtype=np.float32)
    for voxel, row in zip(voxels, rows, strict=True):
        voxel[: len(row)] = points[row]
        voxel[len(row) :] = points[row].numpy().mean(0) if mean else 0
    return voxels, np.array(cells), np.array([len(row) for row in rows]), np.array(of_point)


@pytest.mark.parametrize("mean", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_point_to_voxel(device, points, mean, dtype):
    generator = spconv_utils.PointToVoxel(SIZE, BOUNDS, 4, V, P, torch.device(device))
    assert generator.grid_size == [1, 2, 4]
    found = generator.generate_voxel_with_id(points.to(device, dtype), empty_mean=mean)
    assert [one.dtype for one in found] == [torch.float32, torch.int32, torch.int32, torch.int64]
    for ours, wanted in zip(found, expected(points, mean), strict=True):
        assert np.allclose(ours.cpu().numpy(), wanted, rtol=1e-6)
    assert len(generator(points.to(device), True, mean)) == 3
    features = cube(len(found[0]), 2, seed=5)[0].to(device)
    back = spconv_utils.gather_features_by_pc_voxel_id(features, found[3], -7)
    inside = found[3] >= 0
    assert torch.equal(back[inside], features[found[3][inside]])
    assert bool((back[~inside] == -7).all()) and bool((~inside).any())


@pytest.mark.parametrize("mean", (False, True))
def test_arrays(device, points, mean):
    kinds = {"cpu": spconv_utils.Point2VoxelCPU3d, "cuda": spconv_utils.Point2VoxelGPU3d}
    generator = kinds[device](SIZE, BOUNDS, 4, V, P)
    call = generator.point_to_voxel_empty_mean if mean else generator.point_to_voxel
    for given in (points.numpy(), points):  # a tensor of cumm has cpu() and numpy() too
        for ours, wanted in zip(call(given), expected(points, mean)[:3], strict=True):
            assert np.allclose(ours.numpy(), wanted, rtol=1e-6)
            assert np.allclose(ours.cpu().numpy_view(), wanted, rtol=1e-6)


def test_version_1(points):
    array, wanted = points.numpy(), expected(points, True)
    generator = spconv_utils.VoxelGenerator(SIZE, BOUNDS, P, V)
    for ours, theirs in zip(
        generator.generate(np.flip(np.flip(array).copy())), wanted[:3], strict=True
    ):
        assert isinstance(ours, np.ndarray) and np.allclose(ours, theirs, rtol=1e-6)
    assert len(generator.generate(array, 2)[0]) == 2 and generator.grid_size.tolist() == [4, 2, 1]
    found = spconv_utils.VoxelGeneratorV2(SIZE, BOUNDS, P, V).generate(array)
    voxels, cells, counts, _ = expected(points, False)
    assert np.array_equal(found["voxels"], voxels) and found["voxel_num"] == len(voxels)
    assert np.array_equal(found["coordinates"], cells)
    assert np.array_equal(found["num_points_per_voxel"], counts)
    assert np.array_equal(found["voxel_point_mask"].sum((1, 2)), counts)


def test_empty_and_refused():
    generator = spconv_utils.PointToVoxel(SIZE, BOUNDS, 4, V, P)
    assert [len(one) for one in generator.generate_voxel_with_id(torch.zeros(0, 4))] == [0] * 4
    with pytest.raises(NotCoveredError, match="PointToVoxel: vsize_xyz of 2 axes is not covered"):
        spconv_utils.PointToVoxel([1.0, 1.0], [0.0, 0.0, 1.0, 1.0], 4, V, P)
    with pytest.raises(NotCoveredError, match="block_filtering=True"):
        spconv_utils.VoxelGeneratorV2(SIZE, BOUNDS, P, block_filtering=True)
