# SPDX-License-Identifier: Apache-2.0
"""The last sweeps of a sensor as the input of a network."""

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from torchvox._util.errors import expect


class SensorInput(nn.Module):
    """A ring of the last sweeps of a sensor, and all of them as one cloud in the frame of the
    newest, as detectors take it; scriptable.

    columns: of a scan, x, y, z in meters first; float32. sweeps: slots of the ring, 64 at most.
    points: the most of a scan. age: the age of its sweep in seconds is one more column of a point.
    drop_boxes: as in `torchvox.merge_sweeps`, the ego car.

    `push` fills the ring, outside of a captured graph; `forward` reads it, inside.
    """

    drop_boxes: List[float]

    def __init__(
        self,
        columns: int,
        *,
        sweeps: int = 10,
        points: int = 40_000,
        age: bool = True,
        drop_boxes: Optional[Sequence[float]] = None,
    ) -> None:
        super().__init__()
        expect(1 <= sweeps <= 64, "SensorInput: sweeps must be 1 to 64", sweeps)
        self.with_age, self.pushed = bool(age), 0
        self.drop_boxes = [float(b) for b in drop_boxes or ()]
        self.world = torch.zeros(sweeps, 3, 4, dtype=torch.float64)
        self.times = torch.zeros(sweeps, dtype=torch.float64)
        for name, buffer in (
            ("points", torch.zeros(sweeps, points, columns)),
            ("lengths", torch.zeros(sweeps, dtype=torch.int32)),
            ("poses", self.world.clone()),
            ("order", torch.full((sweeps,), -1)),
            ("age", self.times.clone()),
        ):
            self.register_buffer(name, buffer, persistent=False)

    @torch.jit.unused
    def push(self, scan: Tensor, pose: Tensor, time: float) -> None:
        """Puts a scan into the ring, in place of the oldest one.

        scan: [n, columns]; a pinned one must not change until the stream has copied it.
        pose: [3, 4], from the sensor to any fixed frame. time: of the scan in seconds.
        Raises ValueError (shapes, a scan of too many points).
        """
        sweeps, rows, columns = self.points.shape
        good = scan.dim() == 2 and scan.size(1) == columns and len(scan) <= rows
        rule = f"SensorInput.push: scan must be [n, {columns}] with n <= {rows}"
        expect(good, rule, list(scan.shape))
        expect(pose.shape == (3, 4), "SensorInput.push: pose must be [3, 4]", list(pose.shape))
        slot = self.pushed % sweeps
        self.pushed += 1
        self.points[slot, : len(scan)].copy_(scan.detach(), non_blocking=True)
        self.lengths[slot] = len(scan)
        self.world[slot], self.times[slot] = pose.detach().cpu(), time
        now, moved = self.world[slot], self.world.clone()
        moved[..., 3] -= now[:, 3]  # first, so that large coordinates cost no digits
        self.poses.copy_(now[:, :3].T @ moved)
        self.age.copy_(time - self.times)
        newest = (slot - torch.arange(sweeps)) % sweeps
        self.order.copy_(torch.where(newest < self.pushed, newest, -1))

    def forward(
        self,
        points: Optional[Tensor] = None,
        lengths: Optional[Tensor] = None,
        poses: Optional[Tensor] = None,
        order: Optional[Tensor] = None,
        age: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor]:
        """Points [1, sweeps * N, columns (+ 1)] and how many of them count, [1] int32. Arguments
        replace what the ring holds, as inputs of an exported program."""
        age = self.age if age is None else age
        cloud, num_points, _ = torch.ops.torchvox.merge_sweeps(
            self.points if points is None else points,
            self.poses if poses is None else poses,
            lengths=self.lengths if lengths is None else lengths,
            order=self.order if order is None else order,
            age=age if self.with_age else None,
            drop_boxes=self.drop_boxes,
        )
        return cloud[None], num_points
