# SPDX-License-Identifier: Apache-2.0
"""Every adapter there is. A peer takes part when its package is installed."""

from benchmarks import (
    grouping_peers,
    knn_peers,
    neighbors_peers,
    sampling_peers,
    voxel_peers,
)

ALL = [
    *voxel_peers.PEERS,
    *sampling_peers.PEERS,
    *neighbors_peers.PEERS,
    *knn_peers.PEERS,
    *grouping_peers.PEERS,
]
PACKAGES = sorted({peer.package for peer in ALL})
