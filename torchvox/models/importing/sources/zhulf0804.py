# SPDX-License-Identifier: Apache-2.0
"""zhulf0804/PointPillars: the anchor detector of an early mmdetection3d, under other names."""

from torchvox.models.importing.backbone_neck import PillarNames
from torchvox.models.importing.layouts import Layout
from torchvox.models.importing.sources.mmdet3d import described, named

ZHULF0804 = PillarNames(
    "pillar_encoder.conv", "pillar_encoder.bn", "backbone.multi_blocks", "neck.decoder_blocks", 0
)
LAYOUT = Layout(
    "zhulf0804",
    "zhulf0804/PointPillars",
    lambda state: any(key.startswith("pillar_encoder.") for key in state),
    described(ZHULF0804, "head", "zhulf0804", 0.0, "wlh_clockwise"),
    named(ZHULF0804, "head"),
    boxes="zhulf0804",
)
