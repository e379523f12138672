# SPDX-License-Identifier: Apache-2.0
"""Bird's-eye-view rasters, written as their definition: point by point, then cell by cell.

The slow second opinion that the ops are tested against; the prose contract is docs/bev.md.
Same arguments and defaults as the registered ops, CPU tensors in, a tuple of CPU tensors out.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

F32 = np.float32
USED, OUT_OF_RANGE, NON_FINITE = 1, 2, 3  # also the columns of counts


@dataclass(frozen=True)
class Grid:
    """The raster: bounds and cell size in metres, rounded to float32 once for every dtype."""

    lo: np.ndarray  # [3] x, y, z
    hi: np.ndarray  # [3]
    res: np.ndarray  # [2] metres per cell along x and y
    nx: int
    ny: int
    orientation: str

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        return (self.nx, self.ny) if self.orientation == "image" else (self.ny, self.nx)

    def pixel(self, ix: np.ndarray, iy: np.ndarray) -> np.ndarray:
        """Flat output position of cell (ix, iy)."""
        row, col = {
            "grid": (iy, ix),
            "image": (self.nx - 1 - ix, self.ny - 1 - iy),
            "north_up": (self.ny - 1 - iy, ix),
        }[self.orientation]
        return row * self.shape[1] + col


@dataclass(frozen=True)
class Cell:
    """The used points of one cell, in input order."""

    z: np.ndarray  # [n] float32, never -0.0
    intensity: np.ndarray | None  # [n] float32
    top: int  # position of the highest point, the first among equals


# --------------------------------------------------------------------------------------- the ops


def bev_max_height(
    points: Tensor,
    point_cloud_range: list[float],
    size: list[int],
    *,
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
    orientation: str = "grid",
    out_dtype: torch.dtype | None = None,
    fill: float = 0.0,
    lowest_code: int = 1,
) -> tuple[Tensor, Tensor]:
    """(height [B, H, W], counts [B + 1, 4]): the height of the highest point of each cell."""
    height, _, counts = _max_height(
        "bev_max_height", points, point_cloud_range, size, batch_offsets, num_valid,
        orientation, out_dtype, fill, lowest_code,
    )  # fmt: skip
    return height, counts


def bev_max_height_with_index(
    points: Tensor,
    point_cloud_range: list[float],
    size: list[int],
    *,
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
    orientation: str = "grid",
    out_dtype: torch.dtype | None = None,
    fill: float = 0.0,
    lowest_code: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """(height, top_index [B, H, W] int32, counts): also the row of the highest point, -1 if none."""
    return _max_height(
        "bev_max_height_with_index", points, point_cloud_range, size, batch_offsets, num_valid,
        orientation, out_dtype, fill, lowest_code,
    )  # fmt: skip


def _max_height(
    op, points, point_cloud_range, size, batch_offsets, num_valid, orientation, out_dtype, fill,
    lowest_code,
):  # fmt: skip
    _check_points(op, points)
    grid = _grid(op, point_cloud_range, size, orientation)
    _check_batch(op, batch_offsets, num_valid)
    dtype = torch.float32 if out_dtype is None else out_dtype
    if dtype not in (torch.float32, torch.uint8, torch.uint16):
        raise TypeError(f"{op}: out_dtype must be float32, uint8 or uint16, got {dtype}")
    if not 0 <= lowest_code <= 254:
        raise ValueError(f"{op}: lowest_code must be in 0..254, got {lowest_code}")

    samples = _samples(points.size(0), batch_offsets, num_valid)
    z = _heights(points)
    height = np.full((len(samples), grid.nx * grid.ny), fill, F32)
    top_index = np.full(height.shape, -1, np.int32)
    counts = np.zeros((len(samples) + 1, 4), np.int32)
    for b, rows in enumerate(samples):
        cells = _cells(points, rows, grid, counts[b + 1])
        for pixel, members in cells.items():
            top = members[np.argmax(z[members])]  # argmax: the first of equals
            height[b, pixel] = z[top]
            top_index[b, pixel] = top
    counts[0] = counts[1:].sum(0)

    empty = top_index < 0
    if dtype == torch.uint8:
        codes = lowest_code + np.floor(_unit_height(height, grid) * F32(255 - lowest_code))
        height = np.where(empty, 0, codes).astype(np.uint8)
    elif dtype == torch.uint16:
        with np.errstate(all="ignore"):
            millimetres = np.floor((height - grid.lo[2]) * F32(1000))
        height = np.where(empty, 0, np.minimum(millimetres + F32(1), 65535)).astype(np.uint16)
    shape = (len(samples), *grid.shape)
    return (
        torch.from_numpy(height.reshape(shape)),
        torch.from_numpy(top_index.reshape(shape)),
        torch.from_numpy(counts),
    )


def bev_rasterize(
    points: Tensor,
    point_cloud_range: list[float],
    size: list[int],
    channels: list[str],
    *,
    features: Tensor | None = None,
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
    orientation: str = "grid",
    fill: float = 0.0,
    density_base: int = 64,
) -> tuple[Tensor, Tensor]:
    """(image [B, C, H, W] float32, counts [B + 1, 4]): one plane per channel, in the order given."""
    op = "bev_rasterize"
    _check_points(op, points)
    grid = _grid(op, point_cloud_range, size, orientation)
    _check_batch(op, batch_offsets, num_valid)
    planes = _planes(op, channels, grid)
    intensity = _intensity(op, points, features, planes)
    if not 2 <= density_base <= 512:
        raise ValueError(f"{op}: density_base must be in 2..512, got {density_base}")
    density = _density_table(density_base)

    samples = _samples(points.size(0), batch_offsets, num_valid)
    z = _heights(points)
    empty = np.array([0 if name in ZERO_WHERE_EMPTY else fill for name, _, _ in planes], F32)
    image = np.tile(empty[None, :, None], (len(samples), 1, grid.nx * grid.ny))
    counts = np.zeros((len(samples) + 1, 4), np.int32)
    for b, rows in enumerate(samples):
        for pixel, members in _cells(points, rows, grid, counts[b + 1]).items():
            cell = Cell(
                z=z[members],
                intensity=None if intensity is None else intensity[members],
                top=int(np.argmax(z[members])),
            )
            for p, (name, k, of) in enumerate(planes):
                value = _value(cell, name, k, of, grid, density)
                if value is not None:
                    image[b, p, pixel] = value
    counts[0] = counts[1:].sum(0)
    image = image.reshape(len(samples), len(planes), *grid.shape)
    return torch.from_numpy(image), torch.from_numpy(counts)


def bev_rasterize_backward(
    grad_image: Tensor,
    points: Tensor,
    point_cloud_range: list[float],
    size: list[int],
    channels: list[str],
    *,
    features: Tensor | None = None,
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
    orientation: str = "grid",
) -> tuple[Tensor, Tensor | None]:
    """Gradients of `bev_rasterize` to points and features (None when features is None).

    height_max, height_norm and intensity_top reach the highest point, height_mean and
    intensity_mean every point of the cell; nothing else has a gradient. Each point belongs to one
    cell: its terms are added in float32 in channel order from +0, then rounded to its dtype.
    """
    op = "bev_rasterize"
    grid = _grid(op, point_cloud_range, size, orientation)
    planes = _planes(op, channels, grid)
    z = _heights(points)
    samples = _samples(points.size(0), batch_offsets, num_valid)
    grad = grad_image.detach().float().numpy().reshape(len(samples), len(planes), -1)
    to_z, to_intensity = np.zeros(len(z), F32), np.zeros(len(z), F32)
    for b, rows in enumerate(samples):
        for pixel, members in _cells(points, rows, grid, np.zeros(4, np.int32)).items():
            top, n = members[np.argmax(z[members])], F32(len(members))
            for p, (name, _, _) in enumerate(planes):
                g = grad[b, p, pixel]
                if name == "height_max":
                    to_z[top] += g
                elif name == "height_norm":
                    to_z[top] += g / (grid.hi[2] - grid.lo[2])
                elif name == "height_mean":
                    to_z[members] += g / n
                elif name == "intensity_top":
                    to_intensity[top] += g
                elif name == "intensity_mean":
                    to_intensity[members] += g / n
    grad_points = torch.zeros_like(points)
    grad_points[:, 2] = torch.from_numpy(to_z).to(points.dtype)
    if features is not None:
        return grad_points, torch.from_numpy(to_intensity).to(features.dtype).view(features.shape)
    if points.size(1) > 3:
        grad_points[:, 3] = torch.from_numpy(to_intensity).to(points.dtype)
    return grad_points, None


def bev_affine(
    point_cloud_range: list[float], size: list[int], orientation: str = "grid"
) -> Tensor:
    """[3, 3] float64: maps (col, row, 1) to (x, y, 1) in metres, whole pixels being cell centres."""
    grid = _grid("bev_affine", point_cloud_range, size, orientation)
    x0, y0 = (float(v) for v in grid.lo[:2])
    dx, dy = (float(v) for v in grid.res)
    first_x, last_x = x0 + 0.5 * dx, x0 + (grid.nx - 0.5) * dx
    first_y, last_y = y0 + 0.5 * dy, y0 + (grid.ny - 0.5) * dy
    rows = {
        "grid": [[dx, 0, first_x], [0, dy, first_y]],
        "image": [[0, -dx, last_x], [-dy, 0, last_y]],
        "north_up": [[dx, 0, first_x], [0, -dy, last_y]],
    }[orientation]
    return torch.tensor([*rows, [0, 0, 1]], dtype=torch.float64)


PRESETS = {
    "mv3d": {
        "point_cloud_range": [0.0, -40.0, -2.0, 70.4, 40.0, 0.4],
        "size": [704, 800],
        "channels": ["slices:6", "intensity_top", "density"],
        "orientation": "image",
        "density_base": 64,
    },
    "complex_yolo": {
        "point_cloud_range": [0.0, -25.0, -2.73, 50.0, 25.0, 1.27],
        "size": [608, 608],
        "channels": ["density", "height_norm", "intensity_top"],
        "orientation": "image",
        "density_base": 64,
    },
    "pixor": {
        "point_cloud_range": [0.0, -40.0, -2.5, 70.0, 40.0, 1.0],
        "size": [700, 800],
        "channels": ["occupancy:35", "intensity_mean"],
        "orientation": "grid",
    },
    "birdnet": {
        "point_cloud_range": [0.0, -17.5, -1.73, 35.0, 17.5, 1.27],
        "size": [700, 700],
        "channels": ["height_max", "intensity_mean", "count"],
        "orientation": "image",
    },
    "second": {
        "point_cloud_range": [0.0, -40.0, -3.0, 70.4, 40.0, 1.0],
        "size": [352, 400],
        "channels": ["slices:10", "intensity_top", "count"],
        "orientation": "grid",
    },
}


def bev_preset(name: str) -> dict:
    """Keyword arguments of `bev_rasterize` for a published encoding; a fresh dict each call."""
    if name not in PRESETS:
        raise ValueError(f"bev_preset: name must be one of {', '.join(PRESETS)}, got {name!r}")
    return {k: list(v) if isinstance(v, list) else v for k, v in PRESETS[name].items()}


# ------------------------------------------------------------------------------ which cell, if any


def _classify(points: Tensor, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Outcome (USED, OUT_OF_RANGE, NON_FINITE) and flat pixel (-1 if unused) of every point."""
    xyz = _array(points[:, :3])  # [N, 3] float32, or float64 for float64 points
    t = xyz.dtype.type
    finite = np.isfinite(xyz).all(1)
    inside = ((grid.lo.astype(t) <= xyz) & (xyz < grid.hi.astype(t))).all(1)
    with np.errstate(all="ignore"):
        cell = np.floor((xyz[:, :2] - grid.lo[:2].astype(t)) / grid.res.astype(t))
    n = np.array([grid.nx, grid.ny], t)
    used = finite & inside & ((cell >= 0) & (cell < n)).all(1)
    cell = np.where(used[:, None], cell, 0).astype(np.int64)
    outcome = np.where(used, USED, np.where(finite, OUT_OF_RANGE, NON_FINITE))
    return outcome, np.where(used, grid.pixel(cell[:, 0], cell[:, 1]), -1)


