# SPDX-License-Identifier: Apache-2.0
"""Every adapter there is. An upstream library takes part when its package is installed."""

from benchmarks import (
    boxes_upstream,
    filter_upstream,
    grouping_upstream,
    neighbors_upstream,
    occupancy_upstream,
    sampling_upstream,
    segments_upstream,
    voxel_upstream,
)

DOMAINS = (
    *(voxel_upstream, sampling_upstream, neighbors_upstream, grouping_upstream),
    *(segments_upstream, boxes_upstream, filter_upstream, occupancy_upstream),
)
ALL = [library for domain in DOMAINS for library in domain.UPSTREAM]
PACKAGES = sorted({library.package for library in ALL})
