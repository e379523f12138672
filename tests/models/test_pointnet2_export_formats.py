# SPDX-License-Identifier: Apache-2.0
"""One forward: eager, TorchScript, torch.export, torch.compile, AOTInductor, CUDA graphs."""

from pathlib import Path

import pytest
import torch
from fresh import fresh_process
from helpers import assert_same_bits
from nets import SMALL, Calls, inputs

from torchvox.models import export
from torchvox.models.fuse import fuse_batch_norms

each_model = pytest.mark.parametrize("name", SMALL)
# The part segmenter has all that the others have.
most_in_one = pytest.mark.parametrize(
    "name",
    [
        "part segmenter",
        *(pytest.param(n, marks=pytest.mark.slow) for n in SMALL if "part" not in n),
    ],
)


# Exporting takes seconds: these two, and the classifier that test_cli_models.py exports.
QUICK = {("segmenter", "yanx27"), ("part segmenter", "pn2")}


@pytest.mark.parametrize(
    ("name", "preset", "kind"),
    [
        pytest.param(
            name,
            preset,
            kind,
            marks=pytest.mark.slow if kind == "export" and (name, preset) not in QUICK else (),
        )
        for kind in ("script", "export")
        for preset in ("yanx27", "pn2")
        for name in SMALL
    ],
)
def test_a_program_keeps_the_bits_for_any_clouds(name, preset, kind, tmp_path):
    model = SMALL[name](preset=preset)
    model = fuse_batch_norms(model) if preset == "pn2" else model
    export.export_model(model, tmp_path / "program", kind)
    program = export.load_program(tmp_path / "program", kind)
    assert export.compare(model, program, num_points=77).same_bits


EXPORT_ONTO_A_FULL_DISK = """
import sys
from pathlib import Path
sys.path.append(sys.argv[2])
from helpers import disk_of
from nets import Wide
from torchvox.models import export

folder = Path(sys.argv[1])
(folder / "new").mkdir()
for kind in ("script", "export"):
    with disk_of(20_000):
        try:
            export.export_model(Wide(), folder / "new" / "program", kind)
        except OSError as error:
            print(kind, error.strerror, list(folder.glob("new/*")))
"""


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_no_end_of_the_process(tmp_path):
    found = fresh_process(EXPORT_ONTO_A_FULL_DISK, tmp_path, Path(__file__).parent)
    assert found.splitlines() == ["script File too large []", "export File too large []"]


@pytest.mark.slow
@each_model
def test_an_aoti_package_agrees_for_any_clouds(name, tmp_path):
    model = fuse_batch_norms(SMALL[name]())
    export.export_model(model, tmp_path / "model.pt2", "aoti")
    found = export.compare(model, export.load_program(tmp_path / "model.pt2", "aoti"))
    assert found.difference <= 1e-5 * found.greatest  # Inductor's own log, exp and reductions


@most_in_one
def test_a_script_trains_like_the_model(name):
    rates = [0.0] * (2 if name == "classifier" else 1)
    plain, scripted = (SMALL[name](dropout=rates).train() for _ in range(2))
    some = inputs(plain, 60)
    script = torch.jit.script(scripted)
    for _ in range(3):  # the executor specializes after some calls
        expected, got = plain(*some), script(*some)
        torch.testing.assert_close(got, expected)
        expected.square().mean().backward()
        got.square().mean().backward()
    for mine, other in zip(plain.parameters(), scripted.parameters(), strict=True):
        torch.testing.assert_close(other.grad, mine.grad, rtol=1e-3, atol=1e-5)


@most_in_one
def test_compile_takes_a_model_whole_and_once(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model = SMALL[name]()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for count in (50, 64, 37):
            some = inputs(model, count)
            assert_same_bits(compiled(*some), model(*some), f"{count} points")
    assert counter.frame_count <= 2


@pytest.mark.slow
def test_inductor_trains_the_classifier():
    torch._dynamo.reset()
    plain, other = (SMALL["classifier"](dropout=[0.0, 0.0]).train() for _ in range(2))
    compiled = torch.compile(other, fullgraph=True)
    some = inputs(plain, 60)
    for model in (plain, compiled):
        model(*some).square().mean().backward()
    for mine, theirs in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@each_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_cuda_graph_holds_a_whole_forward(name, dtype):
    model = fuse_batch_norms(SMALL[name](), None if dtype == torch.float32 else dtype).cuda()
    capacity = 80
    some = [t.cuda() for t in inputs(model, capacity)]
    lengths = torch.full((3,), capacity, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(*some, lengths)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            scores = model(*some, lengths)
        for seed, sizes in enumerate(([80, 80, 80], [80, 0, 1], [3, 50, 79])):
            some[0].copy_(inputs(model, capacity, seed=seed)[0])
            lengths.copy_(torch.tensor(sizes))
            graph.replay()
            assert_same_bits(scores, model(*some, lengths), str(sizes))


@pytest.mark.gpu
@each_model
def test_a_training_step_never_waits_for_the_host(name):
    model = SMALL[name]().cuda().train()
    some = [t.cuda() for t in inputs(model, 80)]
    lengths = torch.tensor([80, 0, 17], device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(*some, lengths).square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@each_model
def test_the_gpu_agrees_with_the_cpu(name):
    model = SMALL[name]()
    some = inputs(model, 80)
    expected = model(*some)
    got = model.cuda()(*[t.cuda() for t in some])
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@each_model
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_half_weights_on_the_gpu_take_the_kernel_and_agree(name, dtype):
    model = SMALL[name]()
    some = inputs(model, 80)
    fused = fuse_batch_norms(model, dtype).cuda()
    there = [t.cuda() for t in some]
    with torch.no_grad(), Calls() as calls:
        scores = fused(*there)
    assert calls.count("group_mlp_max") == sum(len(level["radii"]) for level in levels_of(model))
    assert calls.count("query_and_group") == 0
    torch.testing.assert_close(scores.cpu(), model(*some), rtol=0.1, atol=0.15)


def levels_of(model):
    return model.config()["levels"]
