# SPDX-License-Identifier: Apache-2.0
"""Samples of voxels and rays that pass them, against moments and densities in float64."""

import itertools

import numpy as np
import pytest
import torch
from helpers import assert_same_bits

import torchvox

LAYERS = ("logodds", "sample_mean", "sample_cov", "intensity", "passes")
SENSOR = [2.197, -0.2, -2.0, 3.511]
NDT = [0.05, 0.2, 3.0, -1.386, 100.0]  # noise, adaptation, samples, reset, reset samples
BRIGHT = 12  # the layer of intensities
HOME = sum(1 << (20 + 21 * axis) for axis in range(3))  # the key of the region at 0, 0, 0


def blank(device, capacity=40, sample_rows=20, layers=LAYERS):
    return torchvox.occupancy_state(capacity, layers=layers, sample_rows=sample_rows, device=device)


def mapped(state, points, origin=(4.5, 4.5, 4.5), ndt=NDT, intensity=None, **options):
    """Rays of one call into voxels of 1 m; counts."""
    device = state[0].device
    if len(state[BRIGHT]) and intensity is None:
        intensity = torch.zeros(len(points))
    if intensity is not None:
        options["intensity"] = intensity.to(device)
        options.setdefault("intensity_range", [-8.0, 8.0])
    starts = torch.tensor([origin], dtype=torch.float64, device=device)
    grid = 1.0, [0.0] * 3, SENSOR
    return torchvox.occupancy_integrate_(
        state, points.to(device), starts, *grid, ndt=ndt, **options
    ).tolist()[0]


def tilted(device, n=50, **options):
    """A map of a tilted cloud in voxel (0, 0, 0)."""
    state = blank(device)
    mapped(state, cloud(n, TILTED), **options)
    return state


def voxel(state, place=(0, 0, 0)) -> dict[str, np.ndarray]:
    """What is known of the voxel at a place of the first region."""
    slot = state[1].tolist().index(HOME)
    x, y, z = place
    row, i = int(state[8][slot]), z * 64 + y * 8 + x
    found = {"logodds": state[4][slot, i]}
    if row >= 0:
        names = ("n", "mean", "factor", "intensity", "passes")
        found |= {k: t[row, i] for k, t in zip(names, state[9:], strict=True) if len(t)}
    found = {k: t.cpu().double().numpy() for k, t in found.items()}
    if "factor" in found:
        lower = np.zeros((3, 3))
        lower[np.tril_indices(3)] = found["factor"]
        found["cov"] = lower @ lower.T
    return found


def cloud(n, shape, seed=0, center=(0.3, 0.6, 0.5)):
    """[n, 3] float64 around a place of voxel (0, 0, 0), kept inside."""
    random = np.random.default_rng(seed)
    points = random.normal(size=(n, 3)) @ np.asarray(shape, float).reshape(-1, 3) + center
    return torch.from_numpy(points.clip(0.01, 0.99))


def two_pass(points):
    """n, mean from the center and covariance; (0.1 voxel)^2 counts for a first sample."""
    x = np.floor(points.numpy() * 65536) / 65536 - 0.5
    away = x - x.mean(0)
    return len(x), x.mean(0), (0.01 * np.eye(3) + away.T @ away) / len(x)


PLANE = np.diag([0.08, 0.06, 0.001])
TILTED = [[0.05, 0.02, -0.03], [0.01, 0.06, 0.02], [0.0, 0.0, 0.001]]
SHAPES = {"ball": 0.1 * np.eye(3), "plane": PLANE, "tilted": TILTED,
          "line": np.diag([0.1, 0.0005, 0.0005])}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parts", [1, 7, 300])
def test_moments_are_those_of_two_passes_in_any_split(shape, parts, device):
    points = cloud(3000, SHAPES[shape])
    state = blank(device)
    for part in points.chunk(parts):
        assert mapped(state, part)[11] == 0
    found, (n, mean, cov) = voxel(state), two_pass(points)
    assert found["n"] == n
    assert np.abs(found["mean"] - mean).max() < (1e-6 if parts < 9 else 3e-6)
    assert np.abs(found["cov"] - cov).max() < 1e-4 * np.abs(cov).max()
    assert np.abs(np.linalg.eigvalsh(found["cov"]) / np.linalg.eigvalsh(cov) - 1).max() < 1e-3


