# SPDX-License-Identifier: Apache-2.0
"""Poses of scans from three formats, and a moving sensor at the times of points."""

import math
from pathlib import Path

import numpy as np
import pytest

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.io import Trajectory, read_extrinsic, read_poses, read_times

AXIS = np.array([0.6, 0.0, 0.8])
ARM = np.array([[0.0, 0, 1, 0.5], [1, 0, 0, 0], [0, 1, 0, -0.2]])


def turn(angle, axis=AXIS):
    """Rodrigues' rotation about an axis."""
    x, y, z = axis
    across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * across + (1 - math.cos(angle)) * across @ across


def posed(angle, place):
    return np.column_stack([turn(angle), place])


def square(pose):
    return np.vstack([pose, [0, 0, 0, 1]])


POSES = np.stack([posed(0.4 * i, [i, -2.0 * i, 1e6]) for i in range(9)])
TIMES = 1.7e9 + 0.1 * np.arange(9)
LINES = [" ".join(f"{v:.17g}" for v in pose.ravel()) for pose in POSES]


@pytest.mark.parametrize("form", ["kitti.txt", "3x4.npy", "4x4.npy"])
def test_matrices_may_be_moved_by_an_extrinsic_and_to_the_first_frame(form, tmp_path):
    path = tmp_path / form
    if form == "kitti.txt":
        path.write_text("\n".join(LINES) + "\n")
    else:
        np.save(path, POSES if form == "3x4.npy" else [square(pose) for pose in POSES])
    actual = read_poses(path, count=9)
    assert actual.matrices.shape == (9, 3, 4) and actual.matrices.dtype == np.float64
    assert np.abs(actual.matrices - POSES).max() < 1e-15 and actual.times is None
    moved = read_poses(path, ARM, relative=True).matrices
    first = np.linalg.inv(square(POSES[0]) @ square(ARM))
    for pose, expected in zip(moved, POSES, strict=True):
        assert np.allclose(square(pose), first @ square(expected) @ square(ARM), atol=1e-9)


EUROC = "p_RS_R_x [m], p_RS_R_y [m], p_RS_R_z [m], q_RS_w [], q_RS_x [], q_RS_y [], q_RS_z []"
MORE = "".join(f", {kind}_{axis}" for kind in ("v", "b_w", "b_a") for axis in "xyz")
START, EARLY = 1403636579763555584, 7000000001


def written(order, comma=",", nanoseconds=True, more=0, start=START):
    """Lines of POSES with times, and quaternions of either sign with components in this order."""
    lines = []
    for i, place in enumerate(POSES[:, :, 3]):
        q = dict(zip("xyzw", [*(math.sin(0.2 * i) * AXIS), math.cos(0.2 * i)], strict=True))
        time = start + 50000000 * i
        time = time if nanoseconds else time / 10**9
        turned = [float(q[name]) * (-1) ** i for name in order]
        lines.append(comma.join(map(str, [time, *map(float, place), *turned, *[0.5] * more])))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        f"#timestamp, {EUROC}{MORE}\n" + written("wxyz", more=9),
        written("wxyz"),
        written("wxyz", ", ", more=9),
        written("wxyz", more=9, nanoseconds=False),
        written("xyzw", ", ", False).replace("\n", ",\n"),
        f"# timestamp [ns], {EUROC}\r\n" + written("wxyz", start=EARLY),
        "# in meters: [t x y z qw qx qy qz]\n" + written("wxyz", " ", False),
        "timestamp tx ty tz qx qy qz qw\n" + written("xyzw", " ", False),
        "timeNs,x,y,z,qw,qx,qy,qz\n" + written("wxyz", start=EARLY),
        "# time x y z qx qy qz qw\n" + written("xyzw", " ", False),
        "# poses of row x y z in the world frame\n" + written("xyzw", " ", False),
        "a,b,c,tx,e,f,g,ty,i,j,k,tz\n" + "\n".join(LINES).replace(" ", ","),
        "\n".join(f"{line} 0 0 0 1" for line in LINES),
    ],
)
def test_content_says_how_poses_are_written(text, tmp_path):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8-sig")
    actual = read_poses(tmp_path / "a.csv", count=9)
    assert np.abs(actual.matrices - POSES).max() < 1e-15
    if actual.times is not None:
        start = EARLY if str(EARLY) in text else START
        assert actual.times.tolist() == [(start + 50000000 * i) / 10**9 for i in range(9)]


