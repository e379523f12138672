# SPDX-License-Identifier: Apache-2.0
"""Poses of a sensor: one per scan, or a trajectory for points with times of their own."""

from __future__ import annotations

import re
import warnings
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchvox._util.errors import CloudFileError, WrongUseError, expect, explained
from torchvox.io.binary import load_npy
from torchvox.io.paths import cloud_stem
from torchvox.io.words import are_numbers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

KITTI, SQUARE, TUM, EUROC = 12, 16, 8, 17  # numbers per line
ORDER = ("time", "x", "y", "z", "qx", "qy", "qz", "qw")  # of TUM
NAMES = "time (seconds, or time_ns), x, y, z, qx, qy, qz, qw"
FORMS = (
    "poses are lines of 8 numbers (TUM: time x y z qx qy qz qw, as in 0.1 5 2 0 0 0 0 1), 12 (KITTI"
    ": rows of [3, 4], as in 1 0 0 5 0 1 0 2 0 0 1 0), 16 ([4, 4]: the same and 0 0 0 1), EuRoC CSV"
    " (time_ns,x,y,z,qw,qx,qy,qz, as in 1403636579763555584,5,2,0,1,0,0,0) or .npy [S, 3 or 4, 4]"
)
EUROC_ORDER = [1, 2, 3, 5, 6, 7, 4]  # of x, y, z, qx, qy, qz, qw
NANOSECONDS = 1e17  # whole numbers from here on are times in nanoseconds
NO_SECONDS = 1e11  # numbers from here on are not times in seconds
SLACK = 1e-3  # of a rotation that is written in few digits
ROUNDING = 1e-4  # s: KITTI's times.txt has 7 digits, so a scan may seem to be after the last pose
NO_TIME = re.compile(r".* 0\d+|.*\d{4}\D?\d\d\D?\d\d.* \d{1,9}(\.\d+)?")  # 000012, or a date


class Poses(NamedTuple):
    """matrices [S, 3, 4] float64, from the frame of the sensor to that of the map; times [S]
    float64 in seconds, None if the file has none."""

    matrices: np.ndarray
    times: np.ndarray | None


class SensorPoses(NamedTuple):
    """poses [N, 3, 4] float64, NaN where kept [N] bool is false; outside: number of times outside
    the trajectory or not finite; in_gap: number of times in a gap."""

    poses: np.ndarray
    kept: np.ndarray
    outside: int
    in_gap: int


def read_poses(
    path: str | Path,
    extrinsic: ArrayLike | None = None,
    *,
    count: int | None = None,
    relative: bool = False,
) -> Poses:
    """Poses of scans; the format follows from the number of columns and a header.

    path: text with blanks or commas. 12 numbers per line (KITTI: the rows of a [3, 4] matrix), 16
        (of [4, 4]), or 8 (TUM: time, x, y, z and a quaternion x, y, z, w); EuRoC, w first: 17 or,
        with times in nanoseconds, 8 with commas. A header that names the columns of a quaternion
        takes precedence, other lines with # are skipped. Or .npy, [S, 3, 4] or [S, 4, 4].
        Nanoseconds become float64 seconds, which rounds times since 1970 to 0.12 microseconds.
    extrinsic: [3, 4] or [4, 4], from the sensor's frame to the frame whose poses the file has.
        Those of KITTI's odometry are the camera's: use Tr of the calibration (`read_extrinsic`).
    count: number of scans, each of which needs one pose.
    relative: the map's frame is that of the first scan, as for KITTI, whose world has z ahead.
    Warns where quaternions without a header tilt the sensor as x, y, z, w, but not with w first.
    Raises CloudFileError for a file that holds anything else.
    """
    path = Path(path)
    times = None
    with explained(path, "file of poses"):
        if path.suffix.lower() == ".json":
            raise _unknown(path, "JSON")
        if path.suffix.lower() == ".npy":
            rows = load_npy(path)
            if rows.ndim != 3 or rows.shape[1:] not in ((3, 4), (4, 4)) or rows.dtype.kind != "f":
                got = f"{list(rows.shape)} {rows.dtype}"
                raise ValueError(f"poses must be [S, 3, 4] or [S, 4, 4] floats, got {got}")
        else:
            roles, commas, stamps, table = _table(path)
            if table.shape[1] in (KITTI, SQUARE) and "qw" not in roles:
                rows = table.reshape(len(table), -1, 4)
            else:
                times, table = _timed(path, roles, commas, stamps, table)
                rows = np.concatenate([rotations(table[:, 3:]), table[:, :3, None]], axis=2)
        if len(rows) == 0 or (times is not None and not np.isfinite(times).all()):
            raise ValueError("it holds no poses, or times that are not numbers")
        poses = rigid(rows)
    if count is not None and count != len(poses):
        raise CloudFileError(f"{path} has {len(poses)} poses for {count} scans")
    if extrinsic is not None:
        poses = joined(poses, _matrix(extrinsic))
    if relative:
        poses = from_first(poses)
    return Poses(poses, times)


