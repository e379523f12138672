# SPDX-License-Identifier: Apache-2.0
"""Every kernel of knn with clouds of every kind, and real scans."""

import pytest
import torch
from helpers import ODD_CLOUDS, cube, forced
from search_cases import check_knn, queries_of

ops = torch.ops.torchvox
PLANS = {
    "scan": {"knn_kernel": "scan"},
    "tiles": {"knn_kernel": "tiles"},
    "tiles of a sort": {"knn_kernel": "tiles", "knn_order": "sort"},
    "select": {"knn_kernel": "select"},
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ODD_CLOUDS)
def test_every_kernel_of_every_cloud(device, name, plan):
    points = ODD_CLOUDS[name]
    with forced(**PLANS[plan]):
        for k in (1, 5, 20, 40, 100, 200):
            check_knn(device, points, queries_of(points), k)
        for options in ({"norm": 1}, {"dist_order": "loop"}):
            check_knn(device, points, queries_of(points), 9, **options)


@pytest.mark.gpu
def test_more_points_than_are_put_in_order_at_once():
    """Batches of large clouds share a workspace that stops growing."""
    points = cube(1 << 17, seed=1).repeat(260, 1, 1).cuda()
    points += torch.arange(260, device="cuda")[:, None, None]
    query = points[:, :40].contiguous()
    with forced(knn_kernel="tiles"):
        _, idx = ops.knn(points, query, 1)
    assert (idx[..., 0] == torch.arange(40, device="cuda")).all()
