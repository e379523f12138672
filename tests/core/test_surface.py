# SPDX-License-Identifier: Apache-2.0
"""What users see is written down in surface.txt, and every op is everywhere it has to be.

After a wanted change: `UPDATE_SURFACE=1 python -m pytest tests/core/test_surface.py`, and a line in
CHANGELOG.md.
"""

import inspect
import os
import re
from pathlib import Path

import pytest
import torch
from changes import taken
from helpers import ROOT
from samples import MODULES, OPS

import torchvox
import torchvox.compat
import torchvox.reference

SNAPSHOT = Path(__file__).with_name("surface.txt")
SHARED = {"_neighbor_distance_backward"}  # the gradient of several public ops
# Folders of tests.
DOMAINS = (
    *("voxel", "bev", "sampling", "grouping", "neighbors", "pillars", "boxes", "detection"),
    *("filter", "rays", "occupancy", "targets", "cells", "sparse"),
)


def schemas() -> list[torch._C.FunctionSchema]:
    found = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("torchvox::")]
    return sorted(found, key=lambda s: s.name)


def takes_tensors(schema: torch._C.FunctionSchema) -> bool:
    return any("Tensor" in str(argument.type) for argument in schema.arguments)


def names(wanted: bool) -> list[str]:
    return [s.name.split("::")[1] for s in schemas() if takes_tensors(s) is wanted]


REGISTERED = names(True)
HOST = names(False)  # functions of numbers, registered so that TorchScript has them too
PUBLIC = [name for name in REGISTERED if not name.startswith("_")]

each_registered = pytest.mark.parametrize("name", REGISTERED)
each_public = pytest.mark.parametrize("name", PUBLIC + HOST)


def signature(name: str, thing) -> str:
    if isinstance(thing, type) and hasattr(thing, "_fields"):
        return f"{name}({', '.join(thing._fields)})"
    if isinstance(thing, type) and issubclass(thing, Exception):
        return f"{name}({thing.__base__.__name__})"
    return f"{name}{inspect.signature(thing)}" if callable(thing) else name


def public_names(module, prefix: str) -> list[str]:
    lines = []
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        lines.append(prefix + (name if inspect.ismodule(thing) else signature(name, thing)))
    return lines


def public_modules() -> list[str]:
    return [n for n in sorted(torchvox.nn.__all__) if hasattr(getattr(torchvox.nn, n), "forward")]


def surface() -> str:
    """Every schema, and every public name with its signature."""
    forwards = [
        f"torchvox.nn.{name}.forward{inspect.signature(getattr(torchvox.nn, name).forward)}"
        for name in public_modules()
    ]
    sections = [
        ("schemas", [str(schema) for schema in schemas()]),
        ("torchvox", public_names(torchvox, "torchvox.")),
        ("torchvox.nn", public_names(torchvox.nn, "torchvox.nn.") + forwards),
        ("torchvox.models", public_names(torchvox.models, "torchvox.models.")),
        ("torchvox.compat", public_names(torchvox.compat, "torchvox.compat.")),
        ("torchvox.reference", public_names(torchvox.reference, "torchvox.reference.")),
    ]
    takes = [
        f"{op}: " + "; ".join(f"{name} {', '.join(whats)}" for name, whats in taken(op).items())
        for op in sorted(OPS, key=str)
    ]
    sections.append(("changes of an argument that are no errors (tests/core/changes.py)", takes))
    return "\n".join(f"# {title}\n" + "\n".join(lines) + "\n" for title, lines in sections)


def test_the_public_surface_is_the_recorded_one():
    if os.environ.get("UPDATE_SURFACE"):
        SNAPSHOT.write_text(surface())
    recorded = SNAPSHOT.read_text()
    assert surface() == recorded, (
        "the public surface changed: if that is wanted, run `UPDATE_SURFACE=1 python -m pytest "
        "tests/core/test_surface.py` and say it in CHANGELOG.md"
    )


def test_the_list_of_samples_holds_exactly_the_registered_ops():
    assert sorted({op.name for op in OPS}) == REGISTERED
    assert len({str(op) for op in OPS}) == len(OPS)


def test_the_list_of_samples_holds_exactly_the_public_modules():
    assert {name.split(",")[0] for name in MODULES} == set(public_modules())


def set_by_conventions(function) -> set[str]:
    """Arguments of the op that a convention of the Python function fixes."""
    if "convention" not in inspect.signature(function).parameters:
        return set()
    tables = [t for k, t in vars(inspect.getmodule(function)).items() if k.endswith("CONVENTIONS")]
    return {option for table in tables for options in table.values() for option in options}


@each_public
def test_every_public_op_has_a_python_function_with_the_schemas_arguments(name):
    function = getattr(torchvox, name)
    assert name in torchvox.__all__ and function.__doc__
    schema = getattr(torch.ops.torchvox, name).default._schema
    parameters = inspect.signature(function).parameters
    left = [a for a in schema.arguments if a.name not in set_by_conventions(function)]
    missing = [a.name for a in left if a.name not in parameters]
    assert not missing, f"torchvox.{name} lacks {missing}"
    for argument in left:
        if argument.has_default_value() and not argument.type.isSubtypeOf(
            torch._C.NumberType.get()
        ):
            assert parameters[argument.name].default == argument.default_value, argument.name


@each_public
def test_every_public_op_has_a_cpp_function(name):
    header = (ROOT / "torchvox/include/torchvox/torchvox.h").read_text()
    assert re.search(rf"\b{name}\(", header), f"no torchvox::{name} in torchvox.h"
    assert f'"torchvox::{name}"' in header


@each_public
def test_every_public_op_has_a_reference(name):
    assert name in torchvox.reference.__all__


@each_public
def test_every_public_op_is_documented_and_in_the_changelog(name):
    pages = [(ROOT / f"docs/{page}.md").read_text() for page in DOMAINS]
    assert any(re.search(rf"\b{name}\b", text) for text in pages), f"no {name} in docs/"
    assert re.search(rf"\b{name}\b", (ROOT / "CHANGELOG.md").read_text()), (
        f"no {name} in CHANGELOG.md"
    )


@each_public
def test_every_public_op_has_tests_in_its_domain(name):
    tests = [p for domain in DOMAINS for p in (ROOT / "tests" / domain).glob("test_*.py")]
    assert any(re.search(rf"\b{name}\b", path.read_text()) for path in tests)


@each_registered
def test_every_op_has_a_case_of_more_than_2_31_elements(name):
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("*large*.py"))
    assert re.search(rf"""torchvox\.{name}\(|Large\("{name}\"""", text)


@each_registered
def test_a_private_op_is_a_backward_or_belongs_to_a_public_one(name):
    if name.startswith("_") and name not in SHARED:
        stem = name.lstrip("_").removesuffix("_backward").removesuffix("_train")
        assert stem in REGISTERED


@each_registered
def test_names_of_outputs_do_not_repeat_and_no_output_aliases(name):
    schema = getattr(torch.ops.torchvox, name).default._schema
    assert schema.is_mutable == name.endswith("_")
    assert all(out.alias_info is None for out in schema.returns)
    written = [a.name for a in schema.arguments if a.alias_info is not None]
    assert written == [k for op in OPS if op.name == name for k in op.mutates]
    outputs = [r.name for r in schema.returns]
    assert len(outputs) == 1 or (len(set(outputs)) == len(outputs) and all(outputs))
