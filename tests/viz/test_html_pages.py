# SPDX-License-Identifier: Apache-2.0
"""The pages of clouds and maps: what is in them, and what a browser makes of it."""

import base64
import io
import re
import shutil
import sys
import zlib

import numpy as np
import pytest

from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.viz import Pane, Scale, map_page, viewer, viewer_page

BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
SOFTWARE = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
HEIGHT = Scale("z  [m]", 0, 10)
PLACES = np.array([[5, -3, 2], [6, -3, 2], [5, -2, 9], [-40, 70, 4]], np.int32)
LOGODDS = np.array([0.5, 1, 3.5, -2], np.float32)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as play:
        process = play.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE)
        yield process
        process.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page: its tab, the requests that it made, and what its console said."""
    context = browser.new_context(viewport={"width": 800, "height": 500}, offline=True)

    def open_(page, script=""):
        (tmp_path / "a.html").write_bytes(page)
        tab = context.new_page()
        requests, messages = [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: messages.append((message.type, message.text)))
        tab.on("pageerror", lambda error: messages.append(("error", str(error))))
        tab.add_init_script(script)
        tab.goto(f"file://{tmp_path / 'a.html'}")
        tab.wait_for_function("document.title != 'loading'", timeout=60_000)
        return tab, requests, [text for kind, text in messages if kind in ("error", "warning")]

    yield open_
    context.close()


def cube(count=20_000):
    """Points and their color, red."""
    xyz = np.random.default_rng(0).uniform(-1, 1, (count, 3))
    return xyz, np.tile(np.array([255, 0, 0], np.uint8), (count, 1))


def map_of_four(**options):
    return map_page(PLACES, LOGODDS, 0.5, (1.0, 0.0, -1.0), "<b>a & b", **options)


def read_png(shot):
    image = pytest.importorskip("matplotlib.image", reason="the extra viz is not installed")
    return 255 * image.imread(io.BytesIO(shot))[..., :3]


# ---- clouds -------------------------------------------------------------------------------------


def positions(page, pane):
    data = re.findall(r'data-name="indices">([^<]*)<', page.decode())[pane]
    step = float(re.search(r'"size": ([^,]*),', page.decode())[1])
    return np.frombuffer(zlib.decompress(base64.b64decode(data)), "<i4").reshape(-1, 3) * step


def test_coordinates_are_centered_and_within_a_step():
    xyz = np.array([[637000.0, 8484000.125, 3], [637100.3, 8484050.25, 9], [637007.7, 8484001, 4]])
    page = viewer_page([Pane("a", xyz[:2], xyz[:2, 2]), Pane("b", xyz[2:], xyz[2:, 2])], "", HEIGHT)
    got = np.concatenate([positions(page, 0), positions(page, 1)])
    expected = xyz - (xyz[0] + xyz[1]) / 2
    assert np.abs(got - expected).max() <= 100.3 / 65536 / 2


def test_colors_span_the_scale():
    painted = viewer._painted(np.array([-5.0, 0, 10, 99, np.nan]), HEIGHT)
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
    tab.wait_for_timeout(400)
    whole = np.rint(read_png(tab.locator(".pane").nth(pane).screenshot())).astype(int)
    return whole[:300, :300]  # without the axes


def test_two_panes_turn_together_offline(opened):
    panes = [Pane("<script>alert(1)</script>.las: 7 points", *cube()), Pane("b.las", *cube())]
    tab, requests, messages = opened(viewer_page(panes, "<i>4.2x fewer"))
    assert tab.title() == "ready"
    state = tab.evaluate("({...window.torchvox})")
    assert (state["ready"], state["numPoints"], state["error"]) == (True, 40_000, None)
    assert "<script>alert(1)</script>.las" in tab.inner_text("main")
    assert "<i>4.2x fewer" in tab.inner_text("header")
    first = pixels(tab)
    lit = np.abs(first - first[2, 2]).max(axis=2) > 40
    assert lit.mean() > 0.01
    red, *others = first[lit].T
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
    tab.evaluate("window.torchvox.setCamera({ yaw: 0, pitch: 0.1 })")
    assert np.abs(pixels(tab) - turned).max() > 100
    assert all(url.startswith(("file:", "blob:")) for url in requests), requests
    assert messages == []


def test_a_browser_shows_boxes_around_points(opened):
    boxes = np.array([[0, 0, 0, 2.0, 2.0, 2.0, 0.5]])
    panes = [Pane("a", *cube(200))]
    before = pixels(opened(viewer_page(panes, ""))[0])
    tab, _, messages = opened(viewer_page(panes, "", None, boxes, ["car"]))
    assert messages == [] and "car (1)" in tab.inner_text("header")
    orange = np.abs(pixels(tab) - [0xFF, 0xB4, 0x54]).max(axis=2) < 3
    assert orange.sum() > 50 and not (np.abs(before - [0xFF, 0xB4, 0x54]).max(axis=2) < 3).any()


# ---- maps ---------------------------------------------------------------------------------------


def test_above_the_limit_the_page_has_every_kth_voxel_and_says_so(monkeypatch):
    assert b'4 free voxels of 0.5 m"' in map_of_four(kind="free")
    monkeypatch.setattr(sys.modules["torchvox.viz.map_page"], "MAX_VOXELS", 2)
    words = b"4 free voxels of 0.5 m, of which the page has one in 2: 2"
    assert words in map_of_four(kind="free")
    with pytest.raises(TorchvoxError, match="no occupied voxel"):
        map_page(PLACES[:0], LOGODDS[:0], 0.5, (0, 0, 0), "")


def test_a_browser_shows_cuts_and_picks_voxels_offline(opened):
    path = np.array([[0, 0, 0], [1, 1, 1.0]])
    tab, requests, messages = opened(map_of_four(path=path, kind="observed"))
    assert tab.title() == "ready", tab.title()
    state = tab.evaluate("({...window.torchvox})")
    assert (state["ready"], state["numPoints"], state["numShown"]) == (True, 4, 4)
    header = tab.inner_text("header")
    assert "<b>a & b" in header and "white: the sensor" in header
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
    place = {"indices": [5, -2, 9], "center": [3.75, -0.75, 3.75]}
    assert picked == {"row": 2, **place, "logodds": 3.5}
    assert "voxel 5, -2, 9 at 3.75, -0.75, 3.75 m" in tab.inner_text("#picked")
    assert tab.evaluate("window.torchvox.camera.distance") == 9
    image = read_png(tab.locator("canvas").screenshot())
    edge = 1.4 * (box["height"] / 2) * 0.5 / 9  # of the square, which the pick has marked
    marked = np.abs(image - [255, 176, 0]).max(axis=2) < 3
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
    assert messages == []


def test_a_browser_without_webgl2_reads_a_sentence(opened):
    tab, _, _ = opened(map_of_four(), "HTMLCanvasElement.prototype.getContext = () => null")
    assert tab.title().startswith("error: this browser shows no WebGL2")
    assert "no WebGL2" in tab.inner_text("header")
    assert "no WebGL2" in tab.evaluate("window.torchvox.error")
