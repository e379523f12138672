# SPDX-License-Identifier: Apache-2.0
"""torchvox compat scan and run."""

import json
import sys

import pytest

from torchvox.compat.table import PEERS

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


IOU = "pcdet.ops.iou3d_nms.iou3d_nms_"
BATCH, DET = "pcdet.ops.roiaware_pool3d.", "det.ops.roiaware_pool3d."
POOL = "roiaware_pool3d_cuda"
POINTNET = "pcdet.ops.pointnet2.pointnet2_batch.pointnet2_batch_cuda"
PCDET = {f"{folder}/__init__.py": "" for folder in ("", "ops", "ops/iou3d_nms", "models")} | {
    "ops/iou3d_nms/iou3d_nms_utils.py": "from . import iou3d_nms_cuda\n"
    "def nms_gpu(x): return iou3d_nms_cuda.nms_gpu(x)\n",
    "models/a.py": "from ..ops.iou3d_nms import iou3d_nms_utils\niou3d_nms_utils.nms_gpu(1)\n",
}
STAR = """
from mmcv.ops import *
from mmcv.ops import roi_align
from pcdet.ops.iou3d_nms.iou3d_nms_utils import nms_gpu
import pointnet2._ext as _ext
knn(nms_gpu(1), _ext.ball_query(1))
"""
PASSES_ON = {
    "cpp/__init__.py": "from .batch import cuda\nfrom . import loop\n",
    "cpp/batch/__init__.py": "import pointnet2_batch_cuda as cuda\n",
    "cpp/loop.py": "from . import loop\nfrom cpp.back import x\n",
    "cpp/back.py": "from cpp.loop import x\n",
    "nets.py": "from cpp import cuda, loop\ncuda.ball_query_wrapper(loop.loop.x)\n",
}
FALLBACK = """
import spconv
if spconv.__version__ > "2.2":
    spconv.constants.SPCONV_USE_DIRECT_TABLE = False
try:
    import spconv.pytorch as spconv
except ImportError:
    import spconv as spconv
spconv.SubMConv3d(4, 4, 3)
"""
SCANS = {  # files, what is scanned, its names, its lines of install
    "copies of a peer's own Python": (
        # its compiled modules are the question; install("pcdet") answers them where they are
        *({f"pcdet/{name}": text for name, text in PCDET.items()}, "pcdet", [f"{IOU}cuda.nms_gpu"]),
        ['("pcdet")'],
    ),
    "imports beside a star": (
        *({"a.py": STAR}, "a.py"),
        [
            "mmcv.ops.knn",
            "mmcv.ops.roi_align",
            f"{IOU}utils.nms_gpu",
            "pointnet2_ops._ext.ball_query",
        ],
        ['("mmcv", "pcdet", python=True)', '("pointnet2_ops._ext", at="pointnet2._ext")'],
    ),
    "an import with a fallback": (
        *({"a.py": FALLBACK}, "a.py"),
        ["spconv.pytorch.SubMConv3d"],
        ['("spconv")'],
    ),
    "what a package passes on": (
        *(PASSES_ON, ".", [f"{POINTNET}.ball_query_wrapper"]),
        [f'("{POINTNET}", at="pointnet2_batch_cuda")'],
    ),
}


def write(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)


def test_scan_lists_what_becomes_of_each_name(torchvox_cli, tmp_path):
    write(tmp_path, FILES)
    result = torchvox_cli("compat", "scan", tmp_path / "nets", "--json")
    content = json.loads(result.out)
    names = {(f["name"], f["at"]): (f["files"], f["uses"], f["status"]) for f in content["names"]}
    utils, plain = "pointnet2_ops.pointnet2_utils.", "nets.pointnet2_utils"
    assert names == {
        (utils + "ball_query", ""): (2, 2, "covered"),
        (utils + "three_nn", ""): (1, 1, "covered"),
        (utils + "QueryAndGroup", ""): (1, 1, "covered"),
        (utils + "GatherOperation", ""): (1, 1, "covered"),
        ("pointnet2_ops.pointnet2_modules.PointnetSAModule", ""): (1, 1, "covered"),
        (f"{IOU}cuda.nms_gpu", "nets.iou3d_nms_cuda"): (1, 1, "covered"),
        (f"{BATCH}{POOL}.forward", DET + POOL): (1, 1, "covered"),
        (f"{BATCH}{POOL}.nothing", DET + POOL): (1, 1, "not covered"),
        ("pointnet2_plain.index_points", plain): (2, 2, "covered"),
        ("pointnet2_plain.query_ball_point", plain): (1, 0, "covered"),
    }
    assert result.code == 1
    assert content["install"] == [
        'torchvox.compat.install("pointnet2_ops")',
        'torchvox.compat.install("pcdet", at="det.ops")',
        'torchvox.compat.install("pcdet.ops.iou3d_nms.iou3d_nms_cuda", at="nets.iou3d_nms_cuda")',
        'torchvox.compat.install("pointnet2_plain", at="nets.pointnet2_utils")',
    ]
    covered = torchvox_cli("compat", "scan", tmp_path / "nets" / "b.py")
    covered.ok('install("pointnet2_ops")', "pointnet2_ops.pointnet2_utils.ball_query")


