# SPDX-License-Identifier: Apache-2.0
"""Every channel of bev_rasterize."""

import numpy as np
import pytest
import torch
from bev_cases import CHANNELS, ORIENTATIONS, RANGE, SIZE, call, polluted
from helpers import assert_same_bits, check_op

ONE = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def check(device, points, channels, bounds=RANGE, size=SIZE, **options):
    return check_op("bev_rasterize", device, points, bounds, size, channels, **options)


def one_cell(n, seed=0, intensity=None):
    rng = np.random.default_rng(seed)
    points = torch.full((n, 4), 0.5)
    points[:, 2] = torch.from_numpy(rng.random(n).astype(np.float32)) * 0.99
    points[:, 3] = torch.from_numpy(rng.normal(size=n).astype(np.float32))
    if intensity is not None:
        points[:, 3] = intensity
    return points


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("fill", [0.0, -3.0, float("nan")])
def test_all_channels_together(device, orientation, fill):
    image, _ = check(device, polluted(), CHANNELS, orientation=orientation, fill=fill)
    assert image.shape[:2] == (1, 18)


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 1056, 5000, 40_000])
def test_intensity_mean_is_a_cascade_in_input_order(device, n):
    points = one_cell(n, seed=n)
    for size in ([1, 1], [3, 3]):
        check(device, points, ["intensity_mean", "height_mean"], ONE, size)
    points[::2, 0] = points[::3, 1] = 0.2  # interleaved cells
    check(device, points, ["intensity_mean", "height_mean"], ONE, [2, 2])


@pytest.mark.parametrize(("halves", "steps"), [(1, 0), (2, 1), (3, 2), (5, 2)])
def test_a_height_mean_counts_steps_of_2_to_the_minus_30_half_to_even(halves, steps, device):
    points = torch.tensor([[0.5, 0.5, halves * 2.0**-31, 0.0]])
    image, _ = check(device, points, ["height_mean"], ONE, [1, 1])
    assert image.item() == steps * 2.0**-30


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2000,), (2000, 1)])
def test_features_replace_the_intensity_column(device, shape, dtype):
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    points = polluted()
    intensities = [c for c in CHANNELS if "intensity" in c]
    image, _ = check(device, points[:, :3], intensities, features=features)
    assert_same_bits(check(device, points, intensities, features=features)[0], image)
    points[:, 3] = features.reshape(-1).float()
    assert_same_bits(check(device, points, intensities)[0], image)


@pytest.mark.parametrize("k", [1, 2, 3, 7, 10, 35, 100])
@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (-2.5, 1.0), (0.0, 0.3), (-1e4, 1e4)])
def test_slices_at_their_faces(device, k, bounds):
    z0, z1 = (np.float32(v) for v in bounds)
    thickness = np.float32((z1 - z0) / np.float32(k))
    faces = z0 + np.arange(k + 1, dtype=np.float32) * thickness
    z = [faces, np.nextafter(faces, np.float32(-np.inf)), np.nextafter(faces, np.float32(np.inf))]
    z = np.concatenate(z)
    points = torch.full((len(z), 4), 0.5)
    points[:, 2] = torch.from_numpy(z)
    box = [0.0, 0.0, bounds[0], 1.0, 1.0, bounds[1]]
    image, counts = check(device, points, [f"occupancy:{k}", f"slices:{k}", "count"], box, [1, 1])
    occupancy, heights = image[0, :k, 0, 0], image[0, k : 2 * k, 0, 0]
    assert occupancy.max() == 1 and (heights[occupancy == 0] == 0).all()
    # One point at a time: each used point lies in exactly one slice.
    for point in points[:20]:
        image, counts = call(device, "bev_rasterize", point[None], box, [1, 1], [f"occupancy:{k}"])
        assert image.sum() == counts[0, 1]


def test_a_float64_height_that_rounds_to_the_top_is_in_the_last_slice(device):
    points = torch.tensor([[0.5, 0.5, 1 - 1e-12, 1.0]], dtype=torch.float64)
    image, _ = check(device, points, ["occupancy:4", "slices:4"], ONE, [1, 1])
    assert image.flatten().tolist() == [0, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("base", [2, 3, 16, 32, 64, 512])
def test_density_saturates_at_the_base(device, base):
    sizes = sorted({1, 2, base - 2, base - 1, base, base + 1, 600} - {0, -1})
    columns = [one_cell(n) + torch.tensor([float(i), 0, 0, 0]) for i, n in enumerate(sizes)]
    points = torch.cat(columns)
    box = [0.0, 0.0, 0.0, float(len(sizes)), 1.0, 1.0]
    image, _ = check(device, points, ["density", "count"], box, [len(sizes), 1], density_base=base)
    assert image[0, 1, 0].tolist() == sizes
    for n, value in zip(sizes, image[0, 0, 0].tolist(), strict=True):
        assert value == 1 if n >= base - 1 else 0 < value < 1


@pytest.mark.parametrize("bounds", [(0.0, 1e-40), (-1e38, 1e38), (-65536.0, 1.0), (1e6, 1e6 + 1)])
def test_height_means_of_any_range(device, bounds):
    rng = np.random.default_rng(2)
    z = bounds[0] + rng.random(500) * (bounds[1] - bounds[0])
    points = torch.full((500, 3), 0.5)
    points[:, 2] = torch.from_numpy(z.astype(np.float32))
    box = [0.0, 0.0, bounds[0], 1.0, 1.0, bounds[1]]
    image, _ = check(device, points, ["height_mean", "height_norm"], box, [1, 1])
    used = points[:, 2].double()
    used = used[(used >= np.float32(bounds[0])) & (used < np.float32(bounds[1]))]
    extent = float(np.float32(bounds[1])) - float(np.float32(bounds[0]))
    error = abs(image[0, 0, 0, 0].double() - used.mean())
    assert error <= extent * 2.0**-30 + np.spacing(np.float32(max(map(abs, bounds))))
