# SPDX-License-Identifier: Apache-2.0
"""The table of names: the modules of each peer, and the module of torchvox.compat that replaces
each. The finder, the stubs, the scan and docs/switching.md are built from it.

What a module covers is declared in it as literals, which are read without importing it:

    __all__        the peer's names that it has
    NOT_COVERED    the peer's other public names, in one string
    ABSENT         True: these raise AttributeError, since callers ask by hasattr; else they are
                   stubs
    PARTLY         "name name": the value of an argument that raises NotCoveredError
    DIFFERS        "name name": how the results differ by choice
"""

import ast
import difflib
import functools
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from torchvox._util.errors import WrongUseError

FOLDER = Path(__file__).parent


class Peer(NamedTuple):
    """root: the part of its modules' names that `at` replaces; the modules are named behind it.
    python: its Python over the compiled modules. patched: names go into the module that is there.
    """

    root: str
    modules: Mapping[str, str]
    python: Mapping[str, str] = {}
    patched: bool = False


class Row(NamedTuple):
    peer: str
    module: str
    shim: str
    patched: bool = False


_MMCV = """
active_rotated_filter assign_score_withk ball_query bbox border_align box_iou_quadri
box_iou_rotated carafe cc_attention chamfer_distance contour_expand convex_iou corner_pool
correlation deform_conv deform_roi_pool deprecated_wrappers diff_iou_rotated focal_loss
furthest_point_sample fused_bias_leakyrelu gather_points group_points iou3d knn masked_conv
min_area_polygons modulated_deform_conv multi_scale_deform_attn nms pixel_group point_sample
points_in_boxes points_in_polygons points_sampler prroi_pool psa_mask riroi_align_rotated
roi_align roi_align_rotated roi_pool roiaware_pool3d roipoint_pool3d rotated_feature_align saconv
scatter_points sparse_conv sparse_modules sparse_ops sparse_pool sparse_structure sync_bn
three_interpolate three_nn tin_shift upfirdn2d voxelize
"""

_PYTORCH3D = ("", ".ball_query", ".knn", ".sample_farthest_points", ".utils")
_SPCONV = (
    "", ".conv", ".core", ".modules", ".pool", ".tables", ".functional", ".ops", ".identity",
    ".constants",
)  # fmt: skip
_SCATTER = ("", "composite", "scatter", "segment_coo", "segment_csr")

PEERS: Dict[str, Peer] = {
    "mmcv": Peer("mmcv.ops", {part: "mmcv_ops" for part in ("", *_MMCV.split())}),
    "pointnet2_ops": Peer(
        "pointnet2_ops",
        {
            "": "pointnet2_ops",
            "_ext": "pointnet2_ops._ext",
            "pointnet2_utils": "pointnet2_ops.pointnet2_utils",
            "pointnet2_modules": "pointnet2_ops.pointnet2_modules",
        },
    ),
    "pcdet": Peer(
        "pcdet.ops",
        {
            "iou3d_nms.iou3d_nms_cuda": "pcdet_ops.iou3d_nms_cuda",
            "roiaware_pool3d.roiaware_pool3d_cuda": "pcdet_ops.roiaware_pool3d_cuda",
            "roipoint_pool3d.roipoint_pool3d_cuda": "pcdet_ops.roipoint_pool3d_cuda",
            "pointnet2.pointnet2_batch.pointnet2_batch_cuda": "pcdet_ops.pointnet2_batch_cuda",
            "pointnet2.pointnet2_stack.pointnet2_stack_cuda": "pcdet_ops.pointnet2_stack_cuda",
        },
        {
            "iou3d_nms.iou3d_nms_utils": "pcdet_ops.iou3d_nms_utils",
            "roiaware_pool3d.roiaware_pool3d_utils": "pcdet_ops.roiaware_pool3d_utils",
            "pointnet2.pointnet2_batch.pointnet2_utils": "pcdet_ops.pointnet2_batch_utils",
            "pointnet2.pointnet2_stack.pointnet2_utils": "pcdet_ops.pointnet2_stack_utils",
        },
    ),
    "pytorch3d": Peer(
        "pytorch3d", {**{f"ops{part}": "pytorch3d_ops" for part in _PYTORCH3D}, "_C": "pytorch3d_c"}
    ),
    "torch_cluster": Peer("torch_cluster", {"": "torch_cluster"}),
    "pyg_lib": Peer("pyg_lib", {"ops": "pyg_lib_ops"}),
    "torch_geometric": Peer("torch_geometric", {"typing": "torch_geometric"}, patched=True),
    "torch_scatter": Peer("torch_scatter", {part: "torch_scatter" for part in _SCATTER}),
    "spconv": Peer(
        "spconv",
        {
            **{part: "spconv_core" for part in ("", "constants", "core")},
            **{f"pytorch{part}": "spconv_pytorch" for part in _SPCONV},
            **{"utils": "spconv_utils", "pytorch.utils": "spconv_utils"},
        },
    ),
    "pointops": Peer("pointops", {"": "pointops", "_C": "pointops_c"}),
    "pointnet2_plain": Peer("", {"": "pointnet2_plain"}, patched=True),
}


