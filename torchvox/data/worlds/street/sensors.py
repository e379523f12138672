# SPDX-License-Identifier: Apache-2.0
"""Lidars of generated streets: directions of their beams, and fields of view."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

VIEWS = ("full", "front", "camera")
# The image of KITTI's left color camera, here at the lidar's place: focal length, principal point,
# width and height in pixels.
FOCAL, CENTER_U, CENTER_V, WIDTH, HEIGHT = 721.5, 609.6, 172.9, 1242.0, 375.0
CAMERA_ARC = 84.0  # degrees that hold the image


@dataclass(frozen=True)
class Sensor:
    """A lidar whose beams sweep an arc of azimuths.

    elevations: degrees of its beams. columns: firings per 360 degrees. arc: degrees around the x
    axis. height: meters above the ground. max_range: meters.
    """

    elevations: tuple[float, ...]
    columns: int
    height: float = 1.73
    max_range: float = 80.0
    arc: float = 360.0


def _even(first: float, last: float, beams: int) -> tuple[float, ...]:
    return tuple(np.linspace(first, last, beams).tolist())


SENSORS = {
    "hdl64": Sensor(_even(2.0, -8.33, 32) + _even(-8.83, -24.33, 32), 2048),
    "hdl32": Sensor(_even(10.67, -30.67, 32), 1080, height=1.84),
    "os32": Sensor(_even(22.5, -22.5, 32), 1024, height=1.8),
    "vlp16": Sensor(_even(15.0, -15.0, 16), 1800, height=1.6),
    "solid_state": Sensor(_even(7.5, -17.5, 80), 1200, arc=120.0),
}


@dataclass(frozen=True)
class View:
    """The part of a sensor's arc that is cast.

    kind: "full", "front" (45 degrees to either side) or "camera" (what falls into KITTI's image).
    """

    sensor: Sensor
    kind: str

    @property
    def arc(self) -> float:
        """Degrees."""
        widest = {"full": 360.0, "front": 90.0, "camera": CAMERA_ARC}[self.kind]
        return min(self.sensor.arc, widest)

    @property
    def columns(self) -> int:
        return round(self.sensor.columns * self.arc / 360)

    @property
    def slope(self) -> float | None:
        """|y| <= slope x where objects can be seen; None: all around."""
        return None if self.arc >= 360 else math.tan(math.radians(self.arc / 2))

    @property
    def rays(self) -> int:
        return self.columns * len(self.sensor.elevations)

    def inside(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Which places or directions, in the sensor's frame, lie in the field of view. bool."""
        if self.kind == "camera":
            u, v = x * CENTER_U - y * FOCAL, x * CENTER_V - z * FOCAL  # times the depth
            return (u >= 0) & (u < x * WIDTH) & (v >= 0) & (v < x * HEIGHT)
        if self.slope is None:
            return torch.ones_like(x, dtype=torch.bool)
        return y.abs() <= x * self.slope