def read_times(source: str | Path, scans: Sequence[Path]) -> np.ndarray:
    """Times [S] float64 of scans in seconds.

    source: a file with one per line (KITTI's times.txt), or "names": the number at the end of each
        scan's name, also seconds_nanoseconds, no frame number. Nanoseconds: whole, from 1e17 up.
    Raises CloudFileError for other content or names, WrongUseError for another number of times.
    """
    path = scans[0] if source == "names" else Path(source)
    kind = "name that ends in a time" if source == "names" else "list of times"
    with explained(path, kind):
        if source == "names":
            stems = [re.sub(r"(\d{10})_(\d{9})$", r"\1.\2", cloud_stem(path)) for path in scans]
            stems = [re.sub(r"(\d+(\.\d+)?)$", r" \1", stem) for stem in stems]
            words = [stem.rpartition(" ")[2] for stem in stems]
            if odd := next(filter(NO_TIME.fullmatch, stems), "").replace(" ", ""):
                raise ValueError(f"{odd!r} ends in a frame number or a date: list times in a file")
        else:
            lines = map(str.strip, path.read_text(encoding="utf-8-sig").splitlines())
            words = [line for line in lines if line[:1] not in "#%"]
        if odd := next((word for word in words if not are_numbers([word])), ""):
            raise ValueError(f"{odd!r} is not a time, such as 12.5")
        if len(words) != len(scans):
            raise WrongUseError(f"{source} has {len(words)} times for {len(scans)} scans")
        return _seconds(words, _are_nanoseconds(words))


def read_extrinsic(path: str | Path) -> np.ndarray:
    """The pose [3, 4] float64 of the lidar in the camera's frame, from a calibration file of KITTI:
    Tr (odometry), Tr_velo_to_cam (objects), Tr_velo_cam (tracking), or R and T (raw data). Or in
    any frame, from 7 numbers (x y z qx qy qz qw) or 12 (rows of [3, 4]). Raises CloudFileError."""
    path = Path(path)
    with explained(path, "calibration"):
        lines: dict[str, list[str]] = {}
        words = path.read_text(encoding="utf-8-sig").split()
        if len(words) in (7, KITTI) and are_numbers(words):
            own = np.array(words, np.float64)
            if len(words) == KITTI:
                return _matrix(own.reshape(3, 4))
            return np.concatenate([rotations(own[None, 3:])[0], own[:3, None]], axis=1)
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            name, *numbers = line.replace(":", " ", 1).split() or [""]
            lines.setdefault(name, numbers)
        for name in ("Tr", "Tr_velo_to_cam", "Tr_velo_cam"):
            if name in lines:
                return _matrix(np.array(lines[name], np.float64).reshape(3, 4))
        if "R" not in lines or "T" not in lines:
            raise ValueError("it has no line Tr, Tr_velo_to_cam or Tr_velo_cam, nor R and T")
        if "imu_to_velo" in path.name.lower():
            raise ValueError("it is from the IMU to the lidar: give calib_velo_to_cam.txt")
        turned, place = (np.array(lines[name], np.float64) for name in "RT")
        return _matrix(np.column_stack([turned.reshape(3, 3), place.reshape(3)]))