def test_ends_of_voxels_and_of_the_extent_are_samples(device):
    """The lowest and the highest place of a voxel, 2^20 - 1 samples of one place."""
    state = blank(device)
    low, high = torch.tensor([[0.0] * 3]), torch.tensor([[1 - 2.0**-16] * 3])
    mapped(state, torch.cat([low, high, high, high]).double())
    assert voxel(state)["mean"] == pytest.approx(0.25 - 3 * 2.0**-18, abs=1e-7)
    far = torch.full((2**20 - 1, 3), 1.25, dtype=torch.float64)
    mapped(state, far)
    found = voxel(state, (1, 1, 1))
    assert found["n"] == 2**20 - 1 and (found["mean"] == -0.25).all()
    assert np.abs(found["cov"] - 0.01 / (2**20 - 1) * np.eye(3)).max() < 1e-13


def likelihood(found, ray, noise):
    """p_v and p_s of the densest point of a ray, by a search over float64 densities."""
    start, end = (np.floor(np.asarray(p, float) * 65536) / 65536 - 0.5 for p in ray)
    inverse, length = np.linalg.inv(found["cov"]), np.linalg.norm(end - start)
    along = (end - start) / length
    low, high = -50.0, 50.0
    for _ in range(200):  # of a function with one minimum
        ends = [low + (high - low) * share for share in (1 / 3, 2 / 3)]
        away = [start + t * along - found["mean"] for t in ends]
        near = [v @ inverse @ v for v in away]
        low, high = (low, ends[1]) if near[0] < near[1] else (ends[0], high)
    place = start + low * along
    p_v = np.exp(-(place - found["mean"]) @ inverse @ (place - found["mean"]) / 2)
    return p_v, np.exp(-((place - end) ** 2).sum() / (2 * noise**2))


@pytest.mark.parametrize("adaptation", [0.0, 0.2, 1.0])
def test_misses_count_by_how_near_a_ray_comes(adaptation, device):
    """Through the middle, beside it, grazing it, with an end before and behind it."""
    ndt = [0.05, adaptation, *NDT[2:]]
    rays = [((5.0, 0.62, 0.52), (-2.5, 0.6, 0.5)), ((5.0, 0.9, 0.9), (-2.5, 0.95, 0.9)),
            ((3.0, 4.0, 0.45), (0.05, -0.4, 0.55)), ((0.3, 0.61, 3.5), (0.31, 0.6, -0.03)),
            ((0.3, 0.61, 3.5), (0.31, 0.6, -2.0))]  # fmt: skip
    no_end = {"ray_flags": torch.tensor([2], dtype=torch.uint8, device=device)}
    for (start, end), options in itertools.product(rays, ({}, no_end)):
        state = tilted(device, ndt=ndt)
        before = voxel(state)
        p_v, p_s = likelihood(before, (start, end), ndt[0])
        # Where a ray has no end there is nothing that it could have seen instead.
        share = adaptation / 2 * p_v * (1 - (0 if options else p_s))
        mapped(state, torch.tensor([end], dtype=torch.float64), start, ndt=ndt, **options)
        miss = np.log((0.5 - share) / (0.5 + share)) if share < 0.5 else -9.0
        expected = max(before["logodds"] / 1024 + max(miss, -2.0 - 3.511), -2.0)
        assert abs(voxel(state)["logodds"] / 1024 - expected) < 1 / 1024 + 1e-4


def test_a_ray_that_ends_out_of_the_range_has_no_end_there(device):
    """Behind the face at x = 1, as near as the noise is to what it passes."""
    box = {"point_cloud_range": [-8.0, -8.0, -8.0, 1.0, 8.0, 8.0]}
    cloud_ = cloud(30, 0.05 * np.eye(3), center=(0.9, 0.5, 0.5))
    end, start = torch.tensor([[1.1, 0.5, 0.5]]).double(), (-4.5, 0.5, 0.5)
    after = []
    for options in (box, {"ray_flags": torch.tensor([2], dtype=torch.uint8, device=device)}):
        state = blank(device)
        mapped(state, cloud_, ndt=[0.3, 1.0, *NDT[2:]])
        mapped(state, end, start, ndt=[0.3, 1.0, *NDT[2:]], **options)
        after.append(voxel(state))
    assert after[0]["logodds"] == after[1]["logodds"] < 1000
    assert after[0]["passes"].tolist() == after[1]["passes"].tolist() == [30, 1]


