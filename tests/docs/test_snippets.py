# SPDX-License-Identifier: Apache-2.0
"""Every Python block of README and docs runs, in its order on the page, and every line for a shell
names commands and options that exist."""

import re
import shlex
import sys
from pathlib import Path

import given
import pytest
import torch
from helpers import ROOT

import torchvox.compat
from torchvox.compat import table

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Why a block is not run, as `<!-- not run: needs a GPU -->` above it, and whether that holds here.
REASONS = {
    "needs a GPU": not torch.cuda.is_available(),
    "needs a checkpoint of another program": True,
    "needs ONNX Runtime for CUDA": True,
    "starts Ray": True,  # several seconds; the stages have tests of their own
    "compiles for a minute": True,  # tests/packaging and tests/core compile
}
NOT_RUN = {
    **{"README.md": 0, "detectors.md": 1, "downsample.md": 1, "export.md": 2, "importing.md": 1},
    **{"maps.md": 1, "models.md": 1, "onnx.md": 1},
}
BLOCK = re.compile(
    r"(?:<!-- not run: (.+?) -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # those of a shell: ""
# What a page asks of a machine, and what a test does with.
SMALLER = [
    ('"2GiB"', '"64MiB"'),
    ("num_workers=4", "num_workers=0"),
    ("scans=10", "scans=6"),
    ("rand(100_000", "rand(20_000"),
]
ON_CPU = [('"cuda"', '"cpu"'), (".cuda()", "")]

with_blocks = [page for page in PAGES if "```python" in page.read_text()]
every_page = pytest.mark.parametrize("page", with_blocks, ids=lambda page: page.name)


@pytest.fixture
def workplace(monkeypatch, tmp_path):
    """A folder for files; peers that a page installs, and modules from it, go in the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    torchvox.compat.uninstall()
    roots = {peer.root.partition(".")[0] for peer in table.PEERS.values()} | {"model_of_somebody"}
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in roots:
            del sys.modules[name]


@every_page
def test_blocks_run(page, workplace):
    names = getattr(given, page.stem, dict)()
    for found in BLOCK.finditer(page.read_text()):
        reason, code = found.groups()
        if reason is not None and REASONS[reason]:
            continue
        for there, here in SMALLER + ON_CPU * (not torch.cuda.is_available()):
            code = code.replace(there, here)
        line = page.read_text()[: found.start(2)].count("\n")
        exec(compile("\n" * line + code, str(page), "exec"), names)


@every_page
def test_few_blocks_are_left_out_and_each_says_why(page):
    reasons = [reason for reason, _ in BLOCK.findall(page.read_text()) if reason]
    assert set(reasons) <= set(REASONS)
    assert len(reasons) == NOT_RUN.get(page.name, 0)
    assert page.read_text().count("```python") == len(BLOCK.findall(page.read_text()))


def command_lines(page: Path):
    """Words of the lines that call torchvox or make, less comments."""
    for language, block in FENCED.findall(page.read_text()):
        for line in block.splitlines():
            if not language and line.startswith(("torchvox ", "make ")):
                yield shlex.split(line.replace("[--", "--").replace("]", ""), comments=True)


def test_command_lines_parse():
    typer = pytest.importorskip("typer", reason="the extra cli is not installed")
    from torchvox.cli.app import app

    root, seen = typer.main.get_command(app), 0
    for page in PAGES:
        for words in command_lines(page):
            if words[0] == "torchvox":
                seen += 1
                unknown = unknown_words(root, words[1:])
                assert not unknown, f"{page.name}: {' '.join(words)}: no {unknown}"
    assert seen > 30


def unknown_words(command, words: list[str]) -> list[str]:
    """A command or options that do not exist."""
    while hasattr(command, "commands"):
        if words[0] not in command.commands:
            return words[:1]
        command, words = command.commands[words[0]], words[1:]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    return [w for w in words if re.match(r"--?[a-z]", w) and w.partition("=")[0] not in options]


def test_targets_of_make_exist():
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {words[1] for page in PAGES for words in command_lines(page) if words[0] == "make"}
    assert named and named <= set(targets)
