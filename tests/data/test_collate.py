# SPDX-License-Identifier: Apache-2.0
"""Packing clouds into a batch."""

import pytest
import torch

from torchvox.data.collate import collate_points
from torchvox.io import read_cloud


def clouds(*sizes):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(size, 4, generator=generator) for size in sizes]


def test_each_cloud_lies_between_its_offsets():
    batch = clouds(3, 0, 5)
    points, offsets = collate_points(batch)
    assert offsets.dtype == torch.int64
    assert offsets.tolist() == [0, 3, 3, 8]
    for b, cloud in enumerate(batch):
        assert torch.equal(points[offsets[b] : offsets[b + 1]], cloud)


def test_arrays_and_clouds_of_files_are_taken_as_they_come(tmp_path):
    batch = clouds(3, 0, 5)
    batch[2].numpy().tofile(tmp_path / "a.bin")
    packed = collate_points([batch[0], batch[1].numpy(), read_cloud(tmp_path / "a.bin", "kitti")])
    assert all(map(torch.equal, packed, collate_points(batch)))


def test_it_copies_and_gradients_flow_to_the_clouds():
    batch = [cloud.requires_grad_() for cloud in clouds(2, 3)]
    points, _ = collate_points(batch)
    points.sum().backward()
    points.data.zero_()
    assert all(cloud.detach().any() and (cloud.grad == 1).all() for cloud in batch)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([], ValueError, "at least one"),
        ([torch.zeros(3, 4), torch.zeros(3, 5)], ValueError, r"clouds\[1\] must be \[N, 4\]"),
        ([torch.zeros(3)], ValueError, r"clouds\[0\]"),
        ([torch.tensor(1.0)], ValueError, r"clouds\[0\]"),
        ([torch.zeros(3, 4), torch.zeros(3, 4).double()], TypeError, "float32"),
        ([[1, 2, 3]], TypeError, "got list"),
    ],
)
def test_clouds_that_do_not_fit_together_are_refused(batch, error, message):
    with pytest.raises(error, match=message):
        collate_points(batch)
