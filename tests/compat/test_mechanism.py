# SPDX-License-Identifier: Apache-2.0
"""install(): what is imported afterwards, from where, and that it can be taken back."""

import importlib
import importlib.util
import pickle
import sys

import pytest
import torch

import torchvox.compat as compat
from torchvox._util.errors import WrongUseError
from torchvox.compat.pcdet_ops import pointnet2_stack_cuda
from torchvox.compat.pointnet2_ops import pointnet2_utils

STACK = "pcdet.ops.pointnet2.pointnet2_stack.pointnet2_stack_cuda"
OWN = "def three_nn(): return 'own'\ndef extra(): return 'extra'\n_private = 1\n"


def names_of_peers():
    return [name for name in sys.modules if name.partition(".")[0] in ("pointnet2_ops", "pcdet")]


def test_an_absent_peer_is_stood_for_and_goes_without_a_trace(fresh):
    before = list(sys.meta_path)
    compat.install("pointnet2_ops", "pcdet")
    assert names_of_peers() == []
    for name in ("pointnet2_ops._ext", "pcdet", "pcdet.ops", STACK):
        assert importlib.util.find_spec(name) is not None
    assert importlib.util.find_spec("pcdet.models") is None
    import pointnet2_ops
    from pointnet2_ops import pointnet2_utils as named

    assert named.three_nn is pointnet2_utils.three_nn
    assert pointnet2_ops.pointnet2_modules.PointnetFPModule  # submodules come by themselves
    assert importlib.import_module(STACK).three_nn_wrapper is pointnet2_stack_cuda.three_nn_wrapper
    with pytest.raises(AttributeError, match=r"not installed.*pcdet.ops.iou3d_nms"):
        sys.modules["pcdet"].models  # noqa: B018
    starred: dict = {}
    exec("from pointnet2_ops.pointnet2_utils import *", starred)
    assert starred["QueryAndGroup"] is pointnet2_utils.QueryAndGroup
    group = pickle.loads(pickle.dumps(named.QueryAndGroup(0.5, 3)))
    assert group.radius == 0.5
    compat.uninstall()
    assert names_of_peers() == [] and sys.meta_path == before
    assert importlib.util.find_spec("pointnet2_ops") is None


def test_names_that_are_not_covered_are_classes_that_raise(fresh):
    compat.install("pcdet")
    stack = importlib.import_module(STACK)

    class Below(stack.vector_pool_wrapper):
        def forward(self, x):
            pass

    for made in (stack.vector_pool_wrapper, Below):
        with pytest.raises(compat.NotCoveredError, match=rf"{STACK}.vector_pool_wrapper .*pcdet"):
            made(1, key=2)
    assert issubclass(compat.NotCoveredError, NotImplementedError)
    with pytest.raises(AttributeError):
        stack.nothing_of_this_name  # noqa: B018
    report = compat.report()
    assert report[f"{STACK}.vector_pool_wrapper"] == "not covered"
    assert report[f"{STACK}.three_nn_wrapper"] == "torchvox"
    assert report["pcdet.ops.iou3d_nms.iou3d_nms_cuda"] == "not imported"


@pytest.mark.parametrize("prefer", ["torchvox", "peer"])
def test_a_peer_that_is_there_keeps_its_other_names(fresh, prefer):
    utils = "from .sub import deep\nfrom . import _ext\n" + OWN
    files = {"__init__.py": "", "pointnet2_utils.py": utils, "sub.py": "deep = 1"}
    fresh({f"pointnet2_ops/{name}": text for name, text in files.items()})
    compat.install("pointnet2_ops", prefer=prefer)
    from pointnet2_ops import pointnet2_utils as named
    from pointnet2_ops.pointnet2_utils import extra

    assert extra() == "extra" and named.deep == 1 and named._private == 1
    assert (named.three_nn is pointnet2_utils.three_nn) == (prefer == "torchvox")
    assert named.ball_query is pointnet2_utils.ball_query  # which this peer lacks
    assert named._ext.three_nn is not None
    assert {"extra", "three_nn", "ball_query"} <= set(dir(named)) & set(named.__all__)
    key = "pointnet2_ops.pointnet2_utils."
    report = compat.report()
    assert report[key + "three_nn"] == prefer and report[key + "ball_query"] == "torchvox"


def test_where_the_parent_is_there_only_the_named_module_is_ours(fresh):
    fresh({"pcdet/__init__.py": "", "pcdet/models.py": "here = 1", "pcdet/ops/__init__.py": ""})
    compat.install(STACK)
    assert importlib.import_module(STACK).three_nn_wrapper
    assert importlib.import_module("pcdet.models").here == 1
    with pytest.raises(ImportError):
        importlib.import_module("pcdet.ops.iou3d_nms.iou3d_nms_cuda")


def test_what_callers_ask_for_is_absent(fresh):
    compat.install("torch_cluster", "pyg_lib")
    for module in ("torch_cluster", "pyg_lib.ops"):
        assert not hasattr(importlib.import_module(module), "graclus_cluster")
        assert f"{module}.graclus_cluster" not in compat.report()


