# SPDX-License-Identifier: Apache-2.0
"""One forward: eager, TorchScript, torch.export, torch.compile, AOTInductor and CUDA graphs, for
clouds of any size."""

import detectors
import nets
import pytest
import torch
from helpers import assert_same_bits
from networks import (
    DETECTORS,
    MODELS,
    detects,
    each_detector,
    each_model,
    each_point_net,
    fast,
    outputs,
)

import torchvox
from torchvox.models import export, fuse_batch_norms

QUICK = ("centers", "anchors, visibility", "segmenter, yanx27", "part segmenter, pn2")
QUICK += ("minkunet, spunet",)


def quick(*names):
    """Every model, those that are not named in the slow tier."""
    marks = {name: () if name in names else pytest.mark.slow for name in MODELS}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks[n]) for n in MODELS])


def sizes(model):
    if detects(model):
        return [(0,), (1,), (5000,), (40_000,), (300, 0, 1)]
    return [(77, 77), (77, 0, 1, 38), (50,)]


def assert_same_program(program, model):
    for lengths in sizes(model):
        some = export.example_inputs(model, lengths, seed=len(lengths))
        for _ in range(2):  # the executor of scripts specializes after some calls
            assert_same_bits(outputs(program(*some)), outputs(model(*some)), str(lengths))


@pytest.mark.one_of("variant")
@pytest.mark.parametrize("variant", ["as built", "fused"])
@each_model
@torch.inference_mode()
def test_a_script_keeps_the_bits_for_any_clouds(name, variant, tmp_path):
    model = MODELS[name]() if variant == "as built" else fast(name)
    export.export_model(model, tmp_path / "model.pt", "script")
    program = export.load_program(tmp_path / "model.pt", "script")
    assert_same_program(program, model)
    if name in DETECTORS:
        assert list(program.classes) == model.classes and program.columns == model.columns


@quick(*QUICK)
@pytest.mark.one_of("variant")
@pytest.mark.parametrize("variant", ["as built", "fused"])
def test_an_exported_program_keeps_the_bits_for_any_clouds(name, variant, tmp_path):
    model = MODELS[name]() if variant == "as built" else fast(name)
    export.export_model(model, tmp_path / "model.pt2", "export")
    program = export.load_program(tmp_path / "model.pt2", "export")
    assert_same_program(program, model)


@quick("anchors", "part segmenter, pn2", "minkunet, minkunet18")
@torch.no_grad()
def test_compile_takes_a_model_whole_and_once(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model = fast(name)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for lengths in ((2000, 64), (500, 500), (700, 37)):
        some = export.example_inputs(model, lengths)
        assert_same_bits(outputs(compiled(*some)), outputs(model(*some)), str(lengths))
    assert counter.frame_count <= 2


@quick()
@torch.no_grad()
def test_an_aoti_package_agrees_for_any_clouds(name, tmp_path):
    model = fast(name)
    export.export_model(model, tmp_path / "model.pt2", "aoti")
    found = export.compare(model, export.load_program(tmp_path / "model.pt2", "aoti"))
    least = 1e-3 if name in DETECTORS else 1e-5  # Inductor's own log, exp and reductions
    assert found.difference <= least * max(1.0, found.greatest) and found.strays <= 0.02


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("part segmenter", "script"),  # which has all that the others have
        pytest.param("classifier", "script", marks=pytest.mark.slow),
        pytest.param("segmenter", "script", marks=pytest.mark.slow),
        pytest.param("classifier", "inductor", marks=pytest.mark.slow),
    ],
)
def test_a_program_trains_like_the_model(name, kind):
    torch._dynamo.reset()
    rates = [0.0] * (2 if name == "classifier" else 1)
    plain, other = (nets.SMALL[name](dropout=rates).train() for _ in range(2))
    some = nets.inputs(plain, 60)
    program = torch.jit.script(other) if kind == "script" else torch.compile(other, fullgraph=True)
    for _ in range(3):  # the executor specializes after some calls
        for model in (plain, program):
            model(*some).square().mean().backward()
    for mine, theirs in zip(plain.parameters(), other.parameters(), strict=True):
        most = float(mine.grad.abs().max())  # a rounding may give a maximum to another point
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-4 + 5e-3 * most)


