# SPDX-License-Identifier: Apache-2.0
"""What pictures tell beside their pixels."""

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra viz is not installed")

from torchvox import viz

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
