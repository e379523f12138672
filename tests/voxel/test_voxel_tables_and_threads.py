# SPDX-License-Identifier: Apache-2.0
"""Nothing but the arguments decides the bits: not the table, threads, repeats or other work."""

import pytest
import torch
from helpers import assert_same_bits, forced
from voxel_cases import GRID, ORDERS, REDUCTIONS, check_op, check_voxelize, run_op, street_cloud

TABLES = ("dense", "hash", "hash_wide")
KERNELS = ("separate", "fused")
CLOUD = street_cloud(3000, seed=51)
BATCH = torch.tensor([0, 1000, 1000, 1001, 2900])


@pytest.mark.one_of("order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_every_table_gives_the_same_bits(device, reduce, table, order):
    with forced(voxel_table=table):
        check_voxelize(device, CLOUD, *GRID, 5, 300, order=order, reduce=reduce)
        check_voxelize(device, CLOUD, *GRID, 5, -1, order=order, reduce=reduce, batch_offsets=BATCH)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("table", TABLES)
def test_every_table_gives_the_same_map(device, table, order):
    with forced(voxel_table=table):
        for max_voxels in (0, 3, -1):
            check_op("voxel_map", device, CLOUD, *GRID, 2, max_voxels, order=order)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("n", [0, 1, 2, 500])
def test_every_table_with_few_points_or_one_key(device, n, table):
    with forced(voxel_table=table):
        check_voxelize(device, CLOUD[:n], *GRID, 2, -1)
        check_voxelize(device, torch.zeros(n, 4), *GRID, 2, -1, reduce="mean")
        check_voxelize(device, torch.full((n, 4), torch.nan), *GRID, 2, -1, reduce="mean")


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_every_launch_plan_gives_the_same_bits(device, reduce, table, kernels):
    with forced(voxel_table=table, voxel_kernels=kernels):
        for max_points, max_voxels in ((5, 300), (40, -1)):
            check_voxelize(device, CLOUD, *GRID, max_points, max_voxels, reduce=reduce)
            check_voxelize(
                device, CLOUD, *GRID, max_points, max_voxels, reduce=reduce, batch_offsets=BATCH
            )


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("reduce", ["none", "mean"])
def test_general_kernels_give_the_bits_of_those_for_the_usual_call(device, reduce, kernels):
    for common in ("general", "common"):
        with forced(voxel_common=common, voxel_kernels=kernels):
            check_voxelize(device, CLOUD, *GRID, 10, -1, reduce=reduce)
            check_voxelize(device, CLOUD, *GRID, 40, 300, reduce=reduce, out_dtype=torch.half)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("table", ["hash", "hash_wide"])
def test_full_hash_of_distinct_keys(device, table, order):
    """Every point its own voxel, neighbors in x: the longest probe chains of the table."""
    n = 4096
    x = torch.randperm(n, generator=torch.Generator().manual_seed(1)).float()
    cloud = torch.stack([x + 0.5, torch.full((n,), 0.5), torch.full((n,), 0.5)], dim=1)
    with forced(voxel_table=table):
        check_voxelize(device, cloud, [1.0] * 3, [0.0, 0.0, 0.0, n, 1.0, 1.0], 1, -1, order=order)


@pytest.mark.one_of("order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("parts", [1, 2, 3, 16])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_any_number_of_cpu_parts(reduce, parts, order):
    with forced(voxel_partitions=parts):
        check_voxelize("cpu", CLOUD, *GRID, 5, 300, order=order, reduce=reduce)
        check_voxelize("cpu", CLOUD, *GRID, 5, 9, order=order, reduce=reduce, batch_offsets=BATCH)
        check_op("voxel_map", "cpu", CLOUD, *GRID, 2, -1, order=order)
        for n in (0, 1, 2):
            check_voxelize("cpu", CLOUD[:n], *GRID, 2, -1, order=order, reduce=reduce)


@pytest.mark.parametrize("n", [1023, 1024, 1025, 16_383, 16_384, 16_385])
def test_runs_and_chunks_of_points_on_the_cpu(n):
    """Points of one voxel in runs of every length, around the chunks that the CPU works in."""
    length = torch.randint(1, 90, (n,), generator=torch.Generator().manual_seed(n))
    voxel = torch.randint(0, 40, (n,), generator=torch.Generator().manual_seed(n + 1))
    x = voxel.repeat_interleave(length)[:n].float() + 0.5
    x[::97] = torch.nan
    feature = torch.linspace(-1, 1, n) / 3
    cloud = torch.stack([x, torch.full((n,), 0.5), torch.full((n,), 0.5), feature], dim=1)
    grid = ([1.0] * 3, [0.0, 0.0, 0.0, 38.0, 1.0, 1.0])
    for parts in (1, 2, 5):
        with forced(voxel_partitions=parts):
            check_voxelize("cpu", cloud, *grid, -1, -1, reduce="mean")
            check_voxelize("cpu", cloud, *grid, 70, 30, reduce="sum")


@pytest.fixture
def restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("order", ORDERS)
def test_any_number_of_cpu_threads(restore_threads, order):
    """The cloud is larger than the serial path, and its chunks cut through voxels and samples."""
    cloud = street_cloud(50_000, seed=52)
    offsets = torch.tensor([0, 100, 100, 20_000, 49_000])
    for reduce in ("mean", "max"):
        results = []
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            settings = {"order": order, "reduce": reduce, "batch_offsets": offsets}
            run = check_voxelize if threads == 1 else lambda *a, **k: run_op("voxelize", *a, **k)
            results.append(run("cpu", cloud, *GRID, 12, 4000, **settings))
        assert_same_bits(results[1], results[0], "2 threads")
        assert_same_bits(results[2], results[0], "8 threads")


def test_scatter_with_any_number_of_cpu_threads(restore_threads):
    cloud = street_cloud(50_000, seed=53).nan_to_num()
    rows = run_op("voxel_map", "cpu", cloud, *GRID, -1, 3000)[2]
    for reduce in ("mean", "min"):
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            check_op("voxel_scatter", "cpu", cloud, rows, 3000, reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_repeats_are_equal(device, reduce):
    first = check_voxelize(device, CLOUD, *GRID, 4, 500, reduce=reduce)
    for _ in range(20):
        assert_same_bits(run_op("voxelize", device, CLOUD, *GRID, 4, 500, reduce=reduce), first)


@pytest.mark.gpu
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("order", ORDERS)
def test_100_repeats_are_equal_under_load(order, kernels, table):
    """A matrix product on another stream moves the blocks of the op about."""
    cloud = street_cloud(60_000, seed=54).cuda()
    load_stream = torch.cuda.Stream()
    matrix = torch.randn(2048, 2048, device="cuda")
    with forced(voxel_table=table, voxel_kernels=kernels):
        first = None
        for _ in range(100):
            with torch.cuda.stream(load_stream):
                torch.mm(matrix, matrix)
            outputs = torch.ops.torchvox.voxelize(
                cloud, *GRID, 10, 8000, order=order, reduce="mean"
            )
            if first is None:
                first = outputs
            for a, b in zip(outputs, first, strict=True):
                assert torch.equal(a.view(torch.int32), b.view(torch.int32))
        torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_cuda_equals_cpu_on_a_larger_cloud(reduce):
    cloud = street_cloud(200_000, 5, seed=55)
    cpu = run_op("voxelize", "cpu", cloud, *GRID, 20, 20_000, reduce=reduce)
    cuda = run_op("voxelize", "cuda", cloud, *GRID, 20, 20_000, reduce=reduce)
    assert_same_bits(cuda, cpu)
