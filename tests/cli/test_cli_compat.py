# SPDX-License-Identifier: Apache-2.0
"""torchvox compat scan and run."""

import json

import pytest

FILES = {
    "nets/a.py": """
import pointnet2_ops.pointnet2_utils as pu
from pointnet2_ops.pointnet2_utils import QueryAndGroup as Group, three_nn
from pointnet2_ops import pointnet2_modules
from . import iou3d_nms_cuda
from det.ops.roiaware_pool3d import roiaware_pool3d_cuda as pool
x = [pu.ball_query(1), pu.three_nn, Group(0.1, 3), pu.GatherOperation.apply(2)]
class Net(pointnet2_modules.PointnetSAModule):
    iou = iou3d_nms_cuda.nms_gpu
pool.forward(1)
pool.nothing()
""",
    "nets/b.py": "from pointnet2_ops.pointnet2_utils import *\nball_query(1), other()\n",
    "nets/pointnet2_utils.py": """
def index_points(p, i): return p
def query_ball_point(a): return index_points(a, a)
class Net:
    pass
""",
    "nets/c.py": "from .pointnet2_utils import Net, index_points\nindex_points(Net(), 1)\n",
    "nets/old.py": "print 'python 2'\n",
    "nets/__init__.py": "",
}


def write(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)


def test_scan_tells_what_becomes_of_each_name(torchvox_cli, tmp_path):
    write(tmp_path, FILES)
    result = torchvox_cli("compat", "scan", tmp_path / "nets", "--json")
    found = json.loads(result.out)
    names = {(f["name"], f["at"]): (f["files"], f["uses"], f["status"]) for f in found["names"]}
    utils, batch = "pointnet2_ops.pointnet2_utils.", "pcdet.ops.roiaware_pool3d."
    plain = "nets.pointnet2_utils"
    assert names == {
        (utils + "ball_query", ""): (2, 2, "covered"),
        (utils + "three_nn", ""): (1, 1, "covered"),
        (utils + "QueryAndGroup", ""): (1, 1, "covered"),
        (utils + "GatherOperation", ""): (1, 1, "covered"),
        ("pointnet2_ops.pointnet2_modules.PointnetSAModule", ""): (1, 1, "covered"),
        ("pcdet.ops.iou3d_nms.iou3d_nms_cuda.nms_gpu", "nets.iou3d_nms_cuda"): (1, 1, "covered"),
        (batch + "roiaware_pool3d_cuda.forward", "det.ops.roiaware_pool3d.roiaware_pool3d_cuda"): (
            *(1, 1),
            "covered",
        ),
        (batch + "roiaware_pool3d_cuda.nothing", "det.ops.roiaware_pool3d.roiaware_pool3d_cuda"): (
            *(1, 1),
            "not covered",
        ),
        ("pointnet2_plain.index_points", plain): (2, 2, "covered"),
        ("pointnet2_plain.query_ball_point", plain): (1, 0, "covered"),
    }
    assert result.code == 1
    assert found["install"] == [
        'torchvox.compat.install("pointnet2_ops")',
        'torchvox.compat.install("pcdet", at="det.ops")',
        'torchvox.compat.install("pcdet.ops.iou3d_nms.iou3d_nms_cuda", at="nets.iou3d_nms_cuda")',
        'torchvox.compat.install("pointnet2_plain", at="nets.pointnet2_utils")',
    ]


def test_scan_of_a_peer_leaves_its_own_python_out(torchvox_cli, tmp_path):
    """Its compiled modules are the question; `install("pcdet")` answers them where they are."""
    iou = "from . import iou3d_nms_cuda\ndef nms_gpu(x): return iou3d_nms_cuda.nms_gpu(x)\n"
    user = "from ..ops.iou3d_nms import iou3d_nms_utils\niou3d_nms_utils.nms_gpu(1)\n"
    files = {"ops/iou3d_nms/iou3d_nms_utils.py": iou, "models/a.py": user}
    for folder in ("", "ops", "ops/iou3d_nms", "models"):
        files[f"{folder}/__init__.py"] = ""
    write(tmp_path, {f"pcdet/{name}": text for name, text in files.items()})
    found = json.loads(torchvox_cli("compat", "scan", tmp_path / "pcdet", "--json").out)
    assert [one["name"] for one in found["names"]] == ["pcdet.ops.iou3d_nms.iou3d_nms_cuda.nms_gpu"]
    assert found["install"] == ['torchvox.compat.install("pcdet")']


def test_scan_of_one_file_is_0_when_all_is_covered(torchvox_cli, tmp_path):
    write(tmp_path, FILES)
    result = torchvox_cli("compat", "scan", tmp_path / "nets" / "b.py")
    assert result.code == 0 and 'install("pointnet2_ops")' in result.out
    assert "pointnet2_ops.pointnet2_utils.ball_query" in result.out


