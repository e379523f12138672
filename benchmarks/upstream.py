# SPDX-License-Identifier: Apache-2.0
"""Every adapter there is. An upstream library takes part when its package is installed."""

from benchmarks import grouping_upstream, neighbors_upstream, sampling_upstream, voxel_upstream

ALL = [
    library
    for domain in (voxel_upstream, sampling_upstream, neighbors_upstream, grouping_upstream)
    for library in domain.UPSTREAM
]
PACKAGES = sorted({library.package for library in ALL})
