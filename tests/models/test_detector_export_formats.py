# SPDX-License-Identifier: Apache-2.0
"""One forward: eager, TorchScript, torch.export, torch.compile, AOTInductor and CUDA graphs, over
scans of any size."""

import pytest
import torch
from detectors import SMALL, fused, scan, small
from helpers import assert_same_bits

import torchvox
from torchvox.models import export, fuse_batch_norms

each = pytest.mark.parametrize("name", SMALL)


def quick(*names: str):
    """Each detector, but the others than these in the slow tier."""
    marks = {n: () if n in names else pytest.mark.slow for n in SMALL}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks[n]) for n in SMALL])


SIZES = [(0,), (1,), (5000,), (40_000,), (300, 0, 1)]


@each
@pytest.mark.one_of("variant")
@pytest.mark.parametrize("variant", ["as built", "merged"])
@torch.inference_mode()
def test_a_script_keeps_the_bits_for_any_scan(name, variant, tmp_path):
    model = small(name) if variant == "as built" else fused(small(name))
    export.export_model(model, tmp_path / "model.pt", "script")
    program = export.load_program(tmp_path / "model.pt", "script")
    for lengths in SIZES:
        some = scan(model, *lengths)
        for _ in range(2):  # the executor specializes after some calls
            assert_same_bits(program(*some), model(*some), str(lengths))
    assert list(program.classes) == model.classes and program.columns == model.columns


@quick("centers", "anchors, visibility")
def test_an_exported_program_keeps_the_bits_for_any_scan(name, tmp_path):
    model = fused(small(name))
    export.export_model(model, tmp_path / "model.pt2", "export")
    program = export.load_program(tmp_path / "model.pt2", "export")
    for lengths in SIZES:
        some = scan(model, *lengths)
        assert_same_bits(tuple(program(*some)), model(*some), str(lengths))


@pytest.mark.slow
@each
def test_a_model_that_is_not_fused_exports_too(name, tmp_path):
    model = small(name)
    export.export_model(model, tmp_path / "model.pt2", "export")
    assert export.compare(model, export.load_program(tmp_path / "model.pt2", "export")).same_bits


@quick("anchors")
@torch.no_grad()
def test_compile_takes_a_model_whole_and_once(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model = fused(small(name))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for lengths in ((2000,), (5000,), (700,)):
        some = scan(model, *lengths)
        assert_same_bits(compiled(*some), model(*some), str(lengths))
    assert counter.frame_count <= 2


@pytest.mark.slow
@each
@torch.no_grad()
def test_an_aoti_package_finds_the_same_boxes(name, tmp_path):
    model = fused(small(name))
    export.export_model(model, tmp_path / "model.pt2", "aoti")
    program = export.load_program(tmp_path / "model.pt2", "aoti")
    for lengths in SIZES:
        some = scan(model, *lengths)
        found = export._compare_boxes(model(*some), tuple(program(*some)))
        assert found.difference < 1e-3 and found.strays <= 0.02, lengths


def test_a_runner_without_a_gpu_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match=r"must be a CUDA GPU, got cuda, and torch finds none$"):
        torchvox.GraphRunner(small("anchors"))
    with pytest.raises(RuntimeError, match=r"must be a CUDA GPU, got cpu$"):
        torchvox.GraphRunner(small("anchors"), device="cpu")


@pytest.mark.gpu
@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_runner_replays_over_scans_of_any_size(name, dtype):
    model = fused(small(name), None if dtype == torch.float32 else dtype).cuda()
    runner = torchvox.GraphRunner(model, buckets=(4096, 32_768, 300_000))
    sizes = (5000, 0, 1, 40_000, 300_000, 2, 5000, 40_000, 0)
    torch.cuda.synchronize()
    for seed, size in enumerate(sizes):
        points, count = (t.cuda() for t in scan(model, size, seed=seed))
        with torch.no_grad():
            expected = model(points, count)
        found = runner(points[0, :size])
        assert_same_bits(tuple(t.clone() for t in found), expected, f"{size} points")
    assert runner.captured == (4096, 32_768, 300_000)