class Trajectory:
    """The poses of a moving sensor at any time: between two poses, positions are linear in time and
    rotations turn evenly about one axis (slerp).

    times: [S] seconds, in any order; the first of equal ones counts. poses: [S, 3, 4] or [S, 4, 4].
    extrinsic: [3, 4] or [4, 4], pose of the sensor in the frame whose poses these are.
    max_gap: seconds; there is no pose between two that are further apart.
    """

    def __init__(
        self,
        times: ArrayLike,
        poses: ArrayLike,
        *,
        extrinsic: ArrayLike | None = None,
        max_gap: float = 0.5,
    ) -> None:
        times, poses = np.asarray(times, np.float64), np.asarray(poses, np.float64)
        shapes = times.shape, poses.shape
        rule = "Trajectory: times must be [S] and poses [S, 3, 4], S > 0"
        good = poses.ndim == 3 and poses.shape[1:] in ((3, 4), (4, 4))
        expect(good and times.shape == (len(poses),) != (0,), rule, shapes)
        expect(bool(np.isfinite(times).all()), "Trajectory: times must be finite", times)
        self.times, first = np.unique(times, return_index=True)
        self.poses, self.max_gap = rigid(poses[first]), float(max_gap)
        self.extrinsic = None if extrinsic is None else _matrix(extrinsic)
        self._turns = quaternions(self.poses[:, :, :3])

    def at(self, times: ArrayLike) -> SensorPoses:
        """The poses of the sensor at times [N] in seconds, in any order.

        Raises WrongUseError if none of the times has a pose.
        """
        times, own = np.asarray(times, np.float64), self.times
        last = len(own) - 1
        before = np.clip(np.searchsorted(own, times, "right") - 1, 0, max(last - 1, 0))
        after = np.minimum(before + 1, last)
        step = own[after] - own[before]
        share = np.divide(times - own[before], step, out=np.zeros_like(times), where=step > 0)
        inside = (times >= own[0]) & (times <= own[-1])  # NaN is not
        in_gap = inside & (step > self.max_gap) & (share > 0) & (share < 1)
        kept = inside & ~in_gap
        if len(times) > 0 and not kept.any():
            raise WrongUseError(self._no_match(times, int(in_gap.sum())))
        poses = np.full((len(times), 3, 4), np.nan)
        one, two, share = before[kept], after[kept], share[kept, None]
        turns = rotations(slerp(self._turns[one], self._turns[two], share))
        places = self.poses[:, :, 3]
        places = places[one] + share * (places[two] - places[one])
        body = np.concatenate([turns, places[:, :, None]], axis=2)
        poses[kept] = body if self.extrinsic is None else joined(body, self.extrinsic)
        return SensorPoses(poses, kept, int((~inside).sum()), int(in_gap.sum()))

    def _no_match(self, times: np.ndarray, in_gap: int) -> str:
        finite = times[np.isfinite(times)]
        low, high = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
        text = (
            f"none of {len(times)} times has a pose: they are from {low:.6f} to {high:.6f} s, the "
            f"trajectory is from {self.times[0]:.6f} to {self.times[-1]:.6f} s"
        )
        text += f", {in_gap} are in gaps above {self.max_gap} s" * bool(in_gap)
        if abs(low - self.times[0]) > 1e8:
            text += ": LAS files may hold adjusted GPS time, GPS time less 1e9 s: add 1e9"
        return text


