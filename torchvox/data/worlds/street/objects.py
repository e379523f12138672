# SPDX-License-Identifier: Apache-2.0
"""Objects of the generated world: their classes, sizes and the solids that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch import Tensor

Value: TypeAlias = Tensor | float

CLASSES = ("Car", "Pedestrian", "Cyclist")
CAR, PEDESTRIAN, CYCLIST = range(3)
CLUTTER = -1  # label of poles, plants, buildings ..
# What rays end on; walls are buildings, vans cars.
SURFACES = ("Ground", *CLASSES, "Pole", "Block", "Plant", "Building")
ALBEDO, GLASS = (0.05, 0.7), 0.1  # of paint, clothes, walls, leaves; of windows


class Slab(NamedTuple):
    """Box along the object's axes. x, y: its middle from the object's, low, high: from its base."""

    x: Value
    y: Value
    low: Value
    high: Value
    half_x: Value
    half_y: Value


class Cylinder(NamedTuple):
    """Upright cylinder."""

    x: Value
    y: Value
    low: Value
    high: Value
    radius: Value


class Ellipsoid(NamedTuple):
    """Upright ellipsoid of revolution that lets rays through, around the object's axis."""

    z: Value
    radius: Value
    half_height: Value


Solid: TypeAlias = Slab | Cylinder | Ellipsoid
Parts: TypeAlias = list[tuple[Solid, Value]]  # with their albedo
PARTS = 8  # parts that an object has at most
Size: TypeAlias = tuple[float, float, float, float]  # mean, deviation (0: even), least, most


@dataclass(frozen=True)
class Kind:
    """What objects of a kind have in common.

    label: a number of CLASSES, or CLUTTER. parts: solids of objects by length, width, height and
    albedo. few, many: least and largest number in front of the sensor. length, width, height:
    meters. ignored: its boxes have weight 0. clutter: what it is of SURFACES where it is CLUTTER.
    """

    label: int
    parts: Callable[[Tensor, Tensor, Tensor, Tensor], Parts]
    few: int
    many: int
    length: Size
    width: Size
    height: Size
    ignored: bool = False
    clutter: str = ""

    @property
    def surface(self) -> int:
        """A number of SURFACES."""
        return SURFACES.index(self.clutter or CLASSES[self.label])

    @property
    def in_traffic(self) -> bool:
        """Whether it stands on lanes and along the road."""
        return self.label == CAR


def _even(low: float, high: float) -> Size:
    return (0.0, 0.0, low, high)


WIDE = _even(0.6, 0.6)  # meters, with handlebar or arms
ROUND = _even(0.0, 0.0)  # the width of what has none


def _car(long: Tensor, wide: Tensor, tall: Tensor, paint: Tensor) -> Parts:
    """A body, and a cabin that is set back, so that front and rear differ."""
    body = Slab(0.0, 0.0, 0.18, tall * 0.58, long * 0.5, wide * 0.5)
    cabin = Slab(long * -0.09, 0.0, tall * 0.58, tall, long * 0.26, wide * 0.44)
    return [(body, paint), (cabin, GLASS)]


def _van(long: Tensor, wide: Tensor, tall: Tensor, paint: Tensor) -> Parts:
    return [(Slab(0.0, 0.0, 0.2, tall, long * 0.5, wide * 0.5), paint)]


def _pedestrian(long: Tensor, wide: Tensor, tall: Tensor, clothes: Tensor) -> Parts:
    """Torso, head looking ahead, legs fore and aft, arms."""
    leg = tall * 0.45
    return [
        (Cylinder(0.0, 0.0, leg, tall * 0.85, 0.2), clothes),
        (Cylinder(0.06, 0.0, tall * 0.86, tall, 0.1), 0.4),
        (Cylinder(long * 0.28, 0.1, 0.0, leg, 0.08), clothes * 0.7),
        (Cylinder(long * -0.28, -0.1, 0.0, leg, 0.08), clothes * 0.7),
        (Slab(0.0, 0.0, tall * 0.5, tall * 0.8, 0.06, 0.285), clothes),
    ]


def _cyclist(long: Tensor, wide: Tensor, tall: Tensor, clothes: Tensor) -> Parts:
    """Frame with wheels, handlebar, a rider's torso and head."""
    return [
        (Slab(0.0, 0.0, 0.0, 0.7, long * 0.5, 0.04), 0.3),
        (Slab(long * 0.36, 0.0, 0.95, 1.07, 0.04, wide * 0.5), 0.2),
        (Cylinder(long * -0.05, 0.0, tall * 0.5, tall * 0.86, 0.2), clothes),
        (Cylinder(long * -0.05, 0.0, tall * 0.86, tall, 0.1), 0.4),
    ]


def _pole(long: Tensor, wide: Tensor, tall: Tensor, albedo: Tensor) -> Parts:
    return [(Cylinder(0.0, 0.0, 0.0, tall, long * 0.5), albedo)]


def _block(long: Tensor, wide: Tensor, tall: Tensor, albedo: Tensor) -> Parts:
    return [(Slab(0.0, 0.0, 0.0, tall, long * 0.5, wide * 0.5), albedo)]


def _plant(long: Tensor, wide: Tensor, tall: Tensor, leaves: Tensor) -> Parts:
    """A trunk under a crown: a tree, or a bush where it is low."""
    crown = Ellipsoid(tall * 0.6, long * 0.5, tall * 0.4)
    return [(Cylinder(0.0, 0.0, 0.0, tall * 0.5, long * 0.04), 0.2), (crown, leaves)]


# In the order in which they are placed: later ones give way.
KINDS = (
    Kind(CAR, _car, 5, 14, (3.9, 0.42, 3.1, 5.2), (1.63, 0.1, 1.4, 1.9), (1.53, 0.13, 1.3, 1.9)),
    Kind(CYCLIST, _cyclist, 1, 7, (1.76, 0.12, 1.4, 2.1), WIDE, (1.73, 0.1, 1.45, 2.0)),
    Kind(PEDESTRIAN, _pedestrian, 3, 12, (0.8, 0.15, 0.45, 1.2), WIDE, (1.74, 0.11, 1.4, 2.05)),
    Kind(CAR, _van, 0, 2, _even(4.6, 5.6), _even(1.8, 2.05), _even(1.9, 2.5), ignored=True),
    Kind(CLUTTER, _pole, 4, 15, _even(0.1, 0.6), ROUND, _even(3.0, 7.0), clutter="Pole"),
    Kind(CLUTTER, _block, 3, 9, _even(0.5, 2.8), _even(0.3, 1.5), _even(0.4, 2.2), clutter="Block"),
    Kind(CLUTTER, _plant, 4, 14, _even(1.5, 5.0), ROUND, _even(1.0, 6.0), clutter="Plant"),
)
BUILDING = Kind(
    *(CLUTTER, _block, 8, 48, _even(6.0, 20.0), _even(4.0, 10.0), _even(3.0, 12.0)),
    clutter="Building",
)
