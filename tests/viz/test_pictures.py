# SPDX-License-Identifier: Apache-2.0
"""Pictures: what is in front, in which place and color, and the numbers on their axes."""

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra viz is not installed")

from torchvox import viz
from torchvox.viz import Pane, Scale, comparison_picture
from torchvox.viz.comparison import view_image

LOW, HIGH = np.array([600000.0, 0, 10]), np.array([600004.0, 3, 12])
RANGE = (636_000.0, 848_900.0, 0.0, 636_010.0, 848_910.0, 5.0)


@pytest.mark.parametrize("most", [2, 3, 7, 50, 99, 4000])
def test_a_logarithmic_bar_has_two_numbers_at_least_and_no_tick_without(most):
    density = np.ones((10, 10))
    density[0] = most
    figure = viz.density_picture(density, RANGE)
    figure.draw_without_rendering()
    bar = figure.axes[1]
    low, high = bar.get_ylim()
    shown = [t for t in bar.get_yticks() if low <= t <= high * (1 + 1e-9)]
    assert len(shown) >= 2 and len(bar.yaxis.get_minorticklocs()) == 0


def test_axes_have_whole_coordinates():
    figure = viz.density_picture(np.ones((10, 10)), RANGE)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert "636002" in [text.get_text() for text in axes.get_xticklabels()]
    assert axes.yaxis.get_offset_text().get_text() == ""


def test_what_lies_in_front_is_seen():
    xyz = np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 1.5], [0.5, 2.5, 1.5], [3.5, 1.5, 0.5]]) + LOW
    values = np.array([1.0, 2, 3, 4])
    above = view_image(Pane("", xyz, values), LOW, HIGH, 1, 1.0)
    side = view_image(Pane("", xyz, values), LOW, HIGH, 2, 1.0)
    nan = np.nan
    np.testing.assert_array_equal(above, [[2, nan, nan, nan], [nan, nan, nan, 4], [3, *[nan] * 3]])
    np.testing.assert_array_equal(side, [[1, nan, nan, 4], [2, nan, nan, nan]])
    colors = np.tile(np.array([[255, 51, 0]], np.uint8), (4, 1))
    painted = view_image(Pane("", xyz, colors), LOW, HIGH, 2, 1.0)
    np.testing.assert_array_equal(painted[0, 0], [1, 0.2, 0])
    assert (painted[1, 1] < 0.05).all()  # the ground


@pytest.mark.parametrize("scale", [Scale("z  [ft]", 10, 12), None])
def test_both_clouds_share_range_and_colors(scale):
    rng = np.random.default_rng(0)
    panes = []
    for count in (500, 50):
        xyz = rng.uniform(LOW, HIGH, (count, 3))
        panes.append(
            Pane(str(count), xyz, np.full((count, 3), 9, np.uint8) if scale is None else xyz[:, 2])
        )
    figure = comparison_picture(panes, "a", "10x", scale, np.array([1, 4, 5]), unit="ft")
    views, histogram = figure.axes[:4], figure.axes[4 if scale is None else 5]
    assert {ax.get_xlim() for ax in views} == {views[0].get_xlim()}
    assert [ax.get_ylabel() for ax in views] == ["y  [ft]", "y  [ft]", "z  [ft]", "z  [ft]"]
    if scale is not None:
        assert {ax.images[0].get_clim() for ax in views} == {(10, 12)}
        histogram = next(ax for ax in figure.axes if ax.get_xlabel() == "points per voxel")
    assert sum(bar.get_height() for bar in histogram.patches) == 3
    assert histogram.get_title(loc="left").startswith("3 voxels, 3.3 points per voxel")


def test_one_point_is_a_picture():
    xyz = np.array([[1.0, 2, 3]])
    figure = comparison_picture([Pane("a", xyz, xyz[:, 2])], "a", scale=Scale("z", 3, 4))
    assert len(figure.axes) == 3
