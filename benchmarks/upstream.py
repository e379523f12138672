# SPDX-License-Identifier: Apache-2.0
"""Every adapter there is. An upstream library takes part when its package is installed."""

from benchmarks import (
    grouping_upstream,
    neighbors_knn_upstream,
    neighbors_upstream,
    sampling_upstream,
    voxel_upstream,
)

ALL = [
    *voxel_upstream.UPSTREAM,
    *sampling_upstream.UPSTREAM,
    *neighbors_upstream.UPSTREAM,
    *neighbors_knn_upstream.UPSTREAM,
    *grouping_upstream.UPSTREAM,
]
PACKAGES = sorted({library.package for library in ALL})