# ----------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@each_point_net
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_cuda_graph_holds_a_whole_forward(name, dtype):
    model = fuse_batch_norms(nets.ALL[name](), None if dtype == torch.float32 else dtype).cuda()
    capacity = 80
    some = [t.cuda() for t in nets.inputs(model, capacity)]
    lengths = torch.full((3,), capacity, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(*some, lengths)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            scores = model(*some, lengths)
        for seed, each in enumerate(([80, 80, 80], [80, 0, 1], [3, 50, 79])):
            some[0].copy_(nets.inputs(model, capacity, seed=seed)[0])
            lengths.copy_(torch.tensor(each))
            graph.replay()
            assert_same_bits(scores, model(*some, lengths), str(each))


@pytest.mark.gpu
@each_point_net
def test_a_training_step_never_waits_for_the_host(name):
    model = nets.ALL[name]().cuda().train()
    some = [t.cuda() for t in nets.inputs(model, 80)]
    lengths = torch.tensor([80, 0, 17], device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(*some, lengths).square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@each_point_net
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_the_gpu_gives_the_scores_of_the_cpu(name, dtype):
    """Fused half weights take the kernel of whole balls."""
    model = nets.ALL[name]()
    some = nets.inputs(model, 80)
    there = model if dtype is None else fuse_batch_norms(model, dtype)
    expected, tolerance = model(*some), (1e-3, 1e-4) if dtype is None else (0.1, 0.15)
    with torch.no_grad(), nets.Calls() as calls:
        scores = there.cuda()(*[t.cuda() for t in some])
    if dtype is not None:
        balls = sum(len(level["radii"]) for level in model.config().get("levels", ()))
        assert calls.count("group_mlp_max") == balls and calls.count("query_and_group") == 0
    torch.testing.assert_close(scores.cpu(), expected, rtol=tolerance[0], atol=tolerance[1])


@pytest.mark.gpu
@each_detector
@torch.no_grad()
def test_the_gpu_finds_the_boxes_of_the_cpu_and_so_do_its_programs(name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = fast(name)
    some = detectors.scan(model, 40_000, 5000)
    expected = model(*some)
    found = model.cuda()(*[t.cuda() for t in some])
    agreements = [export._compare_boxes(expected, tuple(t.cpu() for t in found))]
    for kind in ("script", "export"):
        export.export_model(model, tmp_path / kind, kind)
        agreements.append(export.compare(model, export.load_program(tmp_path / kind, kind)))
    assert all(one.strays <= 0.03 and one.difference < 0.05 for one in agreements)


# ------------------------------------------------------------------------------ GraphRunner


def test_a_runner_without_a_gpu_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    model = detectors.small("anchors")
    with pytest.raises(RuntimeError, match=r"must be a CUDA GPU, got cuda, and torch finds none$"):
        torchvox.GraphRunner(model)
    with pytest.raises(RuntimeError, match=r"must be a CUDA GPU, got cpu$"):
        torchvox.GraphRunner(model, device="cpu")


@pytest.mark.gpu
@each_detector
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_runner_replays_over_scans_of_any_size(name, dtype):
    model = fast(name, dtype).cuda()
    runner = torchvox.GraphRunner(model, buckets=(4096, 32_768, 300_000))
    torch.cuda.synchronize()
    for seed, size in enumerate((5000, 0, 1, 40_000, 300_000, 2, 5000, 40_000, 0)):
        points, count = (t.cuda() for t in detectors.scan(model, size, seed=seed))
        with torch.no_grad():
            expected = model(points, count)
        found = runner(points[0, :size])
        assert_same_bits(tuple(t.clone() for t in found), expected, f"{size} points")
    assert runner.captured == (4096, 32_768, 300_000)


@pytest.mark.gpu
def test_a_seen_bucket_is_not_captured_again_and_nothing_waits_for_the_host():
    model = fast("anchors", torch.float16).cuda()
    runner = torchvox.GraphRunner(model, buckets=(2000, 8000))
    clouds = [detectors.scan(model, size)[0][0].cuda() for size in (1500, 7000, 200)]
    for cloud in clouds:
        runner(cloud)
    graphs = {size: runner.prepare(size) for size in (2000, 8000)}
    torch.cuda.set_sync_debug_mode("error")
    try:
        for cloud in clouds:
            runner(cloud)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert {size: runner.prepare(size) for size in (2000, 8000)} == graphs
    with pytest.raises(ValueError, match="at most 8000 points"):
        runner(torch.zeros(8001, 4))
    with pytest.raises(ValueError, match=r"points must be \[1, N, 4\]"):
        runner(torch.zeros(5, 3))


@pytest.mark.gpu
def test_a_runner_takes_batches_of_the_host_and_counts_past_the_rows():
    """A count past the rows does not bring an older scan back."""
    model = fast("centers").cuda()
    runner = torchvox.GraphRunner(model, batch=2, buckets=(4000,))
    points, count = detectors.scan(model, 4000, 100)
    for rows, counts in ((4000, count), (300, torch.tensor([4000, 300], dtype=torch.int32))):
        some = points[:, :rows], counts
        found = tuple(t.clone() for t in runner(*some))
        with torch.no_grad():
            assert_same_bits(found, model(*(t.cuda() for t in some)))


@pytest.mark.gpu
def test_a_runner_made_in_inference_mode_runs_outside_of_it_and_keeps_no_graph():
    model = fast("anchors").cuda()
    points, count = (t.cuda() for t in detectors.scan(model, 900))
    with torch.inference_mode():
        runner = torchvox.GraphRunner(model, buckets=(1000,))
        inside = tuple(t.clone() for t in runner(points, count))
    assert_same_bits(runner(points.requires_grad_(), count), inside)
    assert not runner.prepare(900).points.requires_grad


@pytest.mark.multigpu
def test_runners_of_two_gpus_capture_each_on_its_own():
    points, _ = detectors.scan(fast("anchors"), 900)
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        model = fast("anchors").to(device)
        runner = torchvox.GraphRunner(model, buckets=(1000,), device=device)
        found = tuple(t.clone() for t in runner(points))
        count = torch.tensor([900], dtype=torch.int32, device=device)
        with torch.no_grad():
            assert_same_bits(found, model(points.to(device), count), device)
