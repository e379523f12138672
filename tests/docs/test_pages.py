# SPDX-License-Identifier: Apache-2.0
"""Links between pages hold, every page is in the navigation, every public name in the API, without
building the site."""

import ast
import importlib
import importlib.util
import re
import types
from pathlib import Path

import pytest
import yaml
from helpers import ROOT

import torchvox

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
LINK = re.compile(r"\[[^\[\]]*\]\((?!https?:)([^()\s#]*)#?([^()\s]*)\)")
PACKAGES = {"ops", "nn", "models"}
PLAIN = {"__version__", "cmake_prefix_path", "onnx_library"}  # in README, cpp.md and onnx.md


def load(name: str, monkeypatch) -> types.ModuleType:
    """A module of configs/docs."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "configs" / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(importlib.sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def text_of(page: Path) -> str:
    """Less code, in which brackets are no links."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and mkdocs make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", head.lower()).strip() for head in heads]
    return {re.sub(r"[\s-]+", "-", head) for head in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(text_of(page)):
        if target.startswith("pictures/"):  # which `make docs` draws
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists() and ROOT in path.parents, f"no {target}"
        assert not anchor or anchor in anchors(path), f"no #{anchor} in {path.name}"


def navigation() -> list[str]:
    parts = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    groups = [pages for part in parts for pages in part.values()]
    return [page for pages in groups for named in pages for page in named.values()]


def test_every_page_is_in_the_navigation_once():
    at_root = ["readme.md", "contributing.md", "changelog.md"]
    assert sorted(navigation()) == sorted([*at_root, *(page.name for page in DOCS.glob("*.md"))])


def test_the_gallery_shows_what_is_drawn(monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    pictures = load("pictures", monkeypatch)
    shown = re.findall(r"\(pictures/(\w+)\.png\)", (DOCS / "gallery.md").read_text())
    assert sorted(shown) == sorted([*pictures.DEMO, *pictures.DRAWN])


@pytest.fixture
def documented(monkeypatch):
    """Dotted names that pages of the API hold. Nothing of them is imported."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    hooks, found = load("hooks", monkeypatch), set()
    for _, _, parts in hooks.api_pages():
        for part in parts:
            found.add(part)
            path = ROOT.joinpath(*part.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if path.exists():
                names = hooks.exports(path.relative_to(ROOT / "torchvox"))
                body = ast.parse(path.read_text()).body
                names = names or [node.name for node in body if hasattr(node, "name")]
                found |= {f"{part}.{name}" for name in names}
            else:  # a name in a module
                module = ROOT.joinpath(*part.split(".")[:-1])
                assert module.with_suffix(".py").exists() or module.is_dir(), part
    return found


def test_every_public_name_is_in_the_api(documented):
    names = {name.rpartition(".")[2] for name in documented}
    assert set(torchvox.__all__) - PACKAGES - PLAIN <= names
    packages = [
        path.parent.name
        for path in (ROOT / "torchvox").glob("[a-z]*/__init__.py")
        if path.parent.name not in ("ops", "cli")
    ]
    assert {f"torchvox.{package}" for package in packages} <= documented


def test_what_pages_import_is_in_the_api(documented):
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("torchvox"):
                    named = {f"{node.module}.{alias.name}" for alias in node.names}
                    assert node.module.startswith("torchvox.compat") or named <= documented


def test_docstrings_become_lists(monkeypatch):
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    shaped = load("docstrings", monkeypatch).markdown(
        "Adds.\n\na: first. b: second\n    and more.\n"
        "Returns both:\n    x: one\n        long\n    y",
        {"a", "b"},
    )
    assert shaped == (
        "Adds.\n\n- `a`: first.\n- `b`: second\n    and more.\n\nReturns both:\n\n"
        "- x: one\n    long\n- y"
    )


def test_nothing_names_an_index_or_an_address_that_does_not_exist():
    sources = [*ROOT.glob("*.*"), *(ROOT / "docs").glob("*.md"), *(ROOT / "torchvox").rglob("*.py")]
    wrong = re.compile(r"pip install[^\n]*[ \"']torchvox(?!-)|github\.com/torchvox|patchelf\"")
    named = [p.name for p in sources if p.is_file() and wrong.search(p.read_text(errors="ignore"))]
    assert named == []
