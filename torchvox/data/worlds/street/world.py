# SPDX-License-Identifier: Apache-2.0
"""Labelled scans of generated streets, for detectors and segmenters.

Every number of scene i of a split is a function of (seed, split, i), on any device, in any batch;
where the world moves, of the numbers of frames and sweeps, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.data.counter_random import Draws
from torchvox.data.generated import Device, Split
from torchvox.data.worlds.street.cast import Returns, cast
from torchvox.data.worlds.street.motion import PERIOD, Seen, watch
from torchvox.data.worlds.street.objects import CLUTTER
from torchvox.data.worlds.street.placement import Objects, place
from torchvox.data.worlds.street.sensors import SENSORS, VIEWS, View
from torchvox.ops.mistakes import naming_mistakes

ME = "generate_world:"
SIZES = {"train": 2000, "val": 400}
REACH = 70.0  # meters ahead that objects stand at most
CHUNK = {"cpu": 1 << 17, "cuda": 1 << 22}  # rays cast at a time: caches and memory
PLACED = 256  # scenes whose objects are placed at a time
BOXES = 32  # capacity; twice as many all around
OCCLUSION = (0.1, 0.5, 0.9)  # shares hidden from which on levels 1, 2, 3 hold


@naming_mistakes
def generate_world(
    samples: Sequence[int] | Tensor,
    *,
    sensor: str = "hdl64",
    view: str = "front",
    reach: float = REACH,
    points: int | None = None,
    boxes: int | None = None,
    min_points: int = 5,
    frames: int = 1,
    sweeps: int = 1,
    rolling: bool = True,
    seed: int = 0,
    split: str = "train",
    device: Device = "cpu",
) -> dict[str, Tensor]:
    """Scans of the given scenes with the boxes of their cars, pedestrians and cyclists.

    samples: B numbers >= 0, such as range(60). sensor: a key of SENSORS. view: "full", "front" (90
    degrees ahead) or "camera" (what falls into KITTI's image). reach: meters ahead, 20 at least,
    that objects stand. points: N, capacity for the points of a scan; a scan with more is thinned at
    random; None: as many as rays. boxes: G, capacity for boxes; those with the fewest points are
    cut off; None: 32, or 64 all around. min_points: boxes with fewer have weight 0. frames: of a
    sequence at 10 Hz; sample i is frame i % frames of sequence i // frames. sweeps: S turns of
    the sensor that a scan joins, in the frame of the last. rolling: columns of rays are cast one
    after the other, over 0.1 s, else all at once. Objects fill the street at the end of a sequence:
    early frames of hundreds see few. With one frame and one sweep the world stands still.

    Returns, past num_points and num_boxes with the values in brackets:
        points [B, N, 4] float32: x, y, z in meters from the sensor, x ahead and z up, intensity
            0..1, in firing order (NaN); num_points [B] int32; owner [B, N] int32: the point's box,
            -1 other objects and boxes cut off, -2 ground (-3); surface [B, N] int8: what it is on,
            a number of SURFACES (-1).
        boxes [B, G, 7] float32: x, y, z of the center, l, w, h, yaw in -pi..pi (0), those with
            most points first; labels [B, G] int32, numbers of CLASSES (-1); num_boxes [B] int32;
            weight [B, G] float32: 1, or 0 where a box is to be ignored (0).
        box_points [B, G] int32: points of the box, at least 1; occlusion [B, G] int32: 0..3, less
            than 10, 50, 90 % of what its rays would meet is hidden, or more; truncation [B, G]
            float32: share of the box out of view.
        points_cut, boxes_cut [B] int32: what capacities cut off; id [B] int64: samples.
    Where the world moves, as of when the sensor looks ahead:
        points [B, N, 5] of several sweeps, the last first: and the sweep's age in seconds. Boxes,
            box_points and occlusion are those of the last.
        boxes [B, G, 9]: and vx, vy over ground in m/s; instance [B, G] int64: of the object in all
            frames of its sequence (-1); pose [B, 3, 4] float64: from the sensor to its frame at the
            end of the sequence, which is the world.
    Raises ValueError.
    """
    numbers = [int(i) for i in samples]
    _check(numbers, sensor, view, reach, min_points, points, boxes, frames, sweeps)
    where = View(SENSORS[sensor], view)
    capacity = where.rays * sweeps if points is None else points
    limits = (capacity, boxes or BOXES * (2 if where.slope is None else 1), min_points)
    ids = torch.tensor(numbers, dtype=torch.int64, device=device)
    chunk = CHUNK["cpu" if ids.device.type == "cpu" else "cuda"] // (where.rays * sweeps)
    chunk, still = max(chunk, 1), frames == sweeps == 1
    samples_of = []
    for few in () if still else ids.split(min(chunk, PLACED)):
        seen = watch((seed, split, few), reach, where, (frames, sweeps), rolling)
        samples_of.append(_sample(seen, where, limits, Draws(seed, split, few)))
    for few in ids.split(PLACED) if still else ():
        objects = place(Draws(seed, split, few), reach, where.slope, where.sensor.height)
        for first in range(0, max(len(few), 1), chunk):
            rows = slice(first, first + chunk)
            part, draws = objects.at(rows), Draws(seed, split, few[rows])
            seen = part, cast(part, where, draws), ()
            samples_of.append(_sample(seen, where, limits, draws))
    return {name: torch.cat([one[name] for one in samples_of]) for name in samples_of[0]}


class World(Split):
    """Generated street scenes as a torch data set of the samples of generate_world, which has the
    options."""

    make, sizes = staticmethod(generate_world), SIZES


def _surfaces(samples: Sequence[int] | Tensor, **options: Any) -> dict[str, Tensor]:
    batch = generate_world(samples, **options)
    labels = batch["surface"].to(torch.int64)
    return {"points": batch["points"], "labels": labels, "id": batch["id"]}


class WorldSurfaces(Split):
    """The same scenes for semantic segmentation, samples {points [N, 4 or 5], labels [N], id}:
    labels are numbers of SURFACES, -1 past the points."""

    make, sizes = staticmethod(_surfaces), SIZES


def _check(
    numbers: list[int], sensor: str, view: str, reach: float, min_points: int, *counts: int | None
) -> None:
    rule = f"sensor must be one of {', '.join(SENSORS)} and view one of {', '.join(VIEWS)}"
    expect(sensor in SENSORS and view in VIEWS, f"{ME} {rule}", (sensor, view))
    expect(20 <= reach <= REACH, f"{ME} reach must be from 20 to {REACH:g} m", reach)
    least = min(numbers, default=0)
    good = least >= 0 and min_points >= 0 and all(v is None or v > 0 for v in counts)
    rule = "samples and min_points must be >= 0, points, boxes, frames and sweeps >= 1"
    expect(good, f"{ME} {rule}", (least, min_points, *counts))


def _sample(
    frames: Seen, view: View, limits: tuple[int, int, int], draws: Draws
) -> dict[str, Tensor]:
    """Points and boxes of scenes, cut to their capacities."""
    objects, scan, moving = frames
    capacity, most, min_points = limits
    kept, points_cut = _thinned(scan.returned, capacity, draws)
    labels = torch.tensor([kind.label for kind in objects.kinds], device=draws.device)
    seen = torch.zeros_like(scan.hits)
    hit = (kept & (scan.owner >= 0))[:, : view.rays]  # in the last sweep
    seen.scatter_add_(1, scan.owner[:, : view.rays].clamp(min=0), hit.to(torch.int64))
    seen = torch.where(labels == CLUTTER, 0, seen)

    order = seen.argsort(dim=1, descending=True, stable=True)[:, :most]
    order = torch.nn.functional.pad(order, (0, max(most - order.shape[1], 0)))
    number = torch.arange(most, device=order.device).expand_as(order)
    there = (seen > 0).sum(1)
    valid = number < there[:, None]
    slot = torch.full_like(seen, -1).scatter_(1, order, torch.where(valid, number, -1))

    surfaces = torch.tensor([kind.surface for kind in objects.kinds], device=draws.device)
    points, owner, surface = _packed(scan, kept, (slot, surfaces), view, capacity)

    def of(value: Tensor) -> Tensor:
        """[B, G] of the boxes, 0 past the end."""
        return torch.where(valid, value.expand_as(seen).gather(1, order), 0)

    ignored = torch.tensor([kind.ignored for kind in objects.kinds], device=draws.device)
    weight = ~ignored & (seen >= min_points)
    hidden = 1.0 - scan.hits.to(torch.float64) / scan.alone.clamp(min=1).to(torch.float64)
    levels = sum((hidden >= limit).to(torch.int32) for limit in OCCLUSION)
    middle = objects.z + objects.height * 0.5
    box = [objects.x, objects.y, middle, objects.length, objects.width, objects.height, objects.yaw]
    more = {}
    if moving:
        vx, vy, instance, pose = moving
        box += [vx, vy]
        more = {"instance": torch.where(valid, instance.gather(1, order), -1), "pose": pose}
    return {
        "points": points,
        "num_points": kept.sum(1).to(torch.int32),
        "owner": owner,
        "surface": surface,
        "boxes": torch.stack([of(v) for v in box], -1),
        "labels": torch.where(valid, of(labels), -1).to(torch.int32),
        "num_boxes": there.clamp(max=most).to(torch.int32),
        "weight": of(weight).to(torch.float32),
        "box_points": of(seen).to(torch.int32),
        "occlusion": of(levels),
        "truncation": of(_truncation(objects, view)),
        "points_cut": points_cut.to(torch.int32),
        "boxes_cut": (there - most).clamp(min=0).to(torch.int32),
        "id": draws.samples,
        **more,
    }


def _packed(
    scan: Returns, kept: Tensor, of: tuple[Tensor, Tensor], view: View, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Points [B, N, 4 or 5] of the kept rays, NaN past the last; the slots of their boxes, and
    their surfaces. of: slots [B, O] and surfaces [O] of the objects."""
    slot, surfaces = of
    columns = [*scan.xyz.unbind(-1), scan.intensity]
    if scan.owner.shape[1] > view.rays:
        age = torch.arange(scan.owner.shape[1], device=kept.device) // view.rays
        columns.append((age.to(torch.float64) * PERIOD).to(torch.float32).expand_as(columns[0]))
    points = torch.stack(columns, -1)
    owner = slot.gather(1, scan.owner.clamp(min=0))
    owner = torch.where(scan.owner < 0, scan.owner, owner).to(torch.int32)
    packed = torch.full((len(points), capacity, len(columns)), float("nan"), device=kept.device)
    owners = torch.full(packed.shape[:2], -3, dtype=torch.int32, device=kept.device)
    surface = torch.full_like(owners, -1, dtype=torch.int8)
    scene, ray = kept.nonzero().unbind(1)
    row = (kept.cumsum(1) - 1)[scene, ray]
    packed[scene, row], owners[scene, row] = points[scene, ray], owner[scene, ray]
    hit = scan.owner[scene, ray]
    surface[scene, row] = torch.where(hit < 0, 0, surfaces[hit.clamp(min=0)]).to(torch.int8)
    return packed, owners, surface


def _thinned(returned: Tensor, capacity: int, draws: Draws) -> tuple[Tensor, Tensor]:
    """At most `capacity` of each scan's returns, chosen at random; how many are cut off."""
    count = returned.sum(1)
    if capacity < returned.shape[1]:
        chance = draws.bits("thinning", returned.shape[1]) & ((1 << 62) - 1)
        order = chance.masked_fill(~returned, 1 << 62).argsort(dim=1, stable=True)[:, :capacity]
        chosen = torch.zeros_like(returned).scatter_(1, order, True)
        returned = returned & chosen
    return returned, (count - capacity).clamp(min=0)


def _truncation(objects: Objects, view: View) -> Tensor:
    """[B, O] share of the boxes out of range or view, by 8 x 4 x 4 places in them."""
    eighths = (torch.arange(8, device=objects.x.device) + 0.5) / 8
    quarters = (torch.arange(4, device=objects.x.device) + 0.5) / 4
    along = (objects.length[..., None] * (eighths - 0.5))[..., :, None, None]
    across = (objects.width[..., None] * (quarters - 0.5))[..., None, :, None]
    frames = objects.cosine, objects.sine, objects.x, objects.y
    cosine, sine, x, y = (v[..., None, None, None] for v in frames)
    x, y = x + along * cosine - across * sine, y + along * sine + across * cosine
    z = (objects.z[..., None] + objects.height[..., None] * quarters)[..., None, None, :]
    inside = view.inside(x, y, z) & (x * x + y * y + z * z < view.sensor.max_range**2)
    return (~inside).sum((-3, -2, -1)) * (1 / 128)
