# SPDX-License-Identifier: Apache-2.0
"""Writes torchvox/models/registry.json from configs/models, and its tables into docs/models.md.

    python configs/registry.py                   after a change of a configuration
    python configs/registry.py MODEL SET RUN     ship RUN/model.pt of `torchvox train MODEL -o RUN`

Weights are stored in half precision and measured as they are stored, by `torchvox eval MODEL` on
another seed of the data than that of training. `make weights` trains and ships them all.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from torchvox._util import config_files
from torchvox.io.writers import write_text
from torchvox.models import checkpoints
from torchvox.models.detection.files import KINDS
from torchvox.train.builders import labels_of
from torchvox.train.config import config_names, load_config
from torchvox.train.tasks import BUILDERS

ROOT = Path(__file__).resolve().parents[1]
REGISTRY = ROOT / "torchvox" / "models" / "registry.json"
WEIGHTS = REGISTRY.parent / "weights"
DOCS = ROOT / "docs" / "models.md"
HELD_OUT = "data.seed=1"
KEPT = {  # of what torchvox eval measures
    "classify": ("accuracy", "mean_accuracy"),
    "detect": ("map", "map_strict", "3d/loose/Car", "3d/loose/Pedestrian", "3d/loose/Cyclist"),
}


def entry(name: str) -> dict[str, Any]:
    """The entry of a configuration in the registry, without weights."""
    content = config_files.read(name)
    task, kind, args = content["task"], content["model"]["kind"], content["model"].get("args", {})
    labels = labels_of(load_config(name)) if name in config_names() else None
    if task == "detect":
        if labels is not None:
            args = {"classes": list(labels.classes), "columns": labels.columns, **args}
        name_of, args = KINDS[kind][0].__name__, {"config": args}
    else:
        assert labels is not None
        sizes = {"num_classes": len(labels.classes), "in_channels": labels.columns}
        if task == "parts":
            sizes["num_categories"] = len(labels.categories)
        name_of, args = BUILDERS[kind].__name__, {**sizes, **args}
    maker = f"`torchvox train {name} -o DIR` makes DIR/model.pt"
    if labels is None:
        maker = "`torchvox import` makes them from a checkpoint of another program"
    elif "root" in content["data"]:
        maker = f"`torchvox train {name} data.root=FOLDER -o DIR` makes DIR/model.pt"
    return {"task": task, "model": name_of, "args": args, "made_by": maker}


def registry(before: dict[str, Any]) -> dict[str, Any]:
    """All entries; weights are those of the registry before."""
    entries = {name: entry(name) for name in config_files.names()}
    for name, one in entries.items():
        if weights := before.get(name, {}).get("weights"):
            one["weights"] = weights
    return entries


def ship(content: dict[str, Any], name: str, weights: str, run: Path) -> None:
    """Puts the weights of a run into the package, and their entry into the registry."""
    one = checkpoints.read(run / "model.pt")
    one["state_dict"] = {
        key: value.half() if value.is_floating_point() else value
        for key, value in one["state_dict"].items()
    }
    target = WEIGHTS / f"{name}.{weights}.pt"
    torch.save(one, target)
    labels = labels_of(load_config(name))
    about = {
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
        "classes": list(labels.classes),
        "metrics": {},
        "measured": f"torchvox eval {name} {HELD_OUT} --device cpu",
        "command": f"torchvox train {name}",
        "license": "Apache-2.0",
    }
    content[name]["weights"] = {weights: about}
    write(content)  # which eval reads
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, "-m", *about["measured"].split(), "--json", str(results)]
        subprocess.run(command, check=True)
        measured = json.loads(results.read_text())
    about["metrics"] = {key: round(measured[key], 4) for key in KEPT[content[name]["task"]]}


def tables(content: dict[str, Any]) -> str:
    """The tables of docs/models.md."""
    lines = ["| name | task | class | weights |", "|---|---|---|---|"]
    for name, one in content.items():
        shipped = ", ".join(f"`{key}`" for key in one.get("weights", {})) or one["made_by"]
        lines.append(f"| `{name}` | {one['task']} | `{one['model']}` | {shipped} |")
    lines += [
        "",
        "| weights | metrics | made by | SHA-256 | size | license |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in content.items():
        for key, about in one.get("weights", {}).items():
            size = (WEIGHTS / f"{name}.{key}.pt").stat().st_size
            metrics = ", ".join(f"{what} {value:.3f}" for what, value in about["metrics"].items())
            lines.append(
                f"| `{name}`, `{key}` | {metrics}: `{about['measured']}` | `{about['command']}` "
                f"| `{about['sha256']}` | {size / 1e6:.2f} MB | {about['license']} |"
            )
    return "\n".join(lines)


def documented(text: str, content: dict[str, Any]) -> str:
    """The page with its tables as they should be."""
    start, end = "<!-- registry -->\n", "\n<!-- end -->"
    head, rest = text.split(start)
    return head + start + tables(content) + end + rest.split(end, 1)[1]


def text(content: dict[str, Any]) -> str:
    """As JSON, a line for each part of an entry."""
    entries = []
    for name, one in content.items():
        parts = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in one.items()]
        entries.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def write(content: dict[str, Any]) -> None:
    write_text(REGISTRY, text(content))
    write_text(DOCS, documented(DOCS.read_text(), content))


if __name__ == "__main__":
    before = json.loads(REGISTRY.read_text()) if REGISTRY.exists() else {}
    entries = registry(before)
    if len(sys.argv) > 1:
        ship(entries, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    write(entries)
