# SPDX-License-Identifier: Apache-2.0
"""What the adapters declare is what they have, with the peers' signatures, and is on the page."""

import importlib
import inspect
import os
from pathlib import Path

import pytest
from helpers import ROOT

from torchvox.compat import NotCoveredError, page, table

SNAPSHOT = Path(__file__).with_name("surface.txt")
SHIMS = sorted({row.shim for row in table.every()})


def adapter(shim):
    return importlib.import_module(f"torchvox.compat.{shim}")


def signature(thing):
    found = inspect.signature(thing)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(inspect.Signature(plain))


def signatures(shim):
    """Of the functions and classes of an adapter, and of what its modules are called with."""
    module, lines = adapter(shim), []
    for name in table.literals(shim).covered:
        thing = getattr(module, name)
        method = "forward" if hasattr(thing, "forward") else "apply"  # of autograd functions
        if callable(thing):
            lines.append(name + signature(thing))
        if hasattr(thing, method):
            lines.append(f"{name}.{method}{signature(getattr(thing, method))}")
    return [shim, *(f"    {line}" for line in lines)]


def test_signatures_are_the_peers_as_recorded():
    """After a wanted change: `UPDATE_SURFACE=1 python -m pytest tests/compat/test_table.py`, once
    they are compared with the peers' own."""
    found = "".join(f"{line}\n" for shim in SHIMS for line in signatures(shim))
    if os.environ.get("UPDATE_SURFACE"):
        SNAPSHOT.write_text(found)
    assert SNAPSHOT.read_text() == found


@pytest.mark.parametrize("shim", SHIMS)
def test_what_an_adapter_declares_is_there(shim):
    module, facts = adapter(shim), table.literals(shim)
    for name in facts.covered:
        assert hasattr(module, name) and (name == "__version__" or name[:2] != "__"), name
    assert not set(facts.covered) & set(facts.not_covered)
    assert {*facts.partly, *facts.differs} <= set(facts.covered)
    for name in facts.not_covered if hasattr(module, "__getattr__") else ():
        with pytest.raises(NotCoveredError, match=r"docs/switching\.md"):
            getattr(module, name)()


def test_the_page_has_the_names_of_the_table():
    text = (ROOT / "docs" / "switching.md").read_text()
    part = text.partition(page.BEGIN)[2].partition(page.END)[0]
    assert part == f"\n{page.markdown()}\n", "run python -m torchvox.compat.page"
