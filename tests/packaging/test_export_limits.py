# SPDX-License-Identifier: Apache-2.0
"""Faults of torch that docs/export.md names: a strict xfail tells when one is mended."""

import pytest
import torch

import torchvox  # noqa: F401

BOX = [0.0, -16.0, -3.0, 32.0, 16.0, 3.0]


class HalfVoxels(torch.nn.Module):
    """cast: the way around it."""

    def __init__(self, cast: bool = False) -> None:
        super().__init__()
        self.cast = cast

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        how = {} if self.cast else {"out_dtype": torch.float16}
        features, _, _, _, _ = torch.ops.torchvox.voxelize(
            points, [1.0, 1.0, 6.0], BOX, 4, 100, reduce="mean", **how
        )
        return features.to(torch.float16)


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.mark.slow
@pytest.mark.parametrize("cast", [False, True])
@torch.inference_mode()
def test_half_output_ahead_of_time(cast, tmp_path, request):
    if not cast and TORCH == (2, 11):
        why = "pytorch#169157: a dtype argument is misread"
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    points = torch.rand(500, 4, generator=torch.Generator().manual_seed(0)) * 20
    package = str(tmp_path / "model.pt2")
    exported = torch.export.export(HalfVoxels(cast), (points,))
    torch._inductor.aoti_compile_and_package(exported, package_path=package)
    features = torch._inductor.aoti_load_package(package)(points)
    assert torch.equal(features, HalfVoxels()(points))
