# SPDX-License-Identifier: Apache-2.0
"""Boxes drawn from above."""

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra viz is not installed")

from torchvox import viz
from torchvox.viz.boxes import corners, edges, headings

BOX = (0.0, -10.0, -3.0, 20.0, 10.0, 1.0)


def test_corners_go_counterclockwise_from_the_front_left():
    (four,) = corners(np.array([[1.0, 2.0, 0.0, 4.0, 2.0, 1.5, np.pi / 2]]))
    np.testing.assert_allclose(four, [[0, 4], [0, 0], [2, 0], [2, 4]], atol=1e-12)
    (line,) = headings(np.array([[1.0, 2.0, 0.0, 4.0, 2.0, 1.5, 0.0]]))
    np.testing.assert_allclose(line, [[1, 2], [3.4, 2]])


def test_edges_join_the_corners_of_a_box():
    (lines,) = edges(np.array([[1.0, 2.0, 0.5, 4.0, 2.0, 1.0, np.pi / 2]]))
    corner = {(x, y, z) for x in (0, 2) for y in (0, 4) for z in (0, 1)}
    pairs = {frozenset(map(tuple, np.round(line).astype(int).tolist())) for line in lines[:12]}
    assert len(pairs) == 12 and all(pair <= corner for pair in pairs)
    assert all(sum(np.abs(np.subtract(*pair)) > 0) == 1 for pair in map(tuple, pairs))
    np.testing.assert_allclose(lines[12], [[1, 2, 0.5], [1, 4.4, 0.5]], atol=1e-12)


@pytest.mark.parametrize("count", [0, 1, 70])
def test_a_picture_names_the_classes_that_it_shows(count, tmp_path):
    rng = np.random.default_rng(0)
    xyz = np.concatenate([rng.uniform(BOX[:3], BOX[3:], (500, 3)), np.full((2, 3), np.nan)])
    boxes = np.tile([10.0, 0, -1, 4, 2, 1.5, 0.3, 1, 1], (count, 1))
    labels, scores = np.arange(count) % 2, np.linspace(0.9, 0.1, count)
    figure = viz.boxes_picture(
        xyz, boxes, labels, ["car", "cyclist", "van"], BOX, scores=scores, known=boxes[:1, :7]
    )
    legend = figure.axes[0].get_legend()
    names = [] if legend is None else [text.get_text() for text in legend.get_texts()]
    expected = {0: [], 1: ["labelled", "car (1)"], 70: ["labelled", "car (35)", "cyclist (35)"]}
    assert names == expected[count]
    viz.save(figure, tmp_path / "boxes.png")
    assert (tmp_path / "boxes.png").stat().st_size > 10_000
