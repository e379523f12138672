# SPDX-License-Identifier: Apache-2.0
"""No command writes over what it reads, nor two outputs into one file, by whatever name."""

import json
import os
import re
import shlex

import numpy as np
import pytest

INPUTS = ("a.npz", "b.npz", "m.ckpt", "p.txt", "c.yaml")
REPLACING = [  # commands, and the input that an output of theirs is a name of
    ("downsample a.npz b.npz --merge --voxel 1 -o b.npz", "b.npz"),
    ("downsample a.npz --voxel 1 -o o.npz --json a.npz", "a.npz"),
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
    ("detect a.npz -m m.ckpt -o o.json --pictures picture.png", "a.npz"),
    ("map a.npz b.npz -o b.npz", "b.npz"),
    ("map a.npz --poses p.txt -o o.png --ros-yaml", "p.txt"),
    ("map a.npz --poses p.txt -o o.npz --html", "p.txt"),
    ("map a.npz --trajectory p.txt --extrinsic c.yaml -o c.html", "c.yaml"),
    ("import m.ckpt -o m.ckpt", "m.ckpt"),
    ("import m.ckpt --config c.yaml --json c.yaml", "c.yaml"),
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
    "downsample a.npz --voxel 1 -o x.npz --json ./x.npz",
    "downsample a.npz --voxel 1 -o x --trace x",
    "downsample a.npz --voxel 1 -o new.npz --json x --trace o/../x",
    "import m.ckpt -o x --json x",
    "eval m.ckpt --json x --pictures x",
]
ALLOWED = [  # commands, and their output
    ("convert a.npz -o ./o/../a.ply", "a.ply"),
    ("voxelize a.npz b.npz -o .", "b.voxels.npz"),
    ("sample a.npz -n 9 -o new/folder/a.npz", "new/folder/a.npz"),
    ("convert home/a.npz -o home/new.npz", "new.npz"),
    ("downsample a.npz b.npz --merge --voxel 1 -o o/a.npz --json o/a.json", "o/a.json"),
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
        ("map a.npz --poses -", "--poses -"),
        ("eval m.ckpt --pictures -", "--pictures -"),
        ("bench --output -", "--output -"),
        ("data export-kitti -", "folder -"),
    ],
)
def test_no_file_has_the_name_of_stdout(torchvox_cli, files, command, name):
    result = torchvox_cli(*shlex.split(command))
    result.assert_one_sentence(2, f"{name} is not stdin or stdout")
    assert not (files / "-").exists()


def test_every_command_checks_its_options_and_shows_examples_that_parse(capsys):
    typer = pytest.importorskip("typer", reason="the extra cli is not installed")
    from torchvox.cli import app, commands

    groups = [typer.main.get_command(app.app)]
    while groups:
        for name, command in groups.pop().commands.items():
            if isinstance(command, commands.CommandGroup):
                groups.append(command)
                continue
            assert isinstance(command, commands.Command), name
            examples = [shlex.split(line) for line in command.examples.splitlines()]
            assert examples or name == "doctor"
            for program, first, *rest in examples:
                words = rest[1:] if first in ("data", "compat") else rest
                command.make_context(name, words)
                assert (program, name) == ("torchvox", rest[0] if words is not rest else first)
            with pytest.raises(typer.Exit):
                command.make_context(name, ["--help"])
            text = capsys.readouterr().out
            assert all(line.strip() in text for line in command.examples.splitlines())
            assert not re.search(r"<(bool|str|path|int|float|list)", text), text
            assert all(each.help for each in command.params), name


def test_old_names_of_options_are_understood(torchvox_cli, files):
    old = ("downsample", "a.npz", "--voxel-size", "1", "-o", "o.npz", "--report")
    result = torchvox_cli(*old, "r.json").ok()
    assert "--voxel-size is called --voxel now" in result.err
    assert "--report is called --json now" in result.err
    printed = torchvox_cli("downsample", "a.npz", "--voxel", "1", "-o", "o.npz", "--json").ok().out
    facts = [json.loads(text)["files"][0] for text in (printed, (files / "r.json").read_text())]
    assert facts[0]["voxels"] == facts[1]["voxels"] > 0
    # what was meant as an input stays
    meant = torchvox_cli("info", "--json", "a.npz", "b.npz")
    meant.assert_one_sentence(2, "--json a.npz would replace a file that is not .json")
    # not where the command has the name itself
    assert "called" not in torchvox_cli("info", "a.npz", "--layout", "xyz").err
    torchvox_cli("export", "-m", "none.pt").assert_one_sentence(2, "the model none.pt does not")
