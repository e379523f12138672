# SPDX-License-Identifier: Apache-2.0
"""The generated scan is deterministic and looks like one of a 64-beam lidar."""

import numpy as np
import pytest

from torchvox.data.raycast import Box, Cylinder, Ellipsoid
from torchvox.data.scene import generate_scan


@pytest.fixture(scope="module")
def scan():
    return generate_scan(0)


def test_equal_seeds_give_equal_bits_and_others_another_street(scan):
    np.testing.assert_array_equal(generate_scan(0).points, scan.points)
    assert generate_scan(1).points.shape != scan.points.shape


def test_it_has_about_100_thousand_finite_points(scan):
    assert 90_000 < len(scan) < 120_000
    assert scan.finite().all()
    assert scan.points.dtype == np.float32


def test_intensities_lie_between_0_and_1(scan):
    intensity = scan.column("intensity")
    assert intensity.min() >= 0 and intensity.max() <= 1
    assert len(np.unique(intensity)) > 50


def test_its_points_lie_on_64_cones(scan):
    xyz = scan.points[:, :3].astype(np.float64)
    elevation = np.rad2deg(np.arctan2(xyz[:, 2], np.hypot(xyz[:, 0], xyz[:, 1])))
    assert elevation.min() > -26 and elevation.max() < 3
    steps = np.diff(np.sort(elevation))
    assert 50 <= (steps > 0.1).sum() + 1 <= 64


def test_the_road_is_about_1_73_m_below_the_sensor(scan):
    near = np.hypot(scan.points[:, 0], scan.points[:, 1]) < 6
    assert abs(np.median(scan.points[near, 2]) + 1.73) < 0.05


@pytest.mark.parametrize(
    ("thing", "distance"),
    [
        (Box(10, 0, -1, 2, 1, 2, reflectance=1), 8.0),
        (Box(10, 0, -1, 2, 1, 2, np.pi / 2, reflectance=1), 9.0),
        (Cylinder(10, 0, -1, 0.5, 2, reflectance=1), 9.5),
        (Ellipsoid(10, 0, 0, 3, 1, reflectance=1), 7.0),
    ],
)
def test_a_ray_meets_a_thing_where_geometry_says(thing, distance):
    rays = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    with np.errstate(divide="ignore", invalid="ignore"):
        t, cosine = thing.hit(np.zeros(3), rays)
    assert t[0] == pytest.approx(distance)
    assert np.isinf(t[1:]).all()
    assert np.broadcast_to(cosine, t.shape)[0] == pytest.approx(1.0)


def test_a_heading_turns_counterclockwise():
    plate = Box(10, 0, -1, 2, 1e-9, 2, np.pi / 4, reflectance=1)  # along y = x - 10
    rays = np.array([[1.0, 0.1, 0.0], [1.0, -0.1, 0.0]]) / np.hypot(1.0, 0.1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t, _ = plate.hit(np.zeros(3), rays)
    assert t * rays[:, 0] == pytest.approx([10 / 0.9, 10 / 1.1])
