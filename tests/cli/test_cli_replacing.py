# SPDX-License-Identifier: Apache-2.0
"""No command writes over what it reads, nor two outputs into one file, by whatever name."""

import os
import shlex

import numpy as np
import pytest

INPUTS = ("a.npz", "b.npz", "m.ckpt", "p.txt", "c.yaml")
REPLACING = [  # commands, and the input that an output of theirs is a name of
    ("downsample a.npz b.npz --merge --voxel 1 -o b.npz", "b.npz"),
    ("downsample a.npz --voxel 1 -o o.npz --report a.npz", "a.npz"),
    ("downsample a.npz --voxel 1 -o o.npz --dry-run --trace a.npz", "a.npz"),
    ("voxelize a.npz -o o/../a.npz", "a.npz"),
    ("voxelize a.npz -o link.npz", "a.npz"),
    ("voxelize a.npz -o hard.npz", "a.npz"),
    ("voxelize link.npz -o a.npz", "a.npz"),
    ("voxelize a.npz b.npz -o o", "b.npz"),
    ("sample a.npz -o link.npz", "a.npz"),
    ("bev a.npz -o a.npz", "a.npz"),
    ("convert a.npz -o .", "a.npz"),
    ("view b.npz a.npz -o page.html", "a.npz"),
    ("demo a.npz -o o", "a.npz"),
    ("detect a.npz -m m.ckpt -o model.json", "m.ckpt"),
    ("detect a.npz -m m.ckpt -o o.json --plot picture.png", "a.npz"),
    ("map a.npz b.npz -o b.npz", "b.npz"),
    ("map a.npz --poses p.txt -o o.png --ros-yaml", "p.txt"),
    ("map a.npz --poses p.txt -o o.npz --html", "p.txt"),
    ("map a.npz --trajectory p.txt --extrinsic c.yaml -o c.html", "c.yaml"),
    ("import m.ckpt -o m.ckpt", "m.ckpt"),
    ("import m.ckpt --config c.yaml --report c.yaml", "c.yaml"),
    ("import m.ckpt --original c.yaml -o c.yaml", "c.yaml"),
    ("export m.ckpt", "m.ckpt"),
    ("eval m.ckpt --config c.yaml --json c.yaml", "c.yaml"),
    ("eval m.ckpt --pictures o", "m.ckpt"),
]
LINKS = {  # names of outputs -> inputs
    "link.npz": "a.npz", "page.html": "a.npz", "picture.png": "a.npz", "o/overview.png": "a.npz",
    "o/a.voxels.npz": "b.npz", "model.json": "m.ckpt", "m.script.pt": "m.ckpt",
    "o/confusion.png": "m.ckpt", "o.yaml": "p.txt", "o.html": "p.txt", "c.html": "c.yaml",
}  # fmt: skip
TWICE = [
    "downsample a.npz --voxel 1 -o x.npz --report ./x.npz",
    "downsample a.npz --voxel 1 -o x --trace x",
    "downsample a.npz --voxel 1 -o new.npz --report x --trace o/../x",
    "import m.ckpt -o x --report x",
    "eval m.ckpt --json x --pictures x",
]
ALLOWED = [  # commands, and their output
    ("convert a.npz -o ./o/../a.ply", "a.ply"),
    ("voxelize a.npz b.npz -o .", "b.voxels.npz"),
    ("sample a.npz -n 9 -o new/folder/a.npz", "new/folder/a.npz"),
    ("convert home/a.npz -o home/new.npz", "new.npz"),
    ("downsample a.npz b.npz --merge --voxel 1 -o o/a.npz --report o/a.json", "o/a.json"),
]


@pytest.fixture
def files(tmp_path):
    points = np.random.default_rng(0).random((50, 3), np.float32)
    for name in INPUTS:
        (tmp_path / name).write_text(f"of {name}")
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, points=points, columns=np.array(["x", "y", "z"]))
    (tmp_path / "o").mkdir()
    return tmp_path


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(("command", "source"), REPLACING)
def test_an_input_is_never_replaced(torchvox_cli, files, command, source):
    for name, target in LINKS.items():
        (files / name).symlink_to(files / target)
    os.link(files / "a.npz", files / "hard.npz")
    before = contents(files)
    result = torchvox_cli(*shlex.split(command))
    result.assert_one_sentence(2, "would replace the file that it is made from")
    assert source in result.err or "link.npz" in command
    assert contents(files) == before


@pytest.mark.parametrize("command", TWICE)
def test_two_outputs_are_never_one_file(torchvox_cli, files, command):
    before = contents(files)
    torchvox_cli(*shlex.split(command)).assert_one_sentence(2, "would")
    assert contents(files) == before


@pytest.mark.parametrize(("command", "output"), ALLOWED)
def test_outputs_beside_inputs_are_written(torchvox_cli, files, command, output):
    (files / "home").symlink_to(files)
    before = contents(files)
    result = torchvox_cli(*shlex.split(command))
    assert result.code == 0 and (files / output).is_file(), result.err
    assert contents(files).items() >= before.items()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("convert a.npz -o -", "--output -"),
        ("downsample a.npz --voxel 1 --report -", "--report -"),
        ("map a.npz --poses -", "--poses -"),
        ("eval m.ckpt --json -", "--json -"),
        ("bench --output -", "--output -"),
        ("data export-kitti -", "folder -"),
    ],
)
def test_no_file_has_the_name_of_stdout(torchvox_cli, files, command, name):
    result = torchvox_cli(*shlex.split(command))
    result.assert_one_sentence(2, f"{name} is not stdin or stdout")
    assert not (files / "-").exists()


def test_every_command_that_takes_an_output_checks_its_options():
    typer = pytest.importorskip("typer", reason="the extra cli is not installed")
    from torchvox.cli import app, options

    commands = [typer.main.get_command(app.app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        if any("--output" in p.opts or "-o" in p.opts for p in command.params):
            assert isinstance(command, options.Command), command.name