@pytest.mark.parametrize("case", SCANS)
def test_scan_finds(torchvox_cli, tmp_path, case):
    files, path, names, lines = SCANS[case]
    write(tmp_path, files)
    content = json.loads(torchvox_cli("compat", "scan", tmp_path / path, "--json").out)
    assert [one["name"] for one in content["names"]] == names
    assert content["install"] == [f"torchvox.compat.install{line}" for line in lines]


PORT = {
    "mine/a.py": """
from importlib import import_module
import importlib as il
import MinkowskiEngine as ME, frnn
from torch_geometric.nn import knn_graph, GCNConv
from mmdet3d.ops import (
    ball_query,
)
import spconv.pytorch as spconv
cluster = il.import_module("torch_cluster")
scatter = __import__("torch_scatter")
def f(x):
    spconv.SparseConv4d(1), spconv.SparseConv4d.forward(x), spconv.SparseAvgPool3d
    return scatter.scatter_mul(knn_graph(x)), import_module("torchsparse.nn").Conv3d
""",
    "mine/b.py": "from spconv.pytorch import SparseConv4d\nfrom torch_cluster import knn\nknn(1)\n",
    "mine/frnn.py": "import numpy\n",
    "none/a.py": "import numpy, importlib\nimportlib.import_module(numpy.name)\n",
    "alone/a.py": "import knn_cuda\n",
    "alone/old.py": "\nprint 'x'\n",
    "alone/.venv/site-packages/torch_geometric/a.py": "from torch_cluster import fps\n",
    "right/b.py/c.txt": "",
    "right/long.py": f"x = {'1 + ' * 900} 1\n",
    "right/a.py": "from torch_cluster import radius_graph as r\nr(\n    1,\n)\n",
}
HIDDEN = "imported by import_module, or passed on whole: its names that are used are not visible"
TEXTS = {  # folder -> exit code and text, without and with --files
    "mine": (1, f"""\
not covered    spconv.pytorch.SparseAvgPool3d: 1 use in 1 file
               mine/a.py:13
not covered    spconv.pytorch.SparseConv4d: 2 uses in 2 files
               mine/a.py:13
               mine/b.py:1
partly         torch_cluster: 1 use in 1 file
               {HIDDEN}
               mine/a.py:10
covered        torch_cluster.knn: 1 use in 1 file
               Among equal distances the lower index comes first; cosine works on the CPU too.
               mine/b.py:2 *
               mine/b.py:3 *
not covered    torch_scatter.scatter_mul: 1 use in 1 file
               mine/a.py:14
also imported, no adapter: MinkowskiEngine, mmdet3d.ops, torch_geometric.nn.knn_graph, torchsparse
               mine/a.py:4 MinkowskiEngine
               mine/a.py:6 mmdet3d.ops
               mine/a.py:5 torch_geometric.nn.knn_graph
               mine/a.py:14 torch_geometric.nn.knn_graph
               mine/a.py:14 torchsparse
torch_geometric.nn calls pyg_lib or torch_cluster, which have adapters
torchvox.compat.install("torch_cluster")
"""),
    "none": (0, f"no names of {', '.join(PEERS)} are used\n"),
    "alone": (1, f"no names of {', '.join(PEERS)} are used\n"
                 "also imported, no adapter: knn_cuda\n               alone/a.py:1 knn_cuda\n"
                 "not valid Python 3, not read: alone/old.py:2\n"),
    "right": (0, """\
covered        torch_cluster.radius_graph: 1 use in 1 file
               At most max_num_neighbors without loops: 1.6.3 may return one more.
               right/a.py:1 *
               right/a.py:2 *
torchvox.compat.install("torch_cluster")
"""),
}  # fmt: skip