def test_a_sum_of_misses_is_rounded_once_and_clamped_once(device):
    ends, start = torch.tensor([[-2.5, 0.55, 0.5]], dtype=torch.float64), (5.0, 0.58, 0.52)
    drops = []
    for n in (1, 40, 100_000):
        state = tilted(device)
        before = voxel(state)["logodds"]
        mapped(state, ends.repeat(n, 1), start)
        drops.append(before - voxel(state)["logodds"])
    assert 100 < drops[0] < 420 and drops[2] == 3595 + 2048
    assert abs(drops[1] - 40 * drops[0]) <= 20 or drops[1] == drops[2]
    state = tilted(device)  # a distribution that stops a ray is missed, and nothing behind
    mapped(state, ends, start, flags=["stop_at_occupied"])
    assert voxel(state)["logodds"] == 3595 - drops[0] and int(state[3][1]) == 1


def test_few_samples_are_missed_plainly(device):
    state = tilted(device, 2)
    before = voxel(state)["logodds"]
    mapped(state, torch.tensor([[-2.5, 0.95, 0.95]]).double(), (5.0, 0.95, 0.95))
    assert voxel(state)["logodds"] == before - 205


def test_a_solid_wall_lets_no_ray_through_and_a_fence_some(device):
    """Rays of ten scans along x: all of them end at the wall, half of them pass the fence."""
    shares = []
    for through in (0.0, 0.5):
        state = blank(device)
        for scan in range(10):
            random = np.random.default_rng(scan)
            ends = random.uniform(0.05, 0.95, (400, 3))
            ends[:, 0] = random.normal(0.5, 0.02, 400)
            ends[: int(through * 400), 0] = -2.5
            mapped(state, torch.from_numpy(ends), (6.5, 0.5, 0.5))
        hits, misses = voxel(state)["passes"]
        shares.append(misses / (hits + misses))
    assert shares[0] < 0.05 and 0.25 < shares[1] < 0.6


@pytest.mark.parametrize("n, logodds, forgets", [(100, -1.5, 1), (99, -1.5, 0), (100, -1.3, 0)])
def test_what_left_is_forgotten_with_the_first_hit_of_what_came(n, logodds, forgets, device):
    state = tilted(device, n)
    state[4][state[4] > 0] = round(logodds * 1024)
    came = cloud(10, 0.01 * np.eye(3), seed=1, center=(0.8, 0.2, 0.5))
    mapped(state, came)
    found, (_, mean, cov) = voxel(state), two_pass(came)
    assert found["n"] == (10 if forgets else n + 10)
    assert (np.abs(found["mean"] - mean).max() < 1e-6) == bool(forgets)
    assert (np.abs(found["cov"] - cov).max() < 1e-6) == bool(forgets)


def test_intensities_have_their_mean_and_variance(device):
    """A first one has the variance 1; steps are 16 / 65535."""
    bright = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    for parts in (1, 9):
        state = blank(device)
        points = cloud(2000, TILTED)
        for some, level in zip(points.chunk(parts), bright.chunk(parts), strict=True):
            mapped(state, some, intensity=level)
        mean, variance = voxel(state)["intensity"]
        assert abs(mean - bright.mean()) < 1e-4
        assert abs(variance - (1 + 1999 * bright.var()) / 2000) < 1e-3
    limits = torch.tensor([float("nan"), float("inf"), -float("inf"), -9.0, 9.0, 0.0])
    state = blank(device)
    mapped(state, cloud(6, TILTED), intensity=limits)
    assert voxel(state)["intensity"][0] == pytest.approx((-8 * 3 + 8 * 2) / 6, abs=1e-3)


