# SPDX-License-Identifier: Apache-2.0
"""`torchvox compat enable` and `run`: processes that nobody edits."""

import json
import os
import subprocess
import sysconfig
import venv

import pytest
from helpers import ROOT

pytest.importorskip("typer", reason="the extra cli is not installed")

# Under `enable pcdet@fork.ops` and `run --peers pointnet2_ops`; the worker starts anew.
SCRIPT = """
import sys
assert "torch" not in sys.modules
import json
import torch, torchvox
assert not [name for name in sys.modules if name.startswith("torchvox.compat")]
from used import Clouds
if __name__ == "__main__":
    from fork.ops.iou3d_nms.iou3d_nms_cuda import nms_gpu
    new = [name for name in sys.modules if name.startswith("torchvox.compat.")]
    assert not {"torchvox.compat.pointnet2_plain", "torchvox.compat.scan"} & set(new), new
    kind = torch.multiprocessing.get_context("spawn")
    loader = torch.utils.data.DataLoader(
        Clouds(), batch_size=2, num_workers=1, multiprocessing_context=kind
    )
    print(json.dumps([sys.argv[1:], [batch.tolist() for batch in loader], nms_gpu.__module__]))
    raise SystemExit(7)
"""
USED = """
import torch
from pointnet2_ops.pointnet2_utils import furthest_point_sample
class Clouds(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return furthest_point_sample(torch.eye(3)[None] * 2, 2)[0]
"""


@pytest.fixture
def environment(tmp_path):
    """The python of an environment of its own, which finds torch and torchvox where they are."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "used.py").write_text(USED)
    venv.create(tmp_path / "env", symlinks=True)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    (site / "here.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    return tmp_path / "env/bin/python", site


def test_processes_of_an_environment_and_of_a_program(environment, monkeypatch, tmp_path, capsys):
    from torchvox.cli import main

    python, site = environment
    before = sorted(path.name for path in site.iterdir())
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(site)})
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("TORCHVOX_COMPAT", "")
    assert main(["compat", "enable", "pointnet2_op"]) == 2
    assert "pointnet2_ops" in capsys.readouterr().err
    assert sorted(path.name for path in site.iterdir()) == before
    assert main(["compat", "enable", "pcdet@fork.ops"]) == 0
    assert main(["compat", "enable", "pcdet@fork.ops", "pointnet2_batch_cuda"]) == 0
    assert "pcdet@fork.ops, pointnet2_batch_cuda (" in capsys.readouterr().out
    assert main(["compat", "status"]) == 0
    assert "pcdet@fork.ops" in capsys.readouterr().out

    def execv(path, command):
        assert path == str(python)
        done.append(subprocess.run(command, cwd=tmp_path, env=os.environ, **pipes))

    done, pipes = [], {"capture_output": True, "text": True}
    monkeypatch.setattr(os, "execv", execv)
    main(["compat", "run", "--peers", " pointnet2_ops", "script.py", "a", "--b"])
    assert done[0].returncode == 7, done[0].stderr
    adapter = "torchvox.compat.pcdet_ops.iou3d_nms_cuda"
    assert json.loads(done[0].stdout) == [["a", "--b"], [[[0, 2], [0, 2]]], adapter]
    assert main(["compat", "disable"]) == 0
    assert sorted(path.name for path in site.iterdir()) == before
