# SPDX-License-Identifier: Apache-2.0
"""One module in every format in which torch runs models.

`PillarFeatures` calls registered torchvox ops in its forward: it groups points into pillars,
encodes them with a small PointNet, scatters them to a bird's-eye-view canvas, and picks keypoints
by furthest point sampling. The same instance runs eagerly, under torch.compile, exported and
loaded again, packaged by AOTInductor, and scripted:

    python examples/pillar_features.py                  # every format, compared with eager
    python examples/pillar_features.py --save folder    # model.pt2, model_aoti.pt2, model.pt
    python examples/pillar_features.py --formats eager export
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import List, Tuple

import torch
from torch import Tensor, nn

import torchvox

FORMATS = ["eager", "compile", "export", "aoti", "torchscript"]


class PillarFeatures(nn.Module):
    """points [N, 4] and batch_offsets [B + 1] -> (map [B, channels, ny, nx], keypoints
    [B, keypoints, 4], keypoint_features [B, keypoints, width], counts [B + 1, 8])."""

    def __init__(
        self, point_cloud_range: List[float], pillar_size: float, width: int = 16, channels: int = 8
    ) -> None:
        super().__init__()
        height = point_cloud_range[5] - point_cloud_range[2]
        self.point_cloud_range = point_cloud_range
        self.voxel_size = [pillar_size, pillar_size, height]
        self.max_points, self.max_pillars, self.keypoints = 16, 4096, 128
        self.nx, self.ny, _ = torchvox.grid_size(self.voxel_size, point_cloud_range)
        self.encoder = nn.Linear(7, width)
        self.head = nn.Conv2d(width + 1, channels, 3, padding=1)

    def forward(
        self, points: Tensor, batch_offsets: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        batches = batch_offsets.shape[0] - 1
        features, indices, num_points, point_voxel, counts = torch.ops.torchvox.voxelize(
            points,
            self.voxel_size,
            self.point_cloud_range,
            self.max_points,
            self.max_pillars,
            batch_offsets=batch_offsets,
        )
        # Each stored point with its offset from the pillar's mean; unused slots stay zero.
        stored = torch.arange(self.max_points, device=points.device) < num_points[:, None]
        mean = features[:, :, :3].sum(1) / num_points.clamp(min=1)[:, None]
        x = torch.cat([features, features[:, :, :3] - mean[:, None]], 2)
        x = torch.relu(self.encoder(x)) * stored[:, :, None]
        pillars = x.amax(1)  # [B * max_pillars, width]

        # Unused rows of the capacity have index -1: they go to one spare cell behind the canvas.
        cells = batches * self.ny * self.nx
        index = indices.long()
        cell = (index[:, 0] * self.ny + index[:, 2]) * self.nx + index[:, 3]
        cell = torch.where(index[:, 0] >= 0, cell, torch.full_like(cell, cells))
        canvas = torch.zeros([cells + 1, pillars.shape[1]], device=points.device)
        canvas = canvas.index_put([cell], pillars)[:cells]
        canvas = canvas.view(batches, self.ny, self.nx, pillars.shape[1]).permute(0, 3, 1, 2)
        height, _ = torch.ops.torchvox.bev_max_height(
            points, self.point_cloud_range, [self.nx, self.ny], batch_offsets=batch_offsets
        )
        bev = self.head(torch.cat([canvas, height[:, None]], 1))

        # Keypoints, each with the features of its pillar. An index of -1 gathers a row of zeros.
        total = batches * self.keypoints
        out_offsets = torch.arange(batches + 1, device=points.device) * self.keypoints
        idx, _ = torch.ops.torchvox.furthest_point_sample_ragged(
            points[:, :3], batch_offsets, out_offsets, total
        )
        chosen = torch.ops.torchvox.gather_points(points[None], idx[None])
        # An empty cloud has no keypoints: its index -1 reads the -1 appended here.
        pillar_of = torch.cat([point_voxel, point_voxel.new_full([1], -1)])[idx.long()]
        chosen_features = torch.ops.torchvox.gather_points(pillars[None], pillar_of[None])
        return (
            bev,
            chosen.view(batches, self.keypoints, points.shape[1]),
            chosen_features.view(batches, self.keypoints, pillars.shape[1]),
            counts,
        )


def make_model() -> PillarFeatures:
    torch.manual_seed(0)
    return PillarFeatures([0.0, -16.0, -3.0, 32.0, 16.0, 3.0], 0.5).eval()


def make_cloud(points: int, seed: int) -> Tensor:
    """[N, 4] x, y, z, intensity; a few points are out of range and one is not finite."""
    generator = torch.Generator().manual_seed(seed)
    cloud = torch.rand(points, 4, generator=generator)
    cloud = cloud * torch.tensor([36.0, 36.0, 4.0, 1.0]) - torch.tensor([2.0, 18.0, 3.0, 0.0])
    cloud[points // 2, 1] = float("nan")
    return cloud


def batch_of(*clouds: Tensor) -> Tuple[Tensor, Tensor]:
    sizes = torch.tensor([0, *(len(cloud) for cloud in clouds)])
    return torch.cat(clouds), sizes.cumsum(0)


def export(model: nn.Module) -> torch.export.ExportedProgram:
    """Any number of points; the number of clouds is fixed at one here."""
    example = batch_of(make_cloud(1000, 0))
    return torch.export.export(model, example, dynamic_shapes=({0: torch.export.Dim("N")}, None))


def through(kind: str, model: nn.Module, folder: Path):
    """The model in format `kind`; its files are in `folder`."""
    if kind == "eager":
        return model
    if kind == "compile":
        return torch.compile(model, fullgraph=True, dynamic=True)
    if kind == "export":
        torch.export.save(export(model), folder / "model.pt2")
        return torch.export.load(folder / "model.pt2").module()
    if kind == "aoti":
        package = str(folder / "model_aoti.pt2")
        torch._inductor.aoti_compile_and_package(export(model), package_path=package)
        return torch._inductor.aoti_load_package(package)
    if kind == "torchscript":
        torch.jit.script(model).save(str(folder / "model.pt"))
        return torch.jit.load(str(folder / "model.pt"))
    raise ValueError(f"format must be one of {FORMATS}, got {kind!r}")


@torch.inference_mode()
def run(formats: List[str], folder: Path) -> bool:
    model = make_model()
    clouds = [batch_of(make_cloud(size, seed)) for seed, size in enumerate((1000, 5000, 20000))]
    expected = [model(*cloud) for cloud in clouds]
    good = True
    for kind in formats:
        runs = through(kind, model, folder)
        for cloud, outputs in zip(clouds, expected, strict=True):
            actual = runs(*cloud)
            # torchvox's results have the same bits in every format; other backends may sum a
            # convolution or a matrix product in another order.
            exact = torch.equal(actual[1].nan_to_num(), outputs[1].nan_to_num()) and torch.equal(
                actual[3], outputs[3]
            )
            close = all(
                torch.allclose(a, e, rtol=1e-4, atol=1e-5, equal_nan=True)
                for a, e in zip(actual, outputs, strict=True)
            )
            good = good and exact and close
            used, total = outputs[3][0, :2].tolist()
            words = "same as eager" if exact and close else "DIFFERS FROM EAGER"
            print(f"{kind:<12} {len(cloud[0]):>6} points: {used} of {total} pillars, {words}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, help="folder for the saved models")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    args = parser.parse_args()
    if args.save:
        args.save.mkdir(parents=True, exist_ok=True)
        return 0 if run(args.formats, args.save) else 1
    with tempfile.TemporaryDirectory() as folder:
        return 0 if run(args.formats, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
