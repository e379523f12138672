# SPDX-License-Identifier: Apache-2.0
"""Types of arguments, for type checkers and for TorchScript.

TorchScript knows lists and strings; a type checker accepts tuples, and of most strings a few words.
"""

from typing import TYPE_CHECKING, List, Literal, Sequence, get_origin

AssignMode = Literal["pcdet", "mmdet"]
Backend = Literal["auto", "sort", "hash"]
Bounds = Literal["grid", "range"]
CellOrder = Literal["first", "sorted"]
Fill = Literal["first", "pad"]
Finite = Literal["xyz", "all"]
InsideMode = Literal["index", "mask", "count"]
IouMode = Literal["bev", "3d"]
KeyLayout = Literal["morton", "zyx"]
KeyOrder = Literal["first", "key"]
LongRays = Literal["truncate", "drop"]
Merge = Literal["add", "replace", "keep"]
Missing = Literal["allocate", "skip"]
NmsMode = Literal["rotated", "circle"]
Nonfinite = Literal["skip", "last"]
Orientation = Literal["grid", "image", "north_up"]
OverlapMetric = Literal["iou", "iof", "overlap"]
Overflow = Literal["ignore", "warn", "raise"]
PadSemantics = Literal["reference", "none"]
PlaceMode = Literal["both", "greedy"]
Reduction = Literal["mean", "sum", "max", "min"]
Reduce = Literal["none", "mean", "sum", "max", "min"]
RowOrder = Literal["first", "zyx", "xyz"]
Rule = Literal["every_ray", "scan"]
Select = Literal["occupied", "free", "observed"]
Start = Literal["random"]
Weight = Literal["dist", "dist2"]

if not TYPE_CHECKING:
    Sequence = List
    globals().update({k: str for k, v in list(globals().items()) if get_origin(v) is Literal})