@pytest.mark.parametrize("folder", TEXTS)
def test_scan_says_where_each_name_is(torchvox_cli, tmp_path, monkeypatch, folder):
    write(tmp_path, PORT)
    monkeypatch.setenv("COLUMNS", "80")  # in which nothing is cut
    code, text = TEXTS[folder]
    few = "".join(line for line in text.splitlines(True) if not line.endswith(" *\n"))
    for options, expected in (((), few), (("--files",), text.replace(" *\n", "\n"))):
        result = torchvox_cli("compat", "scan", folder, *options)
        assert (result.code, result.out) == (code, expected)
    content = json.loads(torchvox_cli("compat", "scan", folder, "--json").out)
    places = [p for one in content["names"] for p in one["places"]]
    places += [f"{p} {name}" for name, each in content["no_adapter"].items() for p in each]
    places += [f"not valid Python 3, not read: {p}" for p in content["unread"]]
    stars = [line.strip(" *") for line in text.splitlines() if ".py:" in line]
    assert places == stars


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
    with multiprocessing.get_context(METHODS[method]).Pool(1) as pool:
        print(pool.map_async(name, [1]).get(60))
"""
INSTALL = 'import torchvox.compat; torchvox.compat.install("pcdet", at="fork.ops")'
PROGRAMS = {
    "part/script.py": PROGRAM.format("", ""),
    "part/installing.py": PROGRAM.format(INSTALL, ""),
    "part/module.py": PROGRAM.format("", "."),
    "part/methods.py": "METHODS = {'fork': 'fork', 'spawn': 'spawn'}\n",
    "part/last.py": "import sys; print(sys.argv[1:]); sys.exit(' '.join(sys.argv[1:]))\n",
}


@pytest.mark.parametrize(
    ("command", "method"),
    [("part/script.py", "fork"), ("-m part.module", "fork"), ("part/installing.py", "spawn")],
)
def test_run_puts_torchvox_in_place_of_peers(real_process, tmp_path, command, method):
    write(tmp_path, PROGRAMS)
    run = ("compat", "run", "--peers", " pointnet2_ops, pcdet@fork.ops")
    result = real_process(*run, *command.split(), method).ok()
    folder = tmp_path if "-m" in command else tmp_path / "part"
    assert result.err == "" and result.out.splitlines() == [
        *(f"iou3d_nms_cuda.py ['{method}'] {folder}", "['iou3d_nms_cuda.py']")
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "out"),
    [
        (("part/last.py", "--peers", "b"), "--peers b", "['--peers', 'b']\n"),
        (("-m", "part.last"), "", "[]\n"),
        (
            ("-c", "import sys; print(sys.argv); {}[sys.argv[1]]", "a", "--b"),
            1,
            "['-c', 'a', '--b']\n",
        ),
        (("-c", "raise KeyboardInterrupt"), 130, ""),
    ],
)
def test_run_passes_arguments_and_exit_codes_on(
    torchvox_cli, tmp_path, monkeypatch, capsys, arguments, code, out
):
    write(tmp_path, PROGRAMS)
    peers = []
    monkeypatch.setattr("torchvox.compat.install", lambda name, at: peers.append((name, at)))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(SystemExit) as ended:
        torchvox_cli("compat", "run", "--peers", " torch_scatter, pcdet@fork.ops", *arguments)
    assert (ended.value.code, capsys.readouterr().out) == (code, out)
    assert peers == [("torch_scatter", None), ("pcdet", "fork.ops")]


def test_what_scan_and_run_cannot_use_is_wrong_use(torchvox_cli, tmp_path, monkeypatch):
    torchvox_cli("compat", "scan", tmp_path / "no").assert_one_sentence(2, "does not exist")
    run = ("compat", "run", "--peers")
    torchvox_cli(*run, "nobody", "x.py").assert_one_sentence(2, "nobody")
    monkeypatch.setattr("torchvox.compat.install", lambda name, at: None)
    torchvox_cli(*run, "mmcv", "none.py").assert_one_sentence(2, "none.py is not a file")
    torchvox_cli(*run, "mmcv", "-m").assert_one_sentence(2, "compat run -m needs a module")
