# SPDX-License-Identifier: Apache-2.0
"""What moved between scans: against the rule in loops, in any order, split, merged and cached."""

import numpy as np
import pytest
import torch

from torchvox._util.errors import WrongUseError
from torchvox.mapping import Evidence, OccupancyMap, RegionStore
from torchvox.reference.clean import evidence_of, judge, verdict_of

SIZE, ORIGIN = 0.25, (0.03, -0.02, 0.01)


def scan(seed, thing=1.0, where=(0.0, 0.0, 0.0), rays=350, wall=2.2):
    """Ends [N, 3] of rays in a round room and one origin; a thing stands `thing` meters away."""
    source = np.random.default_rng(seed)
    away = source.normal(size=(rays, 3))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    reach = np.full(rays, wall)
    reach[away[:, 0] > 0.6] = thing
    origin = np.array([where]) + source.normal(size=3) * 0.1
    return torch.from_numpy(origin + away * reach[:, None]), torch.from_numpy(origin)


def moved(where=(0.0, 0.0, 0.0), scans=6):
    return [scan(i, 2.2 if i % 3 else 1.0, where) for i in range(scans)]


def damaged():
    """An empty scan, points that are not finite, points on faces of voxels, a scan twice."""
    scans = [(points.clone(), origin) for points, origin in moved()]
    scans[1][0][:40] = torch.tensor([np.nan, np.inf, 0.0])
    scans[2] = (torch.round((scans[2][0] - 0.03) / SIZE) * SIZE + 0.03, scans[2][1])
    return [*scans, scans[0], scans[4], (torch.zeros(0, 3).double(), scans[0][1])]


def two_sensors():
    """Two scans in one call, each ray from its own origin."""
    pairs = zip(moved(), moved((0.4, 0.2, 0.1)), strict=True)
    both = [tuple(zip(*pair, strict=True)) for pair in pairs]
    return [(torch.cat(ends), torch.cat([o.expand_as(p) for p, o in zip(ends, at, strict=True)]))
            for ends, at in both]  # fmt: skip


def gathered(scans, **options):
    evidence = Evidence(**{"voxel_size": SIZE, "origin": ORIGIN, **options})
    for scan in scans:
        evidence.add(*[tensor.to(evidence.map.status.device) for tensor in scan])
    return evidence


def judged(evidence, scans):
    """[N, 3]: reason, hits and seen empty of the points of all scans."""
    verdict = evidence.verdict()
    rows = [torch.stack([v.long().cpu() for v in verdict.at(*each)], 1) for each in scans]
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("scans", "options"),
    [
        (moved(), {}),
        (moved(), {"min_range": 1.0, "max_range": 2.0}),
        (moved((-310.2, 77.1, -5.3)), {}),
        (moved((5e5, 5.4e6, 30.0)), {"origin": (5e5, 5.4e6, 0.0)}),
        (damaged(), {}),
        (two_sensors(), {}),
        (moved(scans=1), {}),
    ],
)
def test_a_map_judges_as_the_rule_in_loops(scans, options, device):
    origin = options.get("origin", ORIGIN)
    rays = {k: v for k, v in options.items() if k != "origin"}
    parts = []
    for points, origins in scans:
        each = {"origin_index": torch.arange(len(points))} if len(origins) > 1 else {}
        parts.append(evidence_of(points, origins, SIZE, origin, **rays, **each))
    verdict = verdict_of(parts)
    nearest = options.get("min_range", 0.0)
    rows = [judge(p, o.expand_as(p), verdict, SIZE, origin, nearest) for p, o in scans]
    expected = torch.tensor([row for each in rows for row in each])
    assert torch.equal(judged(gathered(scans, device=device, **options), scans), expected)
    assert set(expected[:, 0].tolist()) >= ({1, 2} if len(scans) > 1 else {0})
    assert len(scans) > 1 or not expected.any()


def test_order_parts_caches_and_whole_voxels_change_nothing(tmp_path):
    scans = [*moved(), *moved((2.0, 0.5, 0.0))]
    whole = gathered(scans)
    expected = judged(whole, scans)
    whole.map.save(tmp_path / "whole.npz")
    others = {"reversed": gathered(scans[::-1])}
    others["cached"] = gathered(scans, capacity="22KiB", store=RegionStore())
    assert 10 * others["cached"].map.capacity < len(whole.map.whole().keys)
    others["merged"] = gathered(scans[::2])
    others["merged"].merge(gathered(scans[1::2]))
    gathered(scans[1::2]).map.save(tmp_path / "half.npz")
    others["of files"] = gathered(scans[::2], capacity="22KiB", store=RegionStore())
    others["of files"].merge(tmp_path / "half.npz")
    for name, evidence in others.items():
        assert torch.equal(judged(evidence, scans), expected), name
        evidence.map.save(tmp_path / "other.npz")
        assert (tmp_path / "other.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    exact = [(torch.round(points * 64) / 64, origins) for points, origins in scans]
    one, other = (gathered(exact, origin=at) for at in ((0, 0, 0), (2.0, -4.0, 0.5)))
    assert torch.equal(judged(one, exact), judged(other, exact))


@pytest.mark.parametrize(("stands", "empty", "leaves"), [(2, 1, True), (3, 1, False), (4, 2, True)])
def test_a_place_was_left_if_it_was_empty_half_as_often_as_hit(stands, empty, leaves):
    """A block stands in some scans; in others rays pass through all of its voxels."""
    side, center = torch.arange(-5, 6).double(), torch.zeros(1, 3).double()
    near = (torch.cartesian_prod(side[7:8], side, side) + 0.5) * SIZE
    scans = [(near, center)] * stands + [(5 * near, center)] * empty
    assert bool(judged(gathered(scans, origin=(0, 0, 0)), scans[:1])[:, 0].any()) is leaves


def test_other_maps_are_no_evidence():
    rays = OccupancyMap(SIZE, origin=ORIGIN, layers=("logodds", "hit_miss"))
    rays.integrate(*scan(0))
    for other, words in (
        (rays, "not a map of rays"),
        (OccupancyMap(SIZE, origin=ORIGIN), "not a map of rays"),
        (Evidence(0.5, origin=ORIGIN), r"\(0.25, .* got \(0.5, "),
        (Evidence(SIZE), r"got \(0.25, \[0.0, 0.0, 0.0\]"),
    ):
        with pytest.raises(WrongUseError, match=words):
            Evidence(SIZE, origin=ORIGIN).merge(other)
    with pytest.raises(ValueError, match="min_range"):
        Evidence(min_range=-1)
    far = Evidence().verdict().at(torch.tensor([[1e9, 0, 0], [0, 0, 0]]))
    assert far.reason.tolist() == [3, 0]