@pytest.mark.parametrize("text", ["import libno_such_file", "raise OSError('libno_such_file')"])
def test_a_peer_that_does_not_import_is_named_by_the_stub(fresh, text):
    fresh({f"{STACK.replace('.', '/')}.py": text})
    compat.install("pcdet")
    stack = importlib.import_module(STACK)
    with pytest.raises(compat.NotCoveredError, match=r"does not import .*libno_such_file"):
        stack.vector_pool_wrapper()
    assert not hasattr(stack, "nothing")


def test_too_late_names_the_importer_and_force_goes_on_and_back(fresh):
    user = "from pointnet2_ops.pointnet2_utils import extra"
    fresh({"pointnet2_ops/pointnet2_utils.py": OWN, "user.py": user})
    user = importlib.import_module("user")
    old = sys.modules["pointnet2_ops.pointnet2_utils"]
    with pytest.raises(
        compat.CompatOrderError, match=r"pointnet2_ops is imported already, by user"
    ):
        compat.install("pointnet2_ops")
    assert "pointnet2_ops" not in {name for name in compat.report()}
    compat.install("pointnet2_ops", force=True)
    from pointnet2_ops import pointnet2_utils as named

    assert named is not old and named.extra is old.extra is user.extra  # never run twice
    assert named.three_nn is pointnet2_utils.three_nn
    compat.uninstall("pointnet2_ops")
    assert sys.modules["pointnet2_ops.pointnet2_utils"] is old
    import pointnet2_ops

    assert pointnet2_ops.pointnet2_utils is old


def test_a_block_restores_what_was_in_place(fresh):
    compat.install("pointnet2_ops._ext")
    before = dict(compat.report())
    with compat.installed("pointnet2_ops", "pcdet", prefer="peer"):
        assert STACK in compat.report()
        with pytest.raises(ZeroDivisionError), compat.installed("pointnet2_ops"):
            1 / 0  # noqa: B018
        importlib.import_module("pointnet2_ops.pointnet2_utils")
    assert compat.report() == before == {"pointnet2_ops._ext": "not imported"}
    assert importlib.import_module("pointnet2_ops._ext").three_nn
    assert importlib.util.find_spec("pointnet2_ops.pointnet2_utils") is None


def test_forks_have_the_modules_elsewhere(fresh):
    compat.install("pcdet", at="fork.ops", python=True)
    compat.install("pointnet2_batch_cuda", at="fork.cpp.pointnet2_cuda")
    utils = importlib.import_module("fork.ops.pointnet2.pointnet2_stack.pointnet2_utils")
    assert utils.stack_farthest_point_sample
    assert importlib.import_module("fork.cpp.pointnet2_cuda").furthest_point_sampling_wrapper
    assert importlib.util.find_spec("pcdet") is None


def test_plain_functions_are_replaced_in_the_module_that_has_them(fresh):
    text = "def farthest_point_sample(xyz, n): return 'slow'\nclass Net:\n"
    text += "    def run(self): return farthest_point_sample\n"
    fresh({"models/pointnet2_utils.py": text})
    from torchvox.compat import pointnet2_plain

    with compat.installed("pointnet2_plain", at="models.pointnet2_utils"):
        module = importlib.import_module("models.pointnet2_utils")
        assert module.Net().run() is pointnet2_plain.farthest_point_sample
        assert compat.report()["models.pointnet2_utils.index_points"] == "torchvox"
    assert module.Net().run()(None, 1) == "slow" and not hasattr(module, "index_points")
    with pytest.raises(compat.CompatOrderError):
        compat.install("pointnet2_plain", at="models.pointnet2_utils")


def test_wrong_use_is_told_with_the_nearest_names(fresh):
    for arguments, options, words in (
        (["pointnet_ops"], {}, "pointnet2_ops"),
        (["pointnet2_plain"], {}, "at="),
        (["pcdet", "pointnet2_ops"], {"at": "x"}, "one name"),
        (["pcdet"], {"prefer": "mine"}, "prefer must be"),
    ):
        with pytest.raises(WrongUseError, match=words):
            compat.install(*arguments, **options)
    assert compat.report() == {}


TYPING = "pyg_lib, WITH_PYG_LIB, WITH_KNN = object, False, False"


def test_torch_geometric_is_told_of_the_searches_alone(fresh):
    fresh({"torch_geometric/typing.py": TYPING, "torch_geometric/__init__.py": ""})
    x = torch.rand(20, 3)
    with compat.installed("torch_geometric"):
        typing = importlib.import_module("torch_geometric.typing")
        assert typing.WITH_KNN and typing.WITH_GRID_CLUSTER and not typing.WITH_PYG_LIB
        edges = torch.ops.pyg.knn(x, x[:5], None, None, 3, False, 1)
        ptr = torch.tensor([0, 20])
        torch.testing.assert_close(edges, typing.pyg_lib.ops.knn(x, x[:5], k=3))
        assert len(torch.ops.pyg.fps(x, ptr, 0.5, False)) == 10
        assert torch.ops.pyg.radius(x, x, ptr, ptr, 0.4, 9, 1, True).shape[0] == 2
        assert torch.ops.pyg.nearest(x, x, None, None).tolist() == list(range(20))
        assert torch.ops.pyg.grid_cluster(x, torch.full((3,), 0.5), None, None).shape == (20,)
    assert not typing.WITH_KNN and typing.pyg_lib is object
