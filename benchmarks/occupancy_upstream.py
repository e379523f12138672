# SPDX-License-Identifier: Apache-2.0
"""The adapter of pyoctomap (OctoMap), on the CPU: one insertPointCloud a scan, from double."""

import numpy as np
import torch

import torchvox
from benchmarks.occupancy import SIZE, WARM_SCANS, IntegrateCase, share_of_labels
from benchmarks.suite import Implementation, Outputs, UpstreamLibrary


def pyoctomap(case: IntegrateCase, outputs: Outputs) -> Implementation:
    """It gets its points as it wants them. Inner nodes are updated once, after the scan."""
    case.only_on("cpu")
    from pyoctomap import OcTree

    tree = OcTree(SIZE)
    points, origin = case.points.double().numpy(), case.origins[0].double().numpy()

    def insert() -> None:
        tree.insertPointCloud(points, origin, lazy_eval=True)
        tree.updateInnerOccupancy()

    def call() -> None:
        if not case.warm:
            tree.clear()
        insert()

    def check(found: object) -> str:
        most = 512 * int(case.state[3][1])
        rows = torchvox.occupancy_extract(case.state, most, select="observed")
        every = rows.indices[: int(rows.counts[0, 0])]
        some = every[:: 1 + len(every) // 500_000, 1:]
        centers = (some.flip(1).double() + 0.5) * SIZE
        mine = torchvox.occupancy_query(case.state, centers, SIZE, [0.0] * 3).label
        theirs = torch.from_numpy(tree.getLabels(centers.numpy()).astype(np.int8))
        return share_of_labels(mine, theirs, 0.95 if case.rule == "every_ray" else 0.999)

    for _ in range(WARM_SCANS if case.warm else 0):
        insert()
    return Implementation("pyoctomap", call, check)


UPSTREAM = [UpstreamLibrary("pyoctomap", "occupancy_integrate_", pyoctomap)]