def test_the_order_of_rays_and_threads_change_no_bit(device):
    centers = [(0.5, 0.5, 0.5), (2.5, 1.5, 0.5), (7.2, 0.5, 3.5), (9.5, 1.5, 0.5)]
    points = torch.cat([cloud(500, TILTED, s, c) for s, c in enumerate(centers)])
    bright = torch.rand(len(points), generator=torch.Generator().manual_seed(3))
    states, threads = [], torch.get_num_threads()
    for run, (where, count) in enumerate((("cpu", 2), (device, 1), (device, 8), (device, 2))):
        torch.set_num_threads(count)
        states.append(blank(where))
        for call in range(2):
            order = torch.randperm(len(points), generator=torch.Generator().manual_seed(run))
            mapped(states[-1], points[order] + 0.3 * call, intensity=bright[order])
    torch.set_num_threads(threads)
    for state in states[1:]:
        assert_same_bits([t.cpu() for t in state], states[0])


def test_a_call_whose_samples_do_not_fit_writes_only_that_it_was_refused(device):
    points = torch.tensor([[0.5, 0.5, 8.0 * i + 0.5] for i in range(5)]).double()
    for rows, bits in ((5, 0), (4, 4), (1, 4)):
        state, empty = blank(device, sample_rows=rows), blank(device, sample_rows=rows)
        counts = mapped(state, points)
        assert counts[11] == bits and counts[13] == 5 and state[3][2] == (0 if bits else 5)
        if bits:
            assert counts[0] == 0 and state[3][3] == 1
            state[3][3] = 0
            assert_same_bits(state, empty)
    full = blank(device, sample_rows=5)
    mapped(full, points)
    assert mapped(full, points + 0.1)[13] == 0 and mapped(full, points + 8.0)[11] == 4


def test_merged_samples_keep_one_first_variance(device):
    """Parts of a cloud in two maps, merged either way, are the cloud in one."""
    points, whole = cloud(900, TILTED), blank(device)
    mapped(whole, points)
    for cut in (1, 450):
        parts = [blank(device), blank(device)]
        for state, some in zip(parts, (points[:cut], points[cut:]), strict=True):
            mapped(state, some)
        for into, other in (parts, parts[::-1]):
            into = [t.clone() for t in into]
            keys, order = other[1][: int(other[3][1])].sort()
            layers = [t[order] if len(t) else t for t in (other[2], *other[4:9])] + other[9:]
            counts = torchvox.occupancy_insert_(into, keys, layers, sensor=SENSOR)
            assert counts[0, 5] == 0 and counts[0, 7] == 1
            found, wanted = voxel(into), voxel(whole)
            assert found["n"] == 900 and np.abs(found["mean"] - wanted["mean"]).max() < 1e-6
            assert np.abs(found["cov"] - wanted["cov"]).max() < 1e-4 * wanted["cov"].max()
            assert found["intensity"] == pytest.approx(wanted["intensity"], abs=1e-4)


def test_means_alone_are_kept_by_either_rule(device):
    points = cloud(300, TILTED)
    for rule in ("every_ray", "scan"):
        state = blank(device, layers=("logodds", "sample_mean"))
        mapped(state, points, ndt=None, rule=rule)
        n, mean, _ = two_pass(points)
        found = torchvox.occupancy_extract(state, 3)
        row = found.num_samples.tolist().index(n)
        assert found.indices[row].tolist() == [0] * 4
        assert np.abs(found.mean[row].cpu().numpy() - mean).max() < 1e-6


@pytest.mark.parametrize(
    ("layers", "options", "words"),
    [
        (LAYERS, {"ndt": None}, "ndt must be given"),
        (LAYERS, {"rule": "scan"}, "rule must be 'every_ray'"),
        (LAYERS[:3], {"intensity": torch.zeros(3)}, "intensity must be left out"),
        (LAYERS, {"intensity_range": [1.0, 1.0]}, "intensity_range must be"),
        *((LAYERS, {"ndt": [*NDT[:i], bad, *NDT[i + 1 :]]}, "ndt must be") for i, bad in (
            (0, 0.0), (1, 1.1), (1, -0.1), (2, 0.0), (3, float("nan")), (4, 0.0))),
    ],
)  # fmt: skip
def test_what_an_ndt_map_refuses_is_named(layers, options, words, device):
    state = blank(device, layers=layers)
    with pytest.raises(ValueError, match=words):
        mapped(state, cloud(3, TILTED), **options)
    assert_same_bits(state, blank(device, layers=layers))
