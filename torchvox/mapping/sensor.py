# SPDX-License-Identifier: Apache-2.0
"""Models of sensors: how much a hit and a miss change what a map believes."""

from __future__ import annotations

import math
from typing import NamedTuple

NDT_RULE = (
    "noise > 0, adaptation from 0 to 1, samples >= 1, reset between 0 and 1, reset_samples >= 1 "
    "with the rule every_ray"
)


class SensorModel(NamedTuple):
    """Probabilities that a voxel is occupied after one hit and one miss, and the limits of what a
    map believes. rule: of `occupancy_integrate_`."""

    hit: float
    miss: float
    lowest: float
    highest: float
    rule: str = "every_ray"

    @property
    def log_odds(self) -> list[float]:
        """The argument sensor of the ops."""
        return [log_odds(share) for share in self[:4]]


PRESETS = {  # the last three have the values of their sensors alone, without parity
    "ohm": SensorModel(0.9, 0.45, 0.1192029, 0.971),
    "octomap": SensorModel(0.7, 0.4, 0.1192029, 0.971, "scan"),
    "wavemap": SensorModel(0.7005671, 0.4013123, 0.1192029, 0.9820138, "scan"),
    "nvblox": SensorModel(0.7, 0.3, 0.01, 0.99, "scan"),
    "bonxai": SensorModel(0.7, 0.4, 0.12, 0.97, "scan"),
}


class NdtModel(NamedTuple):
    """How a map with the layer "sample_cov" integrates rays. noise: standard deviation of ranges in
    meters. adaptation: from 0 to 1, how much a miss through the middle of a distribution weighs.
    samples: how many a voxel needs to have a distribution. reset: probability below which a voxel
    that is hit forgets its samples, if it has reset_samples or more."""

    noise: float = 0.05
    adaptation: float = 0.2
    samples: float = 3
    reset: float = 0.2
    reset_samples: float = 100

    def is_valid(self, rule: str) -> bool:
        """Whether a map whose sensor has this rule can have the model: NDT_RULE says when."""
        counts = min(self.samples, self.reset_samples)
        good = self.noise > 0 and 0 <= self.adaptation <= 1 <= counts and 0 < self.reset < 1
        return good and all(map(math.isfinite, self)) and rule == "every_ray"

    @property
    def numbers(self) -> list[float]:
        """The argument ndt of `occupancy_integrate_`."""
        return [*self._replace(reset=log_odds(self.reset))]


def log_odds(probability: float) -> float:
    return math.log(probability / (1.0 - probability))
