# SPDX-License-Identifier: Apache-2.0
"""Does an imported detector find what the original finds? Both run on one generated street."""

from dataclasses import dataclass
from typing import Dict

import torch

from torchvox.models.box_conventions import boxes_from
from torchvox.models.importing.smoke import rows_of, street

from .pointnet2_parity import TOLERANCE, Report
from .reference_detectors import reference_detector

ANCHOR_KINDS = ("cls", "box", "dir")
CENTER_KINDS = ("hm", "reg", "z", "dim", "rot", "vel")
NEAR = 0.05  # meters, radians: two boxes are the same one


@dataclass(frozen=True)
class Agreement:
    """Of detections: how many the original has, how many we have, how many of them are the same
    with the same label, and how far these differ: in meters or radians, and in score."""

    theirs: int
    ours: int
    same: int
    box: float
    score: float


@dataclass(frozen=True)
class DetectorReport(Report):
    """differences: of the outputs of the heads, by kind."""

    boxes: Agreement

    def trouble(self, tolerance=TOLERANCE):
        """As of any report. One detection in fifty may differ: rounding turns a close choice."""
        found = self.boxes
        differ = super().trouble(tolerance)
        if differ is None and found.same < 0.98 * max(found.theirs, found.ours):
            return f"{found.same} boxes agree of {found.theirs} there and {found.ours} here"
        return differ

    def rows(self):
        """What to print: names and values."""
        found = self.boxes
        none = ("note", "no box was found here: how boxes are decoded was not compared")
        return [
            *rows_of(self.imported, self.scene, self.output),
            *([] if found.theirs or found.ours else [none]),
            *((f"difference, {kind}", f"{value:.3g}") for kind, value in self.differences.items()),
            ("boxes there, here, the same", f"{found.theirs}, {found.ours}, {found.same}"),
            ("difference, boxes", f"{found.box:.3g} m or rad, score {found.score:.3g}"),
        ]


@torch.no_grad()
def detector_parity(imported, points=None):
    """Runs both, on the street or on points [N, columns], and compares."""
    model, reference = imported.model, reference_detector(imported)
    config = model.config()["config"]
    words = f"{0 if points is None else len(points):,} given points"
    if points is None:
        words, points = street(config["columns"])
    count = torch.tensor([len(points)], dtype=torch.int32)
    mine = model.maps(points[None], count)
    theirs = reference.maps(points)
    kinds = CENTER_KINDS if "conv_bias" in config["head"] else ANCHOR_KINDS
    differences: Dict[str, float] = {}
    for kind, ours, others in zip(kinds, mine, theirs, strict=True):
        pairs = zip(ours, others, strict=True)
        # Both may be -inf in cells without a row.
        apart = [float(torch.where(a == b, 0.0, (a - b).abs()).max()) for a, b in pairs]
        if apart:
            differences[kind] = max(apart)
    boxes, scores, labels, used, _ = model(points[None], count)
    n = int(used[0])
    found = reference.detect(points)
    output = max(float(m[m != -torch.inf].abs().max()) for kind in theirs for m in kind)
    there = boxes_from(found.boxes, imported.layout.boxes), found.scores, found.labels
    boxes = agreement(there, (boxes[0, :n], scores[0, :n], labels[0, :n]))
    return DetectorReport(imported, words, output, differences, boxes)


def agreement(theirs, ours):
    """Boxes, scores and labels of both. Each box there is sought here once."""
    boxes, scores, labels = ours
    free = torch.ones(len(boxes), dtype=torch.bool)
    same, box_apart, score_apart = 0, 0.0, 0.0
    for box, score, label in zip(*theirs, strict=True):
        apart = (boxes - box).abs()
        turn = torch.remainder(apart[:, 6], 2 * torch.pi)
        apart[:, 6] = torch.minimum(turn, 2 * torch.pi - turn)
        off = apart.amax(1)
        off[~(free & (labels == label))] = torch.inf
        if len(off) == 0 or not off.min() <= NEAR:  # NaN is not near
            continue
        at = int(off.argmin())
        free[at] = False
        same += 1
        box_apart = max(box_apart, float(off[at]))
        score_apart = max(score_apart, float((scores[at] - score).abs()))
    return Agreement(len(theirs[0]), len(boxes), same, box_apart, score_apart)