def test_scan_of_a_wrong_path_is_wrong_use(torchvox_cli, tmp_path):
    torchvox_cli("compat", "scan", tmp_path / "no").assert_one_sentence(2, "no Python files")
    torchvox_cli("compat", "run", "--peers", "nobody", "x.py").assert_one_sentence(2, "nobody")


def test_scan_finds_imports_beside_a_star_and_leaves_copies_their_python(torchvox_cli, tmp_path):
    text = """
from mmcv.ops import *
from mmcv.ops import roi_align
from pcdet.ops.iou3d_nms.iou3d_nms_utils import nms_gpu
import pointnet2._ext as _ext
knn(nms_gpu(1), _ext.ball_query(1))
"""
    write(tmp_path, {"a.py": text})
    found = json.loads(torchvox_cli("compat", "scan", tmp_path / "a.py", "--json").out)
    iou = "pcdet.ops.iou3d_nms.iou3d_nms_utils.nms_gpu"
    names = ["mmcv.ops.knn", "mmcv.ops.roi_align", iou, "pointnet2_ops._ext.ball_query"]
    assert [one["name"] for one in found["names"]] == names
    assert found["install"] == [
        'torchvox.compat.install("mmcv", "pcdet", python=True)',
        'torchvox.compat.install("pointnet2_ops._ext", at="pointnet2._ext")',
    ]


def test_scan_follows_what_a_package_passes_on(torchvox_cli, tmp_path):
    files = {
        "cpp/__init__.py": "from .batch import cuda\nfrom . import loop\n",
        "cpp/batch/__init__.py": "import pointnet2_batch_cuda as cuda\n",
        "cpp/loop.py": "from . import loop\nfrom cpp.back import x\n",
        "cpp/back.py": "from cpp.loop import x\n",
        "nets.py": "from cpp import cuda, loop\ncuda.ball_query_wrapper(loop.loop.x)\n",
    }
    write(tmp_path, files)
    found = json.loads(torchvox_cli("compat", "scan", tmp_path, "--json").out)
    name = "pcdet.ops.pointnet2.pointnet2_batch.pointnet2_batch_cuda"
    assert [one["name"] for one in found["names"]] == [f"{name}.ball_query_wrapper"]
    line = f'torchvox.compat.install("{name}", at="pointnet2_batch_cuda")'
    assert found["install"] == [line]


PROGRAM = """
import argparse, atexit, multiprocessing, pickle, sys
{}
import fork.ops.iou3d_nms.iou3d_nms_cuda as module
from {}methods import METHODS
def name(_): return module.__spec__.origin.rpartition("/")[2]
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("method")
    method = parser.parse_args().method
    print(name(0), sys.argv[1:], sys.path[0])
    atexit.register(lambda: pickle.dumps(name))
    if method == "leave":
        sys.exit("a last word")
    with multiprocessing.get_context(METHODS[method]).Pool(1) as pool:
        print(pool.map_async(name, [1]).get(60))
"""
INSTALL = 'import torchvox.compat; torchvox.compat.install("pcdet", at="fork.ops")'
PROGRAMS = {
    "part/script.py": PROGRAM.format("", ""),
    "part/installing.py": PROGRAM.format(INSTALL, ""),
    "part/module.py": PROGRAM.format("", "."),
    "part/methods.py": "METHODS = {'fork': 'fork', 'spawn': 'spawn'}\n",
}
RUNS = [  # command, argument of the program, exit code, end of stderr
    ("part/script.py", "fork", 0, ""),
    ("-m part.module", "fork", 0, ""),
    ("part/installing.py", "spawn", 0, ""),
    ("part/script.py", "leave", 1, "a last word"),
    ("-m part.module", "other", 1, "KeyError: 'other'"),
    ("part/script.py", "--peers", 2, "arguments are required: method"),
    ("part/none.py", "fork", 2, "part/none.py is no file"),
]


@pytest.mark.parametrize(("command", "argument", "code", "last"), RUNS)
def test_run_puts_torchvox_in_place_of_peers(real_process, tmp_path, command, argument, code, last):
    write(tmp_path, PROGRAMS)
    run = ("compat", "run", "--peers", " pointnet2_ops, pcdet@fork.ops")
    result = real_process(*run, *command.split(), argument)
    assert result.code == code and result.err.rstrip().endswith(last), result.err
    assert last or not result.err
    folder = tmp_path if "-m" in command else tmp_path / "part"
    lines = [f"iou3d_nms_cuda.py ['{argument}'] {folder}", "['iou3d_nms_cuda.py']"]
    assert result.out.splitlines() == lines[: 2 - code]


def test_run_takes_code(real_process):
    code = "import sys, torch_scatter; print(sys.argv, torch_scatter.__name__); {}[sys.argv[1]]"
    result = real_process("compat", "run", "--peers", "torch_scatter", "-c", code, "a", "--b")
    assert result.code == 1 and result.err.rstrip().endswith("KeyError: 'a'")
    assert result.out.startswith("['-c', 'a', '--b'] ")
