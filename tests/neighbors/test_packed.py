# SPDX-License-Identifier: Apache-2.0
"""knn and ball_query of packed clouds: each cloud alone, whatever the offsets say."""

import pytest
import torch
from helpers import forced, lattice
from search_cases import NAN, check_ball_query, check_knn

ops = torch.ops.torchvox
POINTS, QUERY = lattice(400, seed=1)[0], lattice(60, seed=2)[0] + 0.25

each_search = pytest.mark.parametrize("search", ["knn", "scan", "cells"])


def search_as_reference(device, search, points, query, offsets, query_offsets, k=7, **options):
    """Outputs of knn, or of a ball query by one of its kernels: the bits of the reference."""
    options |= {
        "batch_offsets": torch.as_tensor(offsets),
        "query_batch_offsets": torch.as_tensor(query_offsets),
    }
    if search == "knn":
        return check_knn(device, points, query, k, **options)
    with forced(ball_kernel=search):
        return check_ball_query(device, points, query, 1.5, k, **options)


def cumulative(most: int) -> torch.Tensor:
    """Offsets of 300 clouds of fewer than `most` rows."""
    sizes = torch.randint(0, most, (300,), generator=torch.Generator().manual_seed(most))
    return torch.cat([torch.zeros(1).long(), sizes.cumsum(0)])


MANY = lattice(int(cumulative(9)[-1]), 3)[0], lattice(int(cumulative(5)[-1]), 3)[0]
CLOUDS = {
    "four": (POINTS, QUERY, [0, 3, 3, 250, 400], [0, 10, 20, 50, 60]),
    "rows outside": (POINTS, QUERY, [50, 60, 80], [5, 6, 30]),
    "too far": (POINTS, QUERY, [-5, 100, 4000], [-9, 3, 1 << 40]),
    "no points": (POINTS, QUERY, [0, 0, 0], [0, 30, 60]),
    "one": (POINTS, QUERY, [0, 400, 400], [0, 60, 60]),
    "none": (POINTS, QUERY, [0], [0]),
    "many": (*MANY, cumulative(9), cumulative(5)),
}


@each_search
@pytest.mark.parametrize("local_index", [False, True])
@pytest.mark.parametrize("name", CLOUDS)
def test_each_cloud_is_searched_alone(device, search, local_index, name):
    _, query, offsets, query_offsets = CLOUDS[name]
    for k in (1, 5, 40, 300):
        outs = search_as_reference(
            device, search, *CLOUDS[name], k, local_index=local_index,
            **({} if search == "knn" else {"fill": "pad"}),
        )  # fmt: skip
    row = torch.arange(len(query))
    outside = (row < int(query_offsets[0])) | (row >= int(query_offsets[-1]))
    assert (outs[1][outside] == -1).all()
    if not local_index:
        inside = (outs[1] >= int(offsets[0])) & (outs[1] < int(offsets[-1]))
        assert (inside | (outs[1] < 0)).all()


# Clouds at the origin; queries at the x of each row.
@pytest.mark.parametrize(
    ("search", "n", "query", "offsets", "query_offsets", "options", "idx"),
    [
        # An empty ball names row 0 of its cloud, and in a cloud without points no row: row 0
        # would be the first point of the next one.
        ("scan", 6, [9.0, 9.0], [0, 4, 6], [0, 1, 2], {}, [[0, 0], [4, 4]]),
        *((s, 5, [0.0] * 3, [0, 2, 2, 5], [0, 1, 2, 3], {"local_index": True},
           [[0, 1], [0, 0], [0, 1]]) for s in ("scan", "cells")),
        *((s, 4, [NAN, 0.0], [1, 4], [0, 2], {} if s == "knn" else {"fill": "pad"},
           [[-1, -1], [1, 2]]) for s in ("knn", "scan", "cells")),
        ("knn", 4, [0.0] * 4, [0, 2, 2, 4], [0, 1, 2, 3], {"local_index": True},
         [[0, 1], [-1, -1], [0, 1], [-1, -1]]),
    ],
)  # fmt: skip
def test_rows_of_small_clouds(device, search, n, query, offsets, query_offsets, options, idx):
    rows = torch.zeros(len(query), 3)
    rows[:, 0] = torch.tensor(query)
    call = (torch.zeros(n, 3), rows, offsets, query_offsets, 2)
    assert search_as_reference(device, search, *call, **options)[1].tolist() == idx


@each_search
@pytest.mark.parametrize("k", [3, 200])
@pytest.mark.parametrize(
    "offsets", [[-5, 30, 99, 7, 60], [300, 20, 390, -7, 100], [9, 9, 0, 0, 0], [0, 2**40, 4, 5, 1]]
)
def test_offsets_in_disorder_stay_in_bounds(device, search, k, offsets):
    points, query, offsets = POINTS.to(device), QUERY.to(device), torch.tensor(offsets).to(device)
    for query_offsets in (torch.tensor([40, 2, 55, 12, 60], device=device), offsets):
        both = {"batch_offsets": offsets, "query_batch_offsets": query_offsets}
        if search == "knn":
            _, idx = ops.knn(points, query, k, **both)
        else:
            with forced(ball_kernel=search):
                _, idx, count = ops.ball_query(points, query, 1.0, k, **both)
            assert (count <= k).all()
        assert ((idx >= -1) & (idx <= 400)).all()