@pytest.mark.gpu
def test_a_seen_bucket_is_not_captured_again_and_nothing_waits_for_the_host():
    model = fused(small("anchors"), torch.float16).cuda()
    runner = torchvox.GraphRunner(model, buckets=(2000, 8000))
    clouds = [scan(model, size)[0][0].cuda() for size in (1500, 7000, 200)]
    for cloud in clouds:
        runner(cloud)
    count = torch.tensor([9], dtype=torch.int32, device="cuda")
    graphs = {size: runner.prepare(size) for size in (2000, 8000)}
    torch.cuda.set_sync_debug_mode("error")
    try:
        for cloud in clouds:
            runner(cloud)
        with torch.no_grad():
            model(clouds[0][None], count)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert {size: runner.prepare(size) for size in (2000, 8000)} == graphs
    with pytest.raises(ValueError, match="at most 8000 points"):
        runner(torch.zeros(8001, 4))
    with pytest.raises(ValueError, match=r"points must be \[1, N, 4\]"):
        runner(torch.zeros(5, 3))


@pytest.mark.gpu
def test_a_runner_takes_batches_from_the_host():
    model = fused(small("centers")).cuda()
    runner = torchvox.GraphRunner(model, batch=2, buckets=(1000,))
    points, count = scan(model, 800, 100)
    found = tuple(t.clone() for t in runner(points, count))
    with torch.no_grad():
        assert_same_bits(found, model(points.cuda(), count.cuda()))


@pytest.mark.multigpu
def test_runners_of_two_gpus_capture_each_on_its_own():
    points, _ = scan(small("anchors"), 900)
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        model = fused(small("anchors")).to(device)
        runner = torchvox.GraphRunner(model, buckets=(1000,), device=device)
        found = tuple(t.clone() for t in runner(points))
        count = torch.tensor([900], dtype=torch.int32, device=device)
        with torch.no_grad():
            assert_same_bits(found, model(points.to(device), count), device)


@pytest.mark.gpu
def test_a_count_past_the_rows_does_not_bring_an_older_scan_back():
    model = fused(small("anchors")).cuda()
    runner = torchvox.GraphRunner(model, buckets=(4000,))
    points, _ = scan(model, 4000)
    runner(points[0])
    few, count = points[:, :300].cuda(), torch.tensor([4000], dtype=torch.int32).cuda()
    found = tuple(t.clone() for t in runner(few, count))
    with torch.no_grad():
        assert_same_bits(found, model(few, count))


@pytest.mark.gpu
def test_a_runner_made_in_inference_mode_runs_outside_of_it_and_keeps_no_graph():
    model = fused(small("anchors")).cuda()
    points, count = (t.cuda() for t in scan(model, 900))
    with torch.inference_mode():
        runner = torchvox.GraphRunner(model, buckets=(1000,))
        inside = tuple(t.clone() for t in runner(points, count))
    found = runner(points.requires_grad_(), count)
    assert_same_bits(found, inside)
    assert not runner.prepare(900).points.requires_grad


@pytest.mark.gpu
@each
@torch.no_grad()
def test_the_gpu_finds_the_boxes_of_the_cpu(name):
    model = fused(small(name))
    some = scan(model, 40_000, 5000)
    expected = model(*some)
    found = model.cuda()(*[t.cuda() for t in some])
    agreement = export._compare_boxes(expected, tuple(t.cpu() for t in found))
    assert agreement.strays <= 0.03 and agreement.difference < 0.05


@pytest.mark.gpu
@each
@torch.no_grad()
def test_a_script_and_an_exported_program_run_on_the_gpu(name, tmp_path):
    model = fuse_batch_norms(small(name)).cuda()
    for kind in ("script", "export"):
        export.export_model(model, tmp_path / kind, kind)
        found = export.compare(model, export.load_program(tmp_path / kind, kind))
        assert found.strays <= 0.03 and found.difference < 0.05, kind
