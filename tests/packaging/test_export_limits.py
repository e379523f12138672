# SPDX-License-Identifier: Apache-2.0
"""Faults of torch that docs/export.md names: a strict xfail tells when one is mended."""

import pytest
import torch

import torchvox  # noqa: F401

BOX = [0.0, -16.0, -3.0, 32.0, 16.0, 3.0]


class HalfVoxels(torch.nn.Module):
    def forward(self, points: torch.Tensor) -> torch.Tensor:
        features, _, _, _, _ = torch.ops.torchvox.voxelize(
            points, [1.0, 1.0, 6.0], BOX, 4, 100, reduce="mean", out_dtype=torch.float16
        )
        return features


class CastVoxels(torch.nn.Module):
    """The way around it."""

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        features, _, _, _, _ = torch.ops.torchvox.voxelize(
            points, [1.0, 1.0, 6.0], BOX, 4, 100, reduce="mean"
        )
        return features.to(torch.float16)


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            HalfVoxels,
            marks=pytest.mark.xfail(
                TORCH == (2, 11), reason="pytorch#169157: a dtype argument is misread", strict=True
            ),
        ),
        CastVoxels,
    ],
)
@torch.inference_mode()
def test_half_output_ahead_of_time(make, tmp_path):
    points = torch.rand(500, 4, generator=torch.Generator().manual_seed(0)) * 20
    package = str(tmp_path / "model.pt2")
    exported = torch.export.export(make(), (points,))
    torch._inductor.aoti_compile_and_package(exported, package_path=package)
    features = torch._inductor.aoti_load_package(package)(points)
    assert torch.equal(features, HalfVoxels()(points))