def test_an_extrinsic_is_a_line_of_a_calibration(tmp_path):
    numbers = " ".join(map(str, ARM.ravel()))
    turned, place = (" ".join(map(str, part.ravel())) for part in np.split(ARM, [3], axis=1))
    raw = f"calib_time: 15-Mar-2012 11:37:16\nR: {turned}\nT: {place}\ndelta_f: 0 0\n"
    path = tmp_path / "simulated.txt"
    for text in (
        f"P0: {LINES[0]}\nTr_imu: {LINES[1]}\nTr: {numbers}\n\n",
        f"Tr_velo_to_cam: {numbers}\n",
        f"R_rect 1 0 0 0 1 0 0 0 1\nTr_velo_cam {numbers}\nTr_imu_velo {LINES[1]}\n",
        raw,
    ):
        path.write_text(text)
        assert (read_extrinsic(path) == ARM).all()
    for name, text in (("calib_imu_to_velo.txt", raw), ("a", "P0: 1 2\n"), ("b", "R: 1\nT: 1\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(CloudFileError, match=r"not a readable calibration: .*(Tr|IMU|shape)"):
            read_extrinsic(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it has no line of numbers, but poses are lines of 8"),
        ("time,x,y,z,q0,q1,q2,q3\n" + written("wxyz"), "a header without qw, .*EuRoC CSV"),
        ("time x y z roll pitch yaw\n1 2 3 4 5 6 7\n", "a header without qw"),
        ("time (microseconds),x,y,z,qw,qx,qy,qz\n" + written("wxyz"), "must name .*time_ns"),
        ("# time, place, rotation (w, x, y, z)\n" + written("wxyz", " ", False), "w first"),
        (written("xyzw", " ").replace("1403636", "1403"), "are not seconds"),
        ("7 " + LINES[0] + " 0 0 0 1\n", "it has 17 numbers per line, but"),
        ("1 2 3\n", r"it has 3 numbers .*\(TUM: .* \(KITTI: .*\[4, 4\]"),
        (f"{LINES[0]}\n{LINES[1]} 7\n", "columns"),
        (f"{LINES[0]}\n{LINES[1]} seven\n", "columns|convert"),
        ("1 0 0 0 0 0 0 0\n", "rotation 0 is not a unit quaternion"),
        ("1 nan 0 0 0 0 0 1\n", "pose 0 is not a rigid transform"),
        ("nan 0 0 0 0 0 0 1\n", "times that are not numbers"),
        (f"{LINES[0]}\n{' 2 0 0 0 0 2 0 0 0 0 2 0'}\n", "pose 1 is not a rigid transform"),
        ("1 0 0 0 0 1 0 0 0 0 -1 0\n", "pose 0 is not a rigid"),
    ],
)
def test_a_file_that_holds_no_poses_is_refused(text, words, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(CloudFileError, match=f"{path} is not a readable file of poses: .*{words}"):
        read_poses(path)


FIRST = "the sensor over 30 degrees in {} of 9 poses, read as w, x, y, z they tilt it less"


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ("0 0 {c} {s}", None),  # x, y, z, w: a level sensor that turns about z
        ("{c} 0 0 {s}", FIRST.format(7)),  # w first, a whole turn
        ("0.5 0 0 0.8660254", FIRST.format(9)),  # w first, always heading 120 degrees
        ("1 0 0 0", FIRST.format(9)),
        ("-1 0 0 0", FIRST.format(9)),
        ("0.5 -0.5 0.5 -0.5", None),  # a camera's: level in neither order
        ("0.70710678 0.70710678 0 0", None),  # upside down in both
    ],
)
def test_quaternions_with_w_first_are_noticed(turns, words, tmp_path, recwarn):
    lines = [
        f"{i} 0 0 0 {turns.format(c=math.cos(0.7 * i / 2), s=math.sin(0.7 * i / 2))}\n"
        for i in range(9)
    ]
    (tmp_path / "a.txt").write_text("".join(lines))
    read_poses(tmp_path / "a.txt")
    assert [words in str(each.message) for each in recwarn] == [True] * (words is not None)
    recwarn.clear()
    for names in ("qx qy qz qw", "qw qx qy qz"):
        (tmp_path / "a.txt").write_text(f"# time x y z {names}\n" + "".join(lines))
        read_poses(tmp_path / "a.txt")
    assert len(recwarn) == 0
    (tmp_path / "transforms.json").write_text('{"frames": [\n0.5\n]}')
    with pytest.raises(CloudFileError, match="JSON, but poses are lines"):
        read_poses(tmp_path / "transforms.json")