class Literals(NamedTuple):
    covered: Tuple[str, ...]
    not_covered: Tuple[str, ...]
    absent: bool
    partly: Mapping[str, str]
    differs: Mapping[str, str]

    @property
    def names(self) -> Tuple[str, ...]:
        """The names that an adapter has, stubs included."""
        return self.covered if self.absent else self.covered + self.not_covered


def source(shim: str) -> Path:
    """The file of a module of torchvox.compat."""
    path = FOLDER.joinpath(*shim.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def literals(shim: str) -> Literals:
    """What a module declares, without importing it."""
    values: Dict[str, Any] = {"__all__": (), "NOT_COVERED": "", "ABSENT": False}
    values.update(PARTLY={}, DIFFERS={})
    for node in ast.parse(source(shim).read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id in values:
            values[target.id] = ast.literal_eval(node.value)
    partly, differs = (
        {name: words for names, words in values[key].items() for name in names.split()}
        for key in ("PARTLY", "DIFFERS")
    )
    covered, others = tuple(values["__all__"]), tuple(values["NOT_COVERED"].split())
    return Literals(covered, others, values["ABSENT"], partly, differs)


def join(*parts: str) -> str:
    return ".".join(filter(None, parts))


def rows_of(name: str, at: Optional[str] = None, python: bool = True) -> Dict[str, Row]:
    """The modules of a peer by their names, under `at` where it is somewhere else."""
    peer = PEERS[name]
    modules = {**peer.modules, **(peer.python if python else {})}
    return {
        join(peer.root if at is None else at, part): Row(
            name, join(peer.root, part), shim, peer.patched
        )
        for part, shim in modules.items()
    }


def every() -> List[Row]:
    """The rows of all peers."""
    return [row for name in PEERS for row in rows_of(name).values()]


def select(name: str, at: Optional[str] = None, python: bool = False) -> Dict[str, Row]:
    """What `install(name, at=at)` puts in place, by the names that it will have.

    name: a peer, one of its modules, or the last part of the name of one of ours.
    Raises WrongUseError for others, with the nearest names.
    """
    if name in PEERS:
        if not (at or PEERS[name].root):
            raise WrongUseError(f"{name} has no name of its own: say where it is, at='models.x'")
        return rows_of(name, at, python)
    for row in every():
        if name in (row.module, row.shim.rpartition(".")[2]):
            return {at or row.module: row}
    names = [*PEERS, *dict.fromkeys(row.module for row in every())]
    near = difflib.get_close_matches(name, names, 3, 0.5) or list(PEERS)
    raise WrongUseError(f"torchvox.compat does not support {name!r}; supported: {', '.join(near)}")