def _cells(points: Tensor, rows: range, grid: Grid, counts: np.ndarray) -> dict[int, np.ndarray]:
    """Pixel -> rows of its points in input order, for one sample; fills its row of counts."""
    outcome, pixel = _classify(points[rows.start : rows.stop], grid)
    used = np.flatnonzero(outcome == USED)
    order = used[np.argsort(pixel[used], kind="stable")]
    pixels, first = np.unique(pixel[order], return_index=True)
    counts[:] = [len(pixels)] + [(outcome == o).sum() for o in (USED, OUT_OF_RANGE, NON_FINITE)]
    members = np.split(order + rows.start, first[1:])
    return dict(zip(pixels.tolist(), members, strict=False))


def _samples(n: int, batch_offsets: Tensor | None, num_valid: Tensor | None) -> list[range]:
    """The rows of each sample: its block of batch_offsets, cut to num_valid; the rest is padding."""
    offsets = [0, n] if batch_offsets is None else np.clip(batch_offsets.numpy(), 0, n).tolist()
    blocks = [range(a, max(a, b)) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    if num_valid is None:
        return blocks
    valid = num_valid.reshape(-1).tolist()
    return [r[: min(max(v, 0), len(r))] for r, v in zip(blocks, valid, strict=True)]


# --------------------------------------------------------------------------- what a cell comes to


HEIGHTS = ("height_max", "height_min", "height_mean", "height_range", "height_norm", "slices")
INTENSITIES = ("intensity_top", "intensity_mean", "intensity_max")
ZERO_WHERE_EMPTY = ("count", "density", "occupancy")
SLICED = ("occupancy", "slices")


def _value(cell: Cell, name: str, k: int, of: int, grid: Grid, density: np.ndarray):
    """One channel of one cell; None leaves the value of an empty cell."""
    n = len(cell.z)
    if name == "height_max":
        return cell.z[cell.top]
    if name == "height_min":
        return cell.z.min()
    if name == "height_mean":
        return _height_mean(cell.z, grid)
    if name == "height_range":
        return cell.z.max() - cell.z.min()
    if name == "height_norm":
        return _unit_height(cell.z[cell.top], grid)
    if name == "intensity_top":
        return cell.intensity[cell.top]
    if name == "intensity_mean":
        with np.errstate(all="ignore"):
            return cascade_sum(cell.intensity) / F32(n)
    if name == "intensity_max":
        return (cell.intensity + F32(0)).max()  # NaN wins, as in torch.amax; zero is +0
    if name == "count":
        return F32(n)
    if name == "density":
        return density[n] if n < len(density) else F32(1)
    in_slice = cell.z[_slice(cell.z, of, grid) == k]
    if len(in_slice) == 0:
        return None
    return F32(1) if name == "occupancy" else in_slice.max()


def _slice(z: np.ndarray, of: int, grid: Grid) -> np.ndarray:
    """Which of `of` equal slices of the range a height lies in; the last one takes the round-off."""
    thickness = (grid.hi[2] - grid.lo[2]) / F32(of)
    k = np.floor((z - grid.lo[2]) / thickness)
    return np.minimum(k, F32(of - 1)).astype(np.int64)


def _unit_height(z: np.ndarray, grid: Grid) -> np.ndarray:
    """0 at the bottom of the range, below 1 but for rounding at its top; all in float32."""
    with np.errstate(all="ignore"):  # the fill of an empty cell may be anything
        return (z - grid.lo[2]) / (grid.hi[2] - grid.lo[2])


def _height_mean(z: np.ndarray, grid: Grid) -> np.float32:
    """Mean height from an integer sum, hence free of any order.

    The step is 2^(e - 31) m with 2^e the first power of two above the range: a height takes at
    most 2^31 steps, so 2^31 of them still fit an int64.
    """
    z0 = float(grid.lo[2])
    _, e = math.frexp(float(grid.hi[2]) - z0)
    steps_per_metre = math.ldexp(1.0, 31 - e)
    q = np.rint((z.astype(np.float64) - z0) * steps_per_metre)  # half to even
    total = int(q.astype(np.int64).sum())
    return F32(z0 + (float(total) / len(z)) / steps_per_metre)


def cascade_sum(values: np.ndarray) -> np.float32:
    """Float32 sum in input order as a base-32 cascade (the sum rule of voxelize).

    32 consecutive values left to right, then 32 such sums, and so on. What is left over at each
    level is added at the end, finest level first. Every accumulator starts at +0.
    """
    leftovers = []
    while len(values):
        whole = len(values) // 32 * 32
        leftovers.append(_running_sum(values[whole:]))
        values = np.array([_running_sum(v) for v in values[:whole].reshape(-1, 32)], F32)
    return _running_sum(np.array(leftovers, F32))


def _running_sum(values: np.ndarray) -> np.float32:
    """((0 + v0) + v1) + ... in float32."""
    total = F32(0)
    with np.errstate(all="ignore"):
        for v in values:
            total = total + v
    return total


def _density_table(base: int) -> np.ndarray:
    """min(1, log(n + 1) / log(base)) for n = 0 .. base - 1, computed in double."""
    table = [min(1.0, math.log(n + 1) / math.log(base)) for n in range(base)]
    return np.array(table, np.float64).astype(F32)


# -------------------------------------------------------------------------------------- arguments


def _array(t: Tensor) -> np.ndarray:
    """As NumPy, half types widened to float32."""
    t = t.detach()
    return (t if t.dtype in (torch.float32, torch.float64) else t.float()).numpy()


def _heights(points: Tensor) -> np.ndarray:
    """[N] z rounded to float32, -0.0 turned into +0.0."""
    with np.errstate(all="ignore"):
        return _array(points[:, 2]).astype(F32) + F32(0)


def _intensity(op, points, features, planes) -> np.ndarray | None:
    if features is not None:
        n = points.size(0)
        if not features.is_floating_point():
            raise TypeError(f"{op}: features must be a floating-point tensor, got {features.dtype}")
        if tuple(features.shape) not in ((n,), (n, 1)):
            raise ValueError(
                f"{op}: features must be [N] or [N, 1] with N = {n}, got {list(features.shape)}"
            )
    if not any(name in INTENSITIES for name, _, _ in planes):
        return None
    if features is None and points.size(1) < 4:
        raise ValueError(
            f"{op}: points must be [N, F] with F >= 4 (intensity in column 3) or features given, "
            f"got {list(points.shape)}"
        )
    with np.errstate(all="ignore"):
        return _array(points[:, 3] if features is None else features.reshape(-1)).astype(F32)


def _planes(op: str, channels: list[str], grid: Grid) -> list[tuple[str, int, int]]:
    """(channel name, slice, number of slices) of every output plane."""
    planes = []
    for channel in channels:
        name, colon, number = channel.partition(":")
        if name in SLICED and colon and number.isdecimal() and number.isascii() and int(number) > 0:
            planes += [(name, k, int(number)) for k in range(int(number))]
        elif channel in (*HEIGHTS, *INTENSITIES, *ZERO_WHERE_EMPTY) and channel not in SLICED:
            planes.append((channel, 0, 1))
        else:
            known = [n + ":K" if n in SLICED else n for n in HEIGHTS + INTENSITIES + ZERO_WHERE_EMPTY]
            raise ValueError(f"{op}: channels must be of {', '.join(known)}, got {channel!r}")
    if not 1 <= len(planes) <= 256:
        raise ValueError(f"{op}: channels must give 1..256 planes, got {len(planes)}")
    if not all((grid.hi[2] - grid.lo[2]) / F32(of) > 0 for _, _, of in planes):
        raise ValueError(f"{op}: channels must cut slices thicker than 0 m, got {channels}")
    return planes


def _grid(op: str, point_cloud_range: list[float], size: list[int], orientation: str) -> Grid:
    if len(point_cloud_range) != 6:
        raise ValueError(
            f"{op}: point_cloud_range must be (x0, y0, z0, x1, y1, z1), got {point_cloud_range}"
        )
    if len(size) != 2 or min(size) < 1 or max(size) > 2**24:
        raise ValueError(f"{op}: size must be (nx, ny), each in 1..{2**24}, got {size}")
    if orientation not in ("grid", "image", "north_up"):
        raise ValueError(f"{op}: orientation must be grid, image or north_up, got {orientation!r}")
    with np.errstate(all="ignore"):
        bounds = np.array(point_cloud_range, np.float64).astype(F32)
        lo, hi = bounds[:3], bounds[3:]
        res = (hi[:2] - lo[:2]) / np.array(size, F32)
        extent = hi - lo
    if not (np.isfinite(bounds).all() and np.isfinite(extent).all() and (lo < hi).all()):
        raise ValueError(
            f"{op}: point_cloud_range must be finite with lower < upper bounds on every axis in "
            f"float32, got {point_cloud_range}"
        )
    if not (res > 0).all():
        raise ValueError(f"{op}: point_cloud_range must be wider than size, got {size}")
    return Grid(lo, hi, res, size[0], size[1], orientation)


def _check_points(op: str, points: Tensor) -> None:
    if not points.is_floating_point():
        raise TypeError(f"{op}: points must be a floating-point tensor, got {points.dtype}")
    if points.dim() != 2 or points.size(1) < 3:
        raise ValueError(
            f"{op}: points must be [N, F] with F >= 3, got {list(points.shape)}"
        )


def _check_batch(op: str, batch_offsets: Tensor | None, num_valid: Tensor | None) -> None:
    for name, t in (("batch_offsets", batch_offsets), ("num_valid", num_valid)):
        if t is not None and t.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{op}: {name} must be int32 or int64, got {t.dtype}")
    if batch_offsets is not None and (batch_offsets.dim() != 1 or batch_offsets.size(0) < 1):
        raise ValueError(f"{op}: batch_offsets must be [B + 1], got {list(batch_offsets.shape)}")
    samples = 1 if batch_offsets is None else batch_offsets.size(0) - 1
    if num_valid is not None and num_valid.numel() != samples:
        raise ValueError(
            f"{op}: num_valid must have one element per sample ({samples}), "
            f"got {list(num_valid.shape)}"
        )
