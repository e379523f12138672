# SPDX-License-Identifier: Apache-2.0
"""Sizes that a file names for a network take neither memory nor time before they are refused."""

import copy
import importlib.util
import json
import re
import subprocess
import sys
import zipfile

import pytest
import torch
from helpers import ROOT

from torchvox.models import checkpoints, get_model

POINTS, PILLARS = "pointnet2_cls_shapes_small", "pointpillars_kitti"
READER = """
import json, re, sys, time
from torchvox._util.errors import TorchvoxError
from torchvox.models.checkpoints import load
for path in sys.argv[1:]:
    if path.endswith(".ckpt"):
        from torchvox.train import load_checkpoint as load
    start = time.monotonic()
    try:
        outcome = f"loaded {load(path)}"
    except TorchvoxError as error:
        outcome = str(error)
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 2**20
    print(json.dumps([path, outcome, time.monotonic() - start, peak]))
"""
CASES = [  # of the model, the part of its configuration, its changes, the words of the refusal
    (POINTS, (), {"num_classes": 10_000_000}, "names 51[0-9]{8} bytes"),
    (POINTS, (), {"head": [8] * 10**6}, "at most 5000 values"),
    (PILLARS, ("config", "backbone"), {"layers": [10**9, 5, 5]}, "more layers than"),
    (PILLARS, ("config",), {"pillar_size": [0.0016, 0.0016, 4]}, "anchors of 8999[0-9]{7} bytes"),
]


def content_of(name, path):
    checkpoints.save(get_model(name), path)
    return torch.load(path, weights_only=True)


def trained_files(folder):
    """Checkpoints of torchvox train that name too much."""
    from torchvox.train.builders import build_model, labels_of
    from torchvox.train.checkpoint import describe
    from torchvox.train.config import load_config

    config = load_config(POINTS)
    labels = labels_of(config)
    state = {f"model.{k}": v for k, v in build_model(config, labels).state_dict().items()}
    wide, many = (copy.deepcopy(describe(config, labels)) for _ in range(2))
    wide["config"]["model"]["args"].update(head=[10**7], dropout=[0.1])
    many["labels"]["classes"] *= 10**5
    files = {folder / "wide.ckpt": "names", folder / "many.ckpt": "at most 5000 values"}
    for path, about in zip(files, (wide, many), strict=True):
        torch.save({"torchvox": about, "state_dict": state}, path)
    return files


def test_sizes_that_files_name_take_no_memory(tmp_path):
    files = {}
    for i, (name, parents, changes, words) in enumerate(CASES):
        content = content_of(name, path := tmp_path / f"{i}.pt")
        part = content["config"]
        for parent in parents:
            part = part[parent]
        part.update(changes)
        torch.save(content, path)
        files[path] = words
    content = content_of(POINTS, views := tmp_path / "views.pt")
    content["state_dict"]["head.scores.weight"] = torch.zeros(1, 1).expand(10**7, 128)
    torch.save(content, views)
    torch.save({"state_dict": torch.zeros(2**26)}, tmp_path / "whole.pt")
    packed = tmp_path / "packed.pt"
    whole = zipfile.ZipFile(tmp_path / "whole.pt")
    with whole, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in whole.namelist():
            archive.writestr(entry, whole.read(entry))
    files |= {views: "views of", packed: "unpack to 26[0-9]{7} bytes"}
    if importlib.util.find_spec("lightning"):
        files |= trained_files(tmp_path)
    command = [sys.executable, "-W", "ignore", "-c", READER, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(files), done.stderr
    for (path, outcome, seconds, peak), words in zip(lines, files.values(), strict=True):
        assert path in outcome and re.search(words, outcome), outcome
        assert seconds < 10 and peak < 1, (path, outcome, seconds, peak)


@pytest.mark.parametrize("classes", [1000, 100_000])
def test_a_model_of_many_classes_loads(classes, tmp_path):
    config = {**get_model(POINTS).config(), "num_classes": classes}
    checkpoints.save(checkpoints.build("PointNet2Classifier", config), tmp_path / "model.pt")
    assert checkpoints.load(tmp_path / "model.pt").config()["num_classes"] == classes
