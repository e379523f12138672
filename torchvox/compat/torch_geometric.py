# SPDX-License-Identifier: Apache-2.0
"""Gives torch_geometric its searches and samplers if pyg_lib is missing. A fake pyg_lib module
would switch its neighbor sampling over too, so only `torch_geometric.typing` is patched."""

from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, List

import torch

SCHEMAS = {
    "fps": "(Tensor src, Tensor ptr, float ratio, bool random_start) -> Tensor",
    "knn": "(Tensor x, Tensor y, Tensor? ptr_x, Tensor? ptr_y, int k, bool cosine, "
    "int num_workers) -> Tensor",
    "radius": "(Tensor x, Tensor y, Tensor? ptr_x, Tensor? ptr_y, float r, int max_num_neighbors, "
    "int num_workers, bool ignore_same_index) -> Tensor",
    "nearest": "(Tensor x, Tensor y, Tensor? ptr_x, Tensor? ptr_y) -> Tensor",
    "grid_cluster": "(Tensor pos, Tensor size, Tensor? start, Tensor? end) -> Tensor",
}
LIBRARY = torch.library.Library("pyg", "FRAGMENT")


def _call(function: Callable[..., torch.Tensor], names: List[str], *values: object) -> torch.Tensor:
    return function(**dict(zip(names, values, strict=True)))


def patch(typing: ModuleType) -> Dict[str, Any]:
    """The names to set in `torch_geometric.typing`."""
    if typing.WITH_PYG_LIB:
        return {}
    from torchvox.compat import pyg_lib_ops

    for name, schema in SCHEMAS.items():
        arguments = [word.split()[-1] for word in schema[1 : schema.index(")")].split(",")]
        if not hasattr(torch.ops.pyg, name):  # where they are called from version 2.8 on
            LIBRARY.define(name + schema)
            LIBRARY.impl(
                name,
                partial(_call, getattr(pyg_lib_ops, name), arguments),
                "CompositeExplicitAutograd",
            )
    flags = {f"WITH_{name.upper()}": True for name in SCHEMAS}
    return {**flags, "pyg_lib": SimpleNamespace(ops=pyg_lib_ops)}