@pytest.mark.parametrize(
    ("text", "names", "result"),
    [
        ("# KITTI\n0.000000e+00\n\n1.036224e-01\n", "ab", [0, 0.1036224]),
        ("1403636579763555584\n", "a", [1403636579.7635555]),
        (None, ["12.500.bin", "scan-13.pcd", "a_7.pcd.bin"], [12.5, 13, 7]),
        (None, ["1403636579763555584.bin", "1403636579863555584.las"],
         [1403636579.7635555, 1403636579.8635555]),
        (None, ["1403636579_763555584.bin"], [1403636579.7635555]),
        (None, ["12.5.bin", "b.bin"], "'b' is not a time"),
        (None, ["1403636579763555.bin"], "not seconds; nanoseconds are"),
        (None, ["000012.bin"], "'000012' ends in a frame number"),
        (None, ["2011-09-26_13-02-25_1.5.bin"], "25_1.5' ends in a frame number or a date"),
        (None, ["2011-09-26_1403636579.05.bin", "0.05.bin"], [1403636579.05, 0.05]),
        ("1\n2\n", "abc", "2 times for 3 scans"),
        ("1\n2 3\n", "ab", "'2 3' is not a time"),
    ],
)  # fmt: skip
def test_scans_have_times_in_a_file_or_in_their_names(text, names, result, tmp_path):
    source = "names" if text is None else tmp_path / "times.txt"
    if text is not None:
        source.write_text(text)
    if isinstance(result, str):
        with pytest.raises(ValueError, match=result):
            read_times(source, [Path(name) for name in names])
    else:
        actual = read_times(source, [Path(name) for name in names])
        assert actual.dtype == np.float64 and np.abs(actual - result).max() < 1e-6


def test_other_counts_and_arrays_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(LINES))
    for name, words in (("a.txt", "a.txt has 9 poses for 8 scans"), ("b.txt", "No such file")):
        with pytest.raises(CloudFileError, match=words):
            read_poses(tmp_path / name, count=8)
    scaled = np.stack([square(pose) * [[1], [1], [1], [2]] for pose in POSES])
    for array, words in (
        (POSES[:, :2], r"floats, got \[9, 2, 4\] float64"),
        (POSES[:0], "no poses"),
        (scaled, "pose 0 is not a rigid transform"),
    ):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(CloudFileError, match=words):
            read_poses(tmp_path / "a.npy")
    for arguments, words in (
        ((TIMES[:8], POSES), r"poses \[S, 3, 4\], S > 0, got"),
        ((TIMES * np.nan, POSES), "times must be finite"),
        ((TIMES[:0], POSES[:0]), "S > 0"),
    ):
        with pytest.raises(ValueError, match=words):
            Trajectory(*arguments)


