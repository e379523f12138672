# SPDX-License-Identifier: Apache-2.0
"""Sizes that a file names for a network take neither memory nor time before they are refused."""

import copy
import functools
import json
import re
import subprocess
import sys
import zipfile

import pytest
import torch
from helpers import ROOT

from torchvox.models import checkpoints, get_model

SMALL, ANCHORS = "pointnet2_cls_shapes_small", "pointpillars_kitti"
READER = """
import json, re, sys, time
from torchvox._errors import TorchvoxError
from torchvox.models.checkpoints import load
for path in sys.argv[1:]:
    if path.endswith(".ckpt"):
        from torchvox.train import load_checkpoint as load
    start = time.monotonic()
    try:
        said = f"loaded {load(path)}"
    except TorchvoxError as error:
        said = str(error)
    most = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 2**20
    print(json.dumps([path, said, time.monotonic() - start, most]))
"""
CASES = [  # of the model, a field of its configuration, the value that the file names, the words
    (SMALL, "num_classes", 10_000_000, "size mismatch for head.scores.weight"),
    (SMALL, "head", [10**9], "size mismatch"),
    (SMALL, "head", [8] * 10**6, "at most 5000 values"),
    (SMALL, "head", [8] * 2400, "more layers than"),
    (SMALL, "in_channels", 10**9, "size mismatch"),
    (ANCHORS, "config.backbone.layers", [10**9, 5, 5], "more layers than"),
    (ANCHORS, "config.neck.channels", [10**8] * 3, "size mismatch"),
    (ANCHORS, "config.pillar_size", [0.0016, 0.0016, 4], "anchors of 89994240508 bytes"),
    (ANCHORS, "config.head.anchors", [{}] * 10**6, "at most 5000 values"),
]


def test_sizes_that_files_name_take_no_memory(tmp_path):
    contents, made = {}, []
    for name in (SMALL, ANCHORS):
        checkpoints.save(get_model(name), tmp_path / "whole.pt")
        contents[name] = torch.load(tmp_path / "whole.pt", weights_only=True)
    contents[SMALL]["config"]["dropout"] = None  # as many as there are layers
    for name, field, value, _ in CASES:
        made.append(copy.deepcopy(contents[name]))
        *parents, last = field.split(".")
        functools.reduce(dict.get, parents, made[-1]["config"])[last] = value
    made.append({**made[0], "fused": "float32"})
    made.append(copy.deepcopy(made[0]))
    made[-1]["state_dict"]["head.scores.weight"] = torch.zeros(1, 1).expand(10**7, 128)
    made.append({"format": "torchvox.models", "state_dict": torch.zeros(2**26)})
    paths = [tmp_path / f"{i}.pt" for i in range(len(made))]
    for path, content in zip(paths, made, strict=True):
        torch.save(content, path)
    whole = zipfile.ZipFile(paths[-1].rename(tmp_path / "whole.pt"))
    with whole, zipfile.ZipFile(paths[-1], "w", zipfile.ZIP_DEFLATED) as small:
        for entry in whole.namelist():
            small.writestr(entry, whole.read(entry))
    words = [case[-1] for case in CASES]
    check(paths, [*words, "names 12[0-9]{8} numbers", "views of", "unpack to 26[0-9]{7} bytes"])


def test_sizes_that_files_of_a_training_name_take_no_memory(tmp_path):
    pytest.importorskip("lightning", reason="the extra train is not installed")
    from torchvox.train.builders import build_model, labels_of
    from torchvox.train.checkpoint import describe
    from torchvox.train.config import load_config

    config = load_config(SMALL)
    labels = labels_of(config)
    state = {f"model.{k}": v for k, v in build_model(config, labels).state_dict().items()}
    about, paths = describe(config, labels), []
    for args, classes in (({"head": [10**9]}, 1), ({"head": [8] * 10**6}, 1), ({}, 10**5)):
        changed = copy.deepcopy(about)
        changed["config"]["model"]["args"].update(args)
        changed["labels"]["classes"] *= classes
        paths.append(tmp_path / f"{len(paths)}.ckpt")
        torch.save({"torchvox": changed, "state_dict": state}, paths[-1])
    check(paths, ["size mismatch|dropout", "at most 5000 values", "at most 5000 values"])


def check(paths, words):
    command = [sys.executable, "-W", "ignore", "-c", READER, *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(paths), done.stderr
    for (path, said, seconds, most), wanted in zip(lines, words, strict=True):
        assert path in said and re.search(wanted, said), said
        assert seconds < 10 and most < 1, (path, said, seconds, most)
