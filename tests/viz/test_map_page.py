# SPDX-License-Identifier: Apache-2.0
"""The page that shows a map: what is in it, and what a browser makes of it."""

import io

import numpy as np
import pytest

from torchvox._errors import TorchvoxError
from torchvox.viz import map_page

PLACES = np.array([[5, -3, 2], [6, -3, 2], [5, -2, 9], [-40, 70, 4]], np.int32)
LOGODDS = np.array([0.5, 1, 3.5, -2], np.float32)


def page(**options):
    return map_page(PLACES, LOGODDS, 0.5, (1.0, 0.0, -1.0), "<b>a & b", **options)


def test_above_the_limit_the_page_has_every_kth_voxel_and_says_so(monkeypatch):
    import sys

    monkeypatch.setattr(sys.modules["torchvox.viz.map_page"], "MAX_VOXELS", 2)
    assert b"4 free voxels of 0.5 m, of which the page has one in 2: 2" in page(kind="free")
    monkeypatch.undo()
    assert b'4 free voxels of 0.5 m"' in page(kind="free")
    with pytest.raises(TorchvoxError, match="no occupied voxel"):
        map_page(PLACES[:0], LOGODDS[:0], 0.5, (0, 0, 0), "")


def test_a_browser_shows_cuts_and_picks_voxels_offline(opened):
    path = np.array([[0, 0, 0], [1, 1, 1.0]])
    tab, requests, spoken = opened(page(path=path, kind="observed"))
    assert tab.title() == "ready", tab.title()
    held = tab.evaluate("({...window.torchvox})")
    assert (held["ready"], held["numVoxels"], held["numShown"]) == (True, 4, 4)
    assert "<b>a & b" in tab.inner_text("header") and "white: the sensor" in tab.inner_text(
        "header"
    )
    assert "4 observed voxels of 0.5 m; 4 shown" in tab.inner_text("#counts")

    def slide(name, value):
        tab.evaluate(
            "([id, value]) => { const one = document.getElementById(id); one.value = value;"
            "one.dispatchEvent(new Event('input', { bubbles: true })); }",
            [name, value],
        )
        return tab.evaluate("window.torchvox.numShown")

    assert slide("threshold", 1024) == 2 and "2 shown" in tab.inner_text("#counts")
    assert "1.00 (73 %)" in tab.inner_text("form")
    assert slide("threshold", -2048) == 4 and slide("low", 2) == 2 and slide("high", 6) == 1
    assert tab.inner_text("#lowText") == "1.25 m"  # the center of voxel 4 in z
    assert slide("low", 0) == 3 and slide("high", 7) == 4

    # Look at the highest voxel from above: it is under the middle of the canvas.
    middle = (PLACES.min(0) + PLACES.max(0) + 1) / 2
    target = ((PLACES[2] + 0.5 - middle) * 0.5).tolist()
    camera = {"target": target, "pitch": 1.57, "distance": 9}
    tab.evaluate("(camera) => window.torchvox.setCamera(camera)", camera)
    box = tab.locator("canvas").bounding_box()
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    picked = tab.evaluate("window.torchvox.picked")
    assert picked == {
        "row": 2,
        "indices": [5, -2, 9],
        "center": [3.75, -0.75, 3.75],
        "logodds": 3.5,
    }
    assert "voxel 5, -2, 9 at 3.75, -0.75, 3.75 m" in tab.inner_text("#picked")
    assert tab.evaluate("window.torchvox.camera.distance") == 9
    image = pytest.importorskip("matplotlib.image", reason="the extra viz is not installed")
    shown = 255 * image.imread(io.BytesIO(tab.locator("canvas").screenshot()))[..., :3]
    edge = 1.4 * (box["height"] / 2) * 0.5 / 9  # of the square, which the pick has marked
    marked = np.abs(shown - [255, 176, 0]).max(axis=2) < 3
    assert 0.6 * edge**2 < marked.sum() < 1.1 * edge**2
    assert tab.evaluate("window.torchvox.pick(3, 3)") is None
    tab.mouse.wheel(0, 200)
    tab.wait_for_function("window.torchvox.camera.distance > 9")
    yaw = tab.evaluate("window.torchvox.camera.yaw")
    tab.mouse.move(box["x"] + 200, box["y"] + 200)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 240, box["y"] + 200, steps=2)
    tab.mouse.up()
    assert tab.evaluate("window.torchvox.camera.yaw") == pytest.approx(yaw - 0.2)
    assert all(url.startswith(("file:", "blob:")) for url in requests), requests
    assert spoken == []


def test_a_browser_without_webgl2_reads_a_sentence(opened):
    tab, _, _ = opened(page(), "HTMLCanvasElement.prototype.getContext = () => null")
    assert tab.title().startswith("error: this browser shows no WebGL2")
    assert "no WebGL2" in tab.evaluate("window.torchvox.error")
