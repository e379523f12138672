# SPDX-License-Identifier: Apache-2.0
"""Names of what tensors of a map count: its status, and the columns that its ops return."""

from __future__ import annotations

from typing import NamedTuple

TOO_MANY_TOUCHED, TOO_MANY_REGIONS, TOO_MANY_SAMPLE_ROWS, REFUSED_BEFORE = 1, 2, 4, 8  # overflow


class IntegrateCounts(NamedTuple):
    """Columns of the counts of `occupancy_integrate_`, as IntegrateCount of integrate.h."""

    rays: int
    rays_given: int
    not_finite: int
    filtered: int  # by flag, index or min_range
    outside: int
    truncated: int
    visits: int
    voxels_updated: int
    regions_touched: int
    regions_new: int
    regions_in_use: int
    overflow: int
    regions_skipped: int
    sample_rows_new: int


class EditCounts(NamedTuple):
    """Columns of the counts of `occupancy_insert_`, as StateCount of state.h."""

    regions_changed: int
    regions_given: int
    keys_refused: int
    regions_new: int
    regions_in_use: int
    overflow: int
    sample_rows_new: int
    sample_rows_in_use: int


class Status(NamedTuple):
    """Words of the status of a state, as StateStatus of state.h."""

    layout: int
    slots_in_use: int
    sample_rows_in_use: int
    refused: int
    highest_clamp: int


INTEGRATE = IntegrateCounts._make(range(len(IntegrateCounts._fields)))  # which column is which
EDIT = EditCounts._make(range(len(EditCounts._fields)))
STATUS = Status._make(range(len(Status._fields)))
