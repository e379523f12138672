# SPDX-License-Identifier: Apache-2.0
"""PointNet++ (Qi et al., NeurIPS 2017): classifier, part segmenter and segmenter.

Points in, scores out, with one `forward` for eager, TorchScript, torch.export and torch.compile:
fixed shapes, no host synchronization, one furthest point sampling for all levels.
"""

from typing import Any, Dict, Optional, Sequence, Union

import torch
from torch import Tensor

from torchvox.models.conventions import Levels, Net, conventions, plain, sizes, standard_net
from torchvox.models.network import Head, PointNet2, PointNet2Propagation


class PointNet2Classifier(PointNet2):
    """PointNet++ for classification.

    num_classes: scores per cloud. in_channels: columns of the points, x, y and z first; the rest
        are features, normals for example.
    scales: "ssg", one ball size per level, or "msg", several.
    preset: "yanx27" or "pn2", the conventions and sizes of that reference. `changes` are fields of
        `Conventions` in its place.
    levels, head, dropout: other sizes; levels as `Level` or mappings with its fields.

    forward(points [B, N, in_channels] float32, lengths [B] int32 or int64, or None) returns
    [B, num_classes] float32. Rows past a length are ignored, whatever they hold; an empty cloud
    has the score of a cloud feature of 0.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        scales: str = "ssg",
        preset: str = "pn2",
        levels: Optional[Levels] = None,
        head: Optional[Sequence[int]] = None,
        dropout: Optional[Sequence[float]] = None,
        **changes: Union[str, bool],
    ) -> None:
        rules = conventions(preset, changes)
        net = sizes(standard_net("classifier", preset, scales), levels, head, dropout, ())
        if net.levels[-1].points is not None:
            raise ValueError("the last level of a classifier must take all points")
        super().__init__(net, rules, in_channels, False)
        self.head = Head(self.feature_channels[-1], net, num_classes, rules)
        self._config = _config(num_classes, in_channels, scales, preset, net, changes)

    def forward(self, points: Tensor, lengths: Optional[Tensor] = None) -> Tensor:
        _, features, _ = self.encode(points, lengths)
        return self.head(features[-1].squeeze(1))


class PointNet2Segmenter(PointNet2Propagation):
    """PointNet++ for semantic segmentation. Arguments as `PointNet2Classifier`.

    in_channels: 9 in both references: xyz, color, position in the room.
    propagation: layer widths of each `FeaturePropagation`, from the deepest level up.

    forward(points [B, N, in_channels] float32, lengths [B] or None) returns [B, N, num_classes]
    float32; rows past a length are 0.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 9,
        scales: str = "ssg",
        preset: str = "pn2",
        levels: Optional[Levels] = None,
        propagation: Optional[Sequence[Sequence[int]]] = None,
        head: Optional[Sequence[int]] = None,
        dropout: Optional[Sequence[float]] = None,
        **changes: Union[str, bool],
    ) -> None:
        rules = conventions(preset, changes)
        net = sizes(standard_net("rooms", preset, scales), levels, head, dropout, propagation)
        # yanx27, whose features hold the coordinates, gives none of them to the last propagation.
        skip = 0 if rules.xyz_features else in_channels - 3
        super().__init__(net, rules, in_channels, skip, num_classes)
        self.skip_input = skip > 0
        self._config = _config(num_classes, in_channels, scales, preset, net, changes)

    def forward(self, points: Tensor, lengths: Optional[Tensor] = None) -> Tensor:
        xyz, features, sizes = self.encode(points, lengths)
        skip: Optional[Tensor] = features[0] if self.skip_input else None
        return self.decode(xyz, features, sizes, skip, lengths)


class PointNet2PartSegmenter(PointNet2Propagation):
    """PointNet++ for the parts of objects whose category is known.

    num_classes: parts of all categories together. num_categories: of objects. The other arguments
    as `PointNet2Segmenter`.

    forward(points [B, N, in_channels] float32, category [B] int, lengths [B] or None) returns
    [B, N, num_classes] float32; rows past a length are 0. The last propagation sees the category
    as one-hot columns, the coordinates and the features.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        num_categories: int = 16,
        in_channels: int = 3,
        scales: str = "ssg",
        preset: str = "pn2",
        levels: Optional[Levels] = None,
        propagation: Optional[Sequence[Sequence[int]]] = None,
        head: Optional[Sequence[int]] = None,
        dropout: Optional[Sequence[float]] = None,
        **changes: Union[str, bool],
    ) -> None:
        rules = conventions(preset, changes)
        net = sizes(standard_net("parts", preset, scales), levels, head, dropout, propagation)
        own = in_channels if rules.xyz_features else in_channels - 3
        super().__init__(net, rules, in_channels, num_categories + 3 + own, num_classes)
        self.num_categories = int(num_categories)
        self._config = {
            **_config(num_classes, in_channels, scales, preset, net, changes),
            "num_categories": self.num_categories,
        }

    def forward(self, points: Tensor, category: Tensor, lengths: Optional[Tensor] = None) -> Tensor:
        xyz, features, sizes = self.encode(points, lengths)
        # one_hot() would read its largest value on the host.
        categories = torch.arange(self.num_categories, device=points.device)
        one_hot = (category[:, None] == categories).to(points.dtype)[:, None, :]
        skip = torch.cat([one_hot.expand(-1, points.size(1), -1), xyz[0], features[0]], -1)
        return self.decode(xyz, features, sizes, skip, lengths)


def _config(
    num_classes: int, in_channels: int, scales: str, preset: str, net: Net, changes: Dict[str, Any]
) -> Dict[str, Any]:
    config: Dict[str, Any] = {
        "num_classes": int(num_classes),
        "in_channels": int(in_channels),
        "scales": scales,
        "preset": preset,
        "levels": [plain(level) for level in net.levels],
        "head": list(net.head),
        "dropout": list(net.dropout),
        **changes,
    }
    if net.propagation:
        config["propagation"] = [list(widths) for widths in net.propagation]
    return config
