# SPDX-License-Identifier: Apache-2.0
"""No command writes over what it reads, nor two outputs into one file, by whatever name."""

import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints

import numpy as np
import pytest

CASES = [  # command, the input at stake, a name of the output: {} in the command, else derived
    ("downsample a.npz --voxel 1 -o {}", "a.npz", "x.npz"),
    ("downsample a.npz b.npz --merge --voxel 1 -o {}", "b.npz", "x.npz"),
    ("downsample a.npz --voxel 1 -o o.npz --report {}", "a.npz", "x.json"),
    ("downsample a.npz --voxel 1 -o o.npz --dry-run --trace {}", "a.npz", "x.npz"),
    ("downsample b.npz a.npz --voxel 1 -o o", "b.npz", "o/a.downsampled.npz"),
    ("voxelize a.npz -o {}", "a.npz", "x.png"),
    ("voxelize a.npz b.npz -o o", "b.npz", "o/a.voxels.npz"),
    ("sample a.npz -o {}", "a.npz", "x.npy"),
    ("bev a.npz -o {}", "a.npz", "x.png"),
    ("convert a.npz -o {}", "a.npz", "x.ply"),
    ("convert a.npz -o .", "a.npz", "a.npz"),
    ("view b.npz a.npz -o {}", "a.npz", "x.html"),
    ("demo a.npz -o o", "a.npz", "o/overview.png"),
    ("predict a.npz -m m.ckpt -o {}", "a.npz", "x.npz"),
    ("detect a.npz -m m.ckpt -o {}", "m.ckpt", "x.json"),
    ("detect a.npz -m m.ckpt -o o.json --plot {}", "a.npz", "x.png"),
    ("map a.npz --poses p.txt -o {}", "a.npz", "x.bt"),
    ("map a.npz --poses p.txt -o {}", "p.txt", "x.ply"),
    ("map a.npz --trajectory p.txt --extrinsic c.yaml -o {}", "c.yaml", "x.html"),
    ("map a.npz --poses p.txt -o o.png --ros-yaml", "p.txt", "o.yaml"),
    ("map a.npz --poses p.txt -o o.npz --html", "p.txt", "o.html"),
    ("map a.npz b.npz -o {}", "b.npz", "x.npz"),
    ("import m.ckpt -o {}", "m.ckpt", "x.pt"),
    ("import m.ckpt --config c.yaml --report {}", "c.yaml", "x.json"),
    ("import m.ckpt --original c.yaml -o {}", "c.yaml", "x.pt"),
    ("export m.ckpt -o {}", "m.ckpt", "x.pt"),
    ("export m.ckpt", "m.ckpt", "m.script.pt"),
    ("eval m.ckpt --json {}", "m.ckpt", "x.json"),
    ("eval m.ckpt --config c.yaml --json {}", "c.yaml", "x.json"),
    ("eval m.ckpt --pictures o", "m.ckpt", "o/confusion.png"),
    ("train c.yaml -o o", "c.yaml", "o/config.yaml"),
    ("train c.yaml train.init=m.ckpt -o o", "m.ckpt", "o/best.ckpt"),
]
TWICE = [
    "downsample a.npz --voxel 1 -o x.npz --trace x.npz",
    "downsample a.npz --voxel 1 -o x --trace x",
    "downsample a.npz --voxel 1 -o x.npz --report ./x.npz",
    "downsample a.npz --voxel 1 -o o.npz --report x --trace o/../x",
    "import m.ckpt -o x --report x",
    "eval m.ckpt --json x --pictures x",
]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Every input of the commands; the model is one of points' labels."""
    for name in ("yaml", "pydantic", "lightning", "matplotlib", "k3d"):
        pytest.importorskip(name)
    for name in ("a.npz", "b.npz"):
        points = np.random.default_rng(0).random((50, 3), np.float32)
        np.savez(tmp_path / name, points=points, columns=np.array(["x", "y", "z"]))
    (tmp_path / "m.ckpt").write_bytes(b"weights")
    (tmp_path / "p.txt").write_text("0 1 2 3 0 0 0 1\n")
    (tmp_path / "c.yaml").write_text("base: pointnet2_cls_shapes_small\n")
    (tmp_path / "o").mkdir()
    trained = SimpleNamespace(config=SimpleNamespace(task="segment"))
    monkeypatch.setattr("torchvox.train.load_checkpoint", lambda *_: trained)
    return tmp_path


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("form", ["name", "dots", "link", "hard link"])
@pytest.mark.parametrize(("command", "source", "alias"), CASES)
def test_an_input_is_never_replaced(torchvox_cli, files, command, source, alias, form):
    linked = form.endswith("link") or Path(alias).suffix != Path(source).suffix
    if linked and alias != source:
        link = os.link if form == "hard link" else os.symlink
        link(files / source, files / alias)
    elif "{}" not in command and alias != source:
        pytest.skip("such an input has another name")
    else:
        alias = f"{files}/o/../{source}" if form == "dots" else source
    before = contents(files)
    result = torchvox_cli(*shlex.split(command.format(alias)))
    result.assert_one_sentence(2, "would replace the file that it is made from", source)
    assert contents(files) == before


@pytest.mark.parametrize("command", TWICE)
def test_two_outputs_are_never_one_file(torchvox_cli, files, command):
    before = contents(files)
    torchvox_cli(*shlex.split(command)).assert_one_sentence(2, "would")
    assert contents(files) == before


def leaves(command, names=()):
    below = getattr(command, "commands", None)
    if below is None:
        yield names, command
    for name, one in (below or {}).items():
        yield from leaves(one, (*names, name))


def test_no_command_writes_a_file_of_the_name_of_stdout(torchvox_cli, files):
    import typer

    from torchvox.cli.app import app

    count = 0
    for names, command in leaves(typer.main.get_command(app)):
        kinds, rest = get_type_hints(command.callback), []
        for one in command.params:
            if one.required:
                rest += [*one.opts[: one.opts[0].startswith("-")], "1"]
        for one in command.params:
            if kinds.get(one.name) in (Path, Path | None) and one.opts[0].startswith("--"):
                result = torchvox_cli(*names, *rest, one.opts[0], "-")
                result.assert_one_sentence(2, one.opts[0], "-", "stdin or stdout")
                count += 1
    result = torchvox_cli("data", "export-kitti", "-")
    result.assert_one_sentence(2, "folder - is not stdin or stdout")
    assert count > 20 and not (files / "-").exists()
