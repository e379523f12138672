# SPDX-License-Identifier: Apache-2.0
"""The page that shows clouds: what is in it, and what a browser makes of it."""

import base64
import io
import re
import zlib

import numpy as np
import pytest

pytest.importorskip("k3d", reason="the extra view is not installed")

from torchvox._errors import WrongUseError
from torchvox.viz import Pane, Scale, viewer, viewer_page


def cube(center=(0, 0, 0), color=(255, 0, 0), count=20_000):
    xyz = np.random.default_rng(0).uniform(-1, 1, (count, 3)) + center
    return xyz, np.tile(np.array(color, np.uint8), (count, 1))


def positions(page, pane):
    msgpack = pytest.importorskip("msgpack")
    text = re.search(rf'id="data{pane}">([^<]*)<', page.decode())[1]
    points = msgpack.unpackb(zlib.decompress(base64.b64decode(text)))["objects"][0]["positions"]
    data = points["data"] if "data" in points else zlib.decompress(points["compressed_data"])
    return np.frombuffer(data, np.float32).reshape(-1, 3)


def test_coordinates_are_centered_and_within_a_step():
    xyz = np.array([[637000.0, 8484000.125, 3], [637100.3, 8484050.25, 9], [637007.7, 8484001, 4]])
    page = viewer_page([Pane("a", xyz[:2], xyz[:2, 2]), Pane("b", xyz[2:], xyz[2:, 2])], "", HEIGHT)
    got = np.concatenate([positions(page, 0), positions(page, 1)])
    wanted = xyz - (xyz[0] + xyz[1]) / 2
    assert np.abs(got - wanted).max() <= 100.3 / 65536 / 2


HEIGHT = Scale("z  [m]", 0, 10)


def test_colors_span_the_scale():
    values = np.array([-5.0, 0, 10, 99, np.nan])
    painted = viewer._painted(values, HEIGHT)
    assert (painted[0] == painted[1]).all() and (painted[2] == painted[3]).all()
    assert painted[2].tolist() == [253, 231, 37]  # where viridis ends
    assert painted[4].tolist() == [0x8B, 0x98, 0xA9]


def test_points_are_spread_over_space():
    xyz = np.random.default_rng(0).uniform(0, 8, (8000, 3))
    rows = viewer.spread(xyz, 800)
    assert len(rows) == 800 and (np.diff(rows) > 0).all()
    cells = (xyz // 4).astype(int) @ [4, 2, 1]
    all_, kept = np.bincount(cells), np.bincount(cells[rows])
    assert np.abs(kept - all_ / 10).max() <= 1  # each eighth of space is one stretch of the order
    assert viewer.spread(xyz[:5], 9).tolist() == [0, 1, 2, 3, 4]
    assert viewer.spread(xyz[:5], 0).tolist() == []


def test_a_page_that_is_too_large_names_what_fits(monkeypatch):
    xyz, colors = cube()
    size = len(viewer_page([Pane("a", xyz, colors)], ""))
    monkeypatch.setattr(viewer, "LIMIT", size - 50_000)
    with pytest.raises(WrongUseError, match="browsers take") as raised:
        viewer_page([Pane("a", xyz, colors)], "")
    fitting = int(re.search(r"--max-points (\d+) fits", str(raised.value))[1])
    assert fitting > 10_000
    viewer_page([Pane("a", xyz[:fitting], colors[:fitting])], "")


def pixels(tab, pane=0):
    image = pytest.importorskip("matplotlib.image", reason="the extra viz is not installed")
    tab.wait_for_timeout(400)
    shot = tab.locator(".pane").nth(pane).screenshot()
    whole = np.rint(255 * image.imread(io.BytesIO(shot))[..., :3]).astype(int)
    return whole[:300, :300]  # less the axes, which have colors of their own


def lit(image):
    return np.abs(image - image[2, 2]).max(axis=2) > 40


def test_two_panes_turn_together_offline(opened):
    panes = [Pane("<script>alert(1)</script>.las: 7 points", *cube()), Pane("b.las", *cube())]
    tab, requests, spoken = opened(viewer_page(panes, "<i>4.2x fewer"))
    assert tab.title() == "ready"
    state = tab.evaluate("({...window.torchvox})")
    assert (state["ready"], state["numPoints"], state["error"]) == (True, 40_000, None)
    assert "<script>alert(1)</script>.las" in tab.inner_text("main")
    assert "<i>4.2x fewer" in tab.inner_text("header")
    first = pixels(tab)
    assert lit(first).mean() > 0.01
    red, *others = first[lit(first)].T
    assert red.max() == 255 and np.max(others) < 20
    box = tab.locator(".pane").nth(1).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + 60, y - 40, steps=4)
    tab.mouse.up()
    turned = pixels(tab)
    assert np.abs(turned - first).max() > 100
    assert np.array_equal(turned, pixels(tab, 1))
    tab.evaluate("window.torchvox.setCamera([0, -9, 0, 0, 0, 0, 0, 0, 1])")
    assert np.abs(pixels(tab) - turned).max() > 100
    assert all(url.startswith(("file:", "blob:")) for url in requests), requests
    assert spoken == []


def test_a_browser_without_webgl2_reads_a_sentence(opened):
    xyz, colors = cube(count=10)
    without = "HTMLCanvasElement.prototype.getContext = () => null"
    tab, _, _ = opened(viewer_page([Pane("a", xyz, colors)], "a"), without)
    assert tab.title().startswith("error: this browser shows no WebGL2")
    assert "no WebGL2" in tab.inner_text("header")
    assert "no WebGL2" in tab.evaluate("window.torchvox.error")