def joined(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Products [..., 3, 4] of rigid transforms: right is applied first."""
    # Written out: products of BLAS differ from machine to machine in their last bits.
    columns, rows = (np.split(m, 3, axis=at) for m, at in ((left[..., :3], -1), (right, -2)))
    turned = columns[0] * rows[0] + columns[1] * rows[1] + columns[2] * rows[2]
    turned[..., 3] += left[..., 3]
    return turned


def inverse(poses: np.ndarray) -> np.ndarray:
    """The inverses [..., 3, 4] of rigid transforms."""
    turned = np.swapaxes(poses[..., :3], -1, -2)
    back = np.concatenate([turned, np.zeros_like(poses[..., 3:])], axis=-1)
    still = np.concatenate([np.zeros_like(turned), -poses[..., 3:]], axis=-1)
    back[..., 3] = joined(back, still)[..., 3]
    return back


def moved(points: np.ndarray, poses: np.ndarray) -> np.ndarray:
    """Points [..., 3] under one pose [3, 4], or one each [N, 3, 4], in float64."""
    x, y, z = np.moveaxis(points.astype(np.float64), -1, 0)
    rows = np.moveaxis(poses, -2, 0)
    each = [r[..., 0] * x + r[..., 1] * y + r[..., 2] * z + r[..., 3] for r in rows]
    return np.stack(each, axis=-1)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[N] of [N, 4] and [N, 4], added in order."""
    x, y, z, w = (a * b).T
    return x + y + z + w


def from_first(poses: np.ndarray) -> np.ndarray:
    """Poses [S, 3, 4] in the frame of the first one."""
    return joined(inverse(poses[0]), poses)


def rigid(poses: np.ndarray) -> np.ndarray:
    """The poses [S, 3, 4] float64 of [S, 3, 4] or [S, 4, 4]. Raises ValueError unless they are
    finite, with rotations to 1e-3 and a last row 0, 0, 0, 1."""
    poses = np.asarray(poses, np.float64)
    turned = poses[:, :3, :3]
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(turned @ turned.transpose(0, 2, 1) - np.eye(3)).max(axis=(1, 2))
        good = (error < SLACK) & (np.linalg.det(turned) > 0) & np.isfinite(poses).all(axis=(1, 2))
    good &= (poses[:, 3:] == [0, 0, 0, 1]).all(axis=(1, 2))
    if not good.all():
        bad = int(np.argmin(good))
        raise ValueError(f"pose {bad} is not a rigid transform: {poses[bad].tolist()}")
    return np.ascontiguousarray(poses[:, :3])


def rotations(quaternions: np.ndarray) -> np.ndarray:
    """Rotations [N, 3, 3] float64 of quaternions [N, 4] x, y, z, w, of length 1 to 1e-2."""
    with np.errstate(over="ignore"):
        length = np.sqrt(_dot(quaternions, quaternions))
    if not (np.abs(length - 1) < 1e-2).all():
        bad = int(np.argmin(np.abs(length - 1) < 1e-2))
        raise ValueError(f"rotation {bad} is not a unit quaternion: {quaternions[bad].tolist()}")
    x, y, z, w = (quaternions / length[:, None]).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def quaternions(turned: np.ndarray) -> np.ndarray:
    """Quaternions [N, 4] x, y, z, w of rotations [N, 3, 3], from their largest component."""
    r = turned
    # Four times the product of each pair of components.
    a, b, c = r[:, 0, 0], r[:, 1, 1], r[:, 2, 2]
    w, x, y, z = 1 + a + b + c, 1 + a - b - c, 1 - a + b - c, 1 - a - b + c
    xy, xz, yz = (r[:, i, j] + r[:, j, i] for i, j in ((0, 1), (0, 2), (1, 2)))
    zw, yw, xw = (r[:, i, j] - r[:, j, i] for i, j in ((1, 0), (0, 2), (2, 1)))
    rows = [[x, xy, xz, xw], [xy, y, yz, yw], [xz, yz, z, zw], [xw, yw, zw, w]]
    products = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    largest = np.argmax(np.stack([x, y, z, w], axis=-1), axis=1)
    longest = products[np.arange(len(r)), largest]
    return longest / np.sqrt(_dot(longest, longest))[:, None]


def slerp(one: np.ndarray, two: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Quaternions [N, 4] at a share [N, 1] of the shorter arc from one to two."""
    two = np.where(_dot(one, two)[:, None] < 0, -two, two)
    near = _dot(two - one, two - one)[:, None] * 0.5  # 1 - cosine of the angle, at most 1

    def weight(t: np.ndarray) -> np.ndarray:
        """sin(t angle) / sin(angle) as a power series of `near`, the same bits anywhere."""
        out = np.empty_like(t)
        for part, terms in ((near <= 2.0**-7, 8), (near > 2.0**-7, 56)):
            own, square, total = near[part], t[part] * t[part], np.ones(np.count_nonzero(part))
            for k in range(terms, 0, -1):
                total = total * own * (k * k - square) / (k * (2 * k + 1)) + 1
            out[part] = t[part] * total
        return out

    left, right = weight(1 - share), weight(share)
    return left * one + right * two


def _table(path: Path) -> tuple[list[str], bool, list[str], np.ndarray]:
    """The roles of the columns by the header, whether commas separate them, the words of the times,
    and all numbers [n, c] float64. Raises ValueError."""
    roles: list[str] = []
    stamps: list[str] = []
    numbers, count, commas, at = array("d"), 0, False, 0
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        text = line.strip()
        is_comment = text[:1] in "#%"  # also true of an empty line
        text = text.lstrip("#% ") if is_comment else text.partition("#")[0]
        text = text.strip().removesuffix(",")
        if is_comment or not (stamps or are_numbers(re.split(r"[,\s]", text, maxsplit=1)[:1])):
            blanks = re.sub(r"\s+([\[(]\S*[\])])", r"\1", text).split()  # units stay with names
            header = [_role(name) for name in (text.split(",") if "," in text else blanks)]
            if stamps:
                continue
            if not is_comment or set(ORDER[1:]) <= set(header):
                roles = header
            elif re.search(r"\bq?w\W*q?x\W*q?y\W*q?z\b", text.lower()):
                raise ValueError(f"line {number} has w first: name every column, as {NAMES}")
            continue
        words = [word.strip() for word in text.split(",")] if "," in text else text.split()
        if not stamps:
            roles = roles if len(roles) == len(words) else [role for role in roles if role]
            at = next((i for i, role in enumerate(roles) if role in ("time", "ns")), 0)
        elif count != len(words):
            raise ValueError(f"line {number} has {len(words)} columns, not {count}")
        count, commas = len(words), "," in text
        numbers.extend(map(float, words))
        stamps.append(words[min(at, count - 1)])
    if not stamps:
        raise _unknown(path, "no line of numbers")
    return roles, commas, stamps, np.frombuffer(numbers).reshape(-1, count)


def _role(name: str) -> str:
    """The name of ORDER that a column has, "ns" for times in nanoseconds, or ""."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    plain = re.sub(r"[\[(].*?[\])]", "", name).strip("[]() \t").lower()
    if "time" in plain or "stamp" in plain or plain in ("t", "ts"):
        units = [w[0] for w in words if re.fullmatch(r"[mun]s(ecs?)?|(milli|micro|nano).*", w)]
        return "time" if not units else "ns" if units == ["n"] else ""
    if re.fullmatch(r"(q(uat\w*)?([_.].*)?|.*(orientation|rotation).*)[wxyz]", plain):
        return f"q{plain[-1]}"
    return plain[-1] if re.fullmatch(r"([pt](_.*)?|.*(pos|transl).*)?[xyz]", plain) else ""


def _timed(
    path: Path, roles: list[str], commas: bool, stamps: list[str], table: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Times [n] float64 in seconds, and x, y, z, qx, qy, qz, qw [n, 7]. Raises ValueError."""
    count = table.shape[1]
    is_ns = "ns" in roles or _are_nanoseconds(stamps)
    if roles:
        one_each = all(roles.count(role) == 1 for role in ORDER[1:])
        if "qw" not in roles:
            raise _unknown(path, "a header without qw")
        if not one_each or roles.count("time") + roles.count("ns") != 1 or len(roles) != count:
            raise ValueError(f"its header must name {NAMES}, once each, got {count} columns")
        order = [roles.index(role) for role in ORDER[1:]]
    elif commas and (count == EUROC or (count == TUM and is_ns)):
        order, is_ns = EUROC_ORDER, all(map(_is_whole, stamps))
    elif count == TUM:
        order = list(range(1, TUM))
        _warn_if_w_first(path, table[:, 4:])
    else:
        raise _unknown(path, f"{count} numbers per line")
    return _seconds(stamps, is_ns), table[:, order]


def _is_whole(word: str) -> bool:
    return word.lstrip("+-").isdecimal()


def _are_nanoseconds(words: Sequence[str]) -> bool:
    return all(map(_is_whole, words)) and max(abs(int(word)) for word in words) >= NANOSECONDS


def _seconds(words: Sequence[str], is_ns: bool) -> np.ndarray:
    """Times [n] float64 in seconds. Raises ValueError."""
    whole = all(map(_is_whole, words))  # their last digits would be lost in a float
    times: list[float] = [int(word) if whole else float(word) for word in words]
    if (largest := max(map(abs, times))) >= NO_SECONDS and not is_ns:
        units = "are not seconds; nanoseconds are whole, from 1e17 up, or named by a header"
        raise ValueError(f"times up to {largest:g} {units}: convert others to seconds")
    return np.array([time / 10**9 if is_ns else time for time in times])


def _warn_if_w_first(path: Path, turns: np.ndarray) -> None:
    """Warn where quaternions [n, 4] tilt the sensor as x, y, z, w, less as w, x, y, z. A quarter
    of the poses is enough: of a loop that is read in the wrong order some look right."""
    up, other = (rotations(turns[:, order])[:, 2, 2] for order in ([0, 1, 2, 3], [1, 2, 3, 0]))
    if 4 * (tilted := int((up < 0.866).sum())) >= len(up) and (other > 0.5).mean() > 0.9:
        warnings.warn(
            f"{path}: read as x, y, z, w, its quaternions tilt the sensor over 30 degrees in "
            f"{tilted} of {len(up)} poses, read as w, x, y, z they tilt it less: if w is first, put"
            " the line '# time x y z qw qx qy qz' on top ('.. qx qy qz qw' silences this)",
            stacklevel=4,
        )


def _unknown(path: Path, got: str) -> CloudFileError:
    return CloudFileError(f"{path} is not a readable file of poses: it has {got}, but {FORMS}")


def _matrix(pose: ArrayLike) -> np.ndarray:
    pose = np.asarray(pose, np.float64)
    expect(pose.shape in ((3, 4), (4, 4)), "an extrinsic must be [3, 4] or [4, 4]", pose.shape)
    return rigid(pose[None])[0]