def test_a_turning_sensor_turns_its_arm():
    rng = np.random.default_rng(0)
    order = rng.permutation(9)  # the log is not in order, nor are the points
    times = TIMES[0] + rng.random(500) * 0.8
    # The second of equal times does not count.
    moving = Trajectory([*TIMES[order], TIMES[3]], [*POSES[order], POSES[0]], extrinsic=ARM)
    actual = moving.at(times)
    assert actual.kept.all() and actual.outside == actual.in_gap == 0
    share = (times - TIMES[0]) / 0.1
    for i in range(500):
        body = square(posed(0.4 * share[i], [share[i], -2 * share[i], 1e6]))
        # A float64 of seconds since 1970 is good to 2e-7 s, 2e-6 of a step of 0.1 s.
        assert np.allclose(square(actual.poses[i]), body @ square(ARM), rtol=0, atol=2e-5)
    plain = Trajectory(TIMES, POSES).at(times).poses
    arms = actual.poses[:, :, 3] - plain[:, :, 3]
    assert np.abs(np.linalg.norm(arms, axis=1) - np.linalg.norm(ARM[:, 3])).max() < 1e-9
    assert np.ptp(arms, axis=0).max() > 0.5  # an arm that is not turned would be the same for all
    exact = Trajectory(TIMES, POSES).at(TIMES).poses
    assert np.abs(exact - POSES).max() < 1e-9


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1.0, 3.0, math.pi - 1e-9])
@pytest.mark.parametrize("base", [0.0, 2.5, math.pi])
def test_halfway_is_half_the_turn(base, angle):
    poses = [posed(base, [0, 0, 0]), posed(base + angle, [2, 4, 6])]
    actual = Trajectory([0, 1], poses, max_gap=1).at([0.25, 0.5]).poses
    for pose, share in zip(actual, (0.25, 0.5), strict=True):
        expected = posed(base + share * angle, [2 * share, 4 * share, 6 * share])
        assert np.allclose(pose, expected, rtol=0, atol=1e-8)


def test_drops_add_up():
    own = np.array([0.0, 0.4, 0.8, 2.0, 2.5])  # a gap from 0.8 to 2
    moving = Trajectory(own, POSES[:5], max_gap=0.5)
    times = np.array([2.6, -0.1, 0.0, 1.0, 0.8, 2.0, 2.5, np.nan, 0.1, 1.99, np.inf])
    actual = moving.at(times)
    assert actual.kept.tolist() == [v in (0.0, 0.8, 2.0, 2.5, 0.1) for v in times]
    assert (actual.outside, actual.in_gap) == (4, 2)
    assert actual.outside + actual.in_gap + actual.kept.sum() == len(times)
    assert np.isnan(actual.poses).all(axis=(1, 2)).tolist() == (~actual.kept).tolist()
    assert np.allclose(actual.poses[[2, 4, 5, 6]], POSES[[0, 2, 3, 4]], atol=1e-9)
    assert moving.at([]).poses.shape == (0, 3, 4)
    single = Trajectory([1.0], POSES[:1]).at([1.0, 1.1])
    assert single.kept.tolist() == [True, False] and np.allclose(single.poses[0], POSES[0])


def test_an_error_without_any_match_has_both_ranges():
    moving = Trajectory(TIMES, POSES)
    ranges = r"are from 70{8}\.0+ to 70{8}\.5\d* s, .* from 170{8}\.0+ to 170{8}\.8\d* s"
    with pytest.raises(WrongUseError, match=f"none of 6 times .* {ranges}: .* less 1e9 s"):
        moving.at(TIMES[:6] - 1e9)
    with pytest.raises(WrongUseError, match="none of 9 times has a pose") as error:
        moving.at(TIMES + 5)
    assert "1e9" not in str(error.value)
    with pytest.raises(WrongUseError, match=r"1 are in gaps above 0\.05 s"):
        Trajectory(TIMES, POSES, max_gap=0.05).at([TIMES[0] + 0.03])
