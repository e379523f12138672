# SPDX-License-Identifier: Apache-2.0
"""A browser for the tests of pages, where there is one."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SOFTWARE = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


@pytest.fixture(scope="package")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE)
        yield found
        found.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A page of these panes, the requests that it made, and what its console said."""
    context = browser.new_context(viewport={"width": 800, "height": 500}, offline=True)

    def open_(page, script=""):
        (tmp_path / "a.html").write_bytes(page)
        tab = context.new_page()
        requests, spoken = [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda said: spoken.append((said.type, said.text)))
        tab.on("pageerror", lambda error: spoken.append(("error", str(error))))
        tab.add_init_script(script)
        tab.goto(f"file://{tmp_path / 'a.html'}")
        tab.wait_for_function("document.title != 'loading'", timeout=60_000)
        return tab, requests, [text for kind, text in spoken if kind in ("error", "warning")]

    yield open_
    context.close()
