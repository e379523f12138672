# SPDX-License-Identifier: Apache-2.0
"""An ONNX file in its hosts: threads, versions, C++; and files that are not what they say."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from helpers import ROOT

import torchvox
from torchvox import models
from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.cli import work
from torchvox.models import export
from torchvox.models.artefact import without_tf32
from torchvox.onnx import Program

sys.path.append(str(ROOT / "tests" / "packaging"))
from shipping import call, clean_env, configure_examples, once, tool


@pytest.fixture(scope="module")
def inputs():
    """A scan, as the detector takes it."""
    points = torch.from_numpy(torchvox.data.generate_scan().points[:, :4])
    return points[None].contiguous(), torch.tensor([len(points)], dtype=torch.int32)


def test_what_a_file_says_of_itself(detector_onnx):
    facts = Program(detector_onnx).facts
    assert facts["task"] == "detect" and facts["dtype"] == "float32" and facts["domain"] == "1"
    assert facts["version"] == torchvox.__version__ and len(facts["weights_sha256"]) == 64


@pytest.mark.parametrize(
    ("dtype", "apart", "strays"), [(torch.float32, 1e-5, 0.0), (torch.float16, 5e-3, 0.005)]
)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_detector_on_the_gpu_gives_the_boxes_of_its_model(
    device, dtype, apart, strays, inputs, tmp_path
):
    model = models.fuse_batch_norms(models.get_model("center_world_small", "default"), dtype)
    model = models.merge_heads(model)
    export.export_model(model, tmp_path / "model.onnx", "onnx", batch=1)
    model, points = model.to(device), inputs[0].to(device)
    calls = [(points + 0.01 * i, inputs[1].to(device) - 1000 * i) for i in range(4)]
    with without_tf32(), torch.no_grad():
        expected = [tuple(out.cpu() for out in model(*call)) for call in calls]

    def check(outs, i):
        found = export.agreement(expected[i], tuple(out.cpu() for out in outs), True, 0.1)
        assert found.boxes > 20 and found.strays <= strays, i
        assert found.difference <= apart * found.greatest, i

    for graph in (False, True):
        session = torchvox.onnx.CudaSession(tmp_path / "model.onnx", graph=graph)
        for i in (0, 1, 2, 3, 0):
            check(session(*calls[i]), i)
    with pytest.raises(ValueError, match="CudaSession: inputs must be"):
        session(points[:, 1:], calls[0][1])
    # Calls at once on streams of their own, from memory of the host.
    plain = torchvox.onnx.session(tmp_path / "model.onnx", providers=["CUDAExecutionProvider"])
    names = [one.name for one in plain.get_inputs()]

    def answer(i):
        feeds = dict(zip(names, (t.cpu().numpy() for t in calls[i % 4]), strict=True))
        check(tuple(map(torch.from_numpy, plain.run(None, feeds))), i % 4)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(answer, range(24)))


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("float32", {"use_tf32": "0"}), ("float16", {"use_tf32": "1", "prefer_nhwc": "1"})],
)
def test_halves_keep_their_tensor_cores_and_float32_its_bits(dtype, options, monkeypatch):
    cuda, settings = ["CUDAExecutionProvider"], []
    facts = SimpleNamespace(custom_metadata_map={"torchvox.dtype": dtype})

    def open_session(path, _, names, own):
        settings.append(own[0])
        last = own[0]["use_tf32"] == options["use_tf32"]
        there = [] if last and own[0]["device_id"] == "2" else cuda
        return SimpleNamespace(get_providers=lambda: there, get_modelmeta=lambda: facts)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: cuda)
    torchvox.onnx.session("a.onnx", providers=cuda, device_id="1")
    assert settings[-1] == {**options, "device_id": "1"}
    with pytest.raises(WrongUseError, match="or cannot load it"):
        torchvox.onnx.session("a.onnx", providers=cuda, device_id="2")


@pytest.mark.parametrize(
    ("choice", "model", "there", "expected"),
    [
        ("auto", "a.onnx", False, "cpu"),
        ("auto", "a.onnx", True, "cuda"),
        ("auto", "a.pt", False, "cuda"),
        ("cuda", "a.onnx", False, "cuda"),  # and then an error
    ],
)
def test_auto_is_the_cpu_where_onnxruntime_has_no_cuda(
    choice, model, there, expected, monkeypatch, capsys
):
    monkeypatch.setattr(work, "choose_device", lambda _: (torch.device("cuda"), "a GPU"))
    monkeypatch.setattr(torchvox.onnx, "has_cuda", lambda: there)
    assert work.use_device(choice, model).type == expected
    words = "cpu (the installed onnxruntime has no CUDA)" if expected == "cpu" else "a GPU"
    assert capsys.readouterr().err == f"device: {words}\n"


def node(model, name):
    return next(one for one in model.graph.node if one.op_type == name)


def swap(model, name, one, other):
    values = {each.name: each for each in node(model, name).attribute}
    values[one].name, values[other].name = other, one


def reshape(model, name, *dims):
    tensor = next(one for one in model.graph.initializer if one.name == name)
    tensor.dims[:] = dims


def rewire(model, name, index, source):
    node(model, name).input[index] = source


def say(model, **facts):
    """Other metadata; None removes one."""
    for one in list(model.metadata_props):
        if (name := one.key.removeprefix("torchvox.")) in facts:
            model.metadata_props.remove(one)
            if facts[name] is not None:
                model.metadata_props.add(key=one.key, value=facts[name])


LINEAR = "encoder.pfn_layers.0.linear.weight"
HOSTILE = {
    "swapped lists": (lambda m: swap(m, "VoxelMap", "voxel_size", "point_cloud_range"),
                      "VoxelMap: voxel_size must be .x, y, z., got 6"),
    "swapped kinds": (lambda m: swap(m, "PillarEncode", "max_points", "pad_semantics"),
                      "PillarEncode: the attribute max_points is missing or of"),
    "a map lost": (lambda m: node(m, "CenterDecodeNms").input.pop(), "inputs must be 5, got 4"),
    "a map flat": (lambda m: rewire(m, "CenterDecodeNms", 0, LINEAR), "heatmap must be .B"),
    "counts": (lambda m: rewire(m, "PillarEncode", 7, "points"), "PillarEncode: counts must be"),
    "weights": (lambda m: reshape(m, LINEAR, 64, 5), "PillarEncode: weight must be"),
    "convolution": (lambda m: reshape(m, "head.shared.weight", 96, 32, 3, 3), "channels"),
    "no classes": (lambda m: say(m, classes=None), "metadata are not those"),
    "half a list": (lambda m: say(m, classes='["Car"'), "metadata are not those"),
    "a deep list": (lambda m: say(m, classes="[" * 100_000), "metadata are not those"),
    "a long number": (lambda m: say(m, column_scale=f"[1{'0' * 400}]"), "metadata are not those"),
    "columns": (lambda m: say(m, columns="9"), "sees 9 columns"),
    "one class": (lambda m: say(m, classes='["Car"]'), "labels of its 1 classes"),
    "range": (lambda m: say(m, point_cloud_range="[NaN, 0, 0, 1, 1, 1]"), "must be finite numbers"),
    "no detector": (lambda m: say(m, task="classify"), "is not a detector"),
    "newer": (lambda m: say(m, domain="2", version="0.9"), "of a newer torchvox .0.9.: upgrade"),
}  # fmt: skip


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_file_ends_in_a_sentence(fault, detector_onnx, tmp_path, capfd):
    change, words = HOSTILE[fault]
    model = onnx.load(detector_onnx)
    change(model)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(TorchvoxError, match=words) as error:
        models.Detector(tmp_path / "model.onnx", device="cpu")(torchvox.data.generate_scan())
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_cut_file_ends_in_a_sentence(share, detector_onnx, tmp_path):
    whole = detector_onnx.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(TorchvoxError, match=r"cut.onnx cannot be run by ONNX Runtime: \S"):
        Program(tmp_path / "cut.onnx")


def test_wrong_use_is_said_in_a_sentence(detector_onnx, inputs, tmp_path, monkeypatch):
    program = Program(detector_onnx)
    with pytest.raises(TorchvoxError, match="takes points, num_points, got 1 inputs"):
        program(inputs[0])
    with pytest.raises(TorchvoxError, match=r"does not run: .* points .* Got: 3 Expected: 4"):
        program(inputs[0][..., :3], inputs[1])
    there = ["CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: there)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_: program.session)
    words = r"has no CUDAExecutionProvider, .*: use --device"
    with pytest.raises(WrongUseError, match=words):
        models.Detector(detector_onnx, device="cuda")
    there.append("CUDAExecutionProvider")  # it is named, and cannot be loaded
    with pytest.raises(WrongUseError, match=words):
        torchvox.onnx.session(detector_onnx, providers=there[1:])
    monkeypatch.setattr("torchvox._library.BINDINGS", tmp_path)
    with pytest.raises(RuntimeError, match="-DTORCHVOX_ONNX=ON, or install a wheel"):
        torchvox.onnx_library()


@pytest.mark.slow
def test_the_oldest_onnxruntime_gives_the_boxes(detector_onnx, inputs, tmp_path):
    """The one that pyproject.toml names, where pip can have it."""
    oldest = re.search('"onnxruntime>=(.*?)"', (ROOT / "pyproject.toml").read_text())[1]
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site)
    if call(*pip, f"onnxruntime=={oldest}.*", ok=False).returncode:
        pytest.skip(f"pip has no onnxruntime {oldest} for this Python")
    torch.save(inputs, tmp_path / "inputs.pt")
    program = (
        "import sys, torch, onnxruntime; from torchvox.onnx import Program;"
        "outs = Program(sys.argv[1])(*torch.load(sys.argv[2]));"
        "torch.save(outs, sys.argv[3]); print(onnxruntime.__version__)"
    )
    path = os.pathsep.join([str(site), str(ROOT)])
    files = (detector_onnx, tmp_path / "inputs.pt", tmp_path / "outputs.pt")
    done = call(sys.executable, "-c", program, *files, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.splitlines()[-1].startswith(f"{oldest}.")
    found = export.agreement(Program(detector_onnx)(*inputs), torch.load(files[2]), True)
    assert found.boxes > 20 and found.strays == 0 and found.difference <= 1e-5 * found.greatest


INCLUDE = os.environ.get("TORCHVOX_ONNXRUNTIME_INCLUDE")  # as the build takes it


@pytest.mark.slow
@pytest.mark.skipif(not INCLUDE, reason="TORCHVOX_ONNXRUNTIME_INCLUDE names no published header")
def test_the_runner_in_cpp_gives_the_bits_of_the_session(
    detector_onnx, inputs, tmp_path, tmp_path_factory
):
    capi = Path(onnxruntime.__file__).parent / "capi"
    (library,) = capi.glob("libonnxruntime.so.*")

    def make(folder: Path) -> None:
        links = folder / "lib"
        links.mkdir()
        for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
            (links / name).symlink_to(library)
        env = clean_env(CMAKE_LIBRARY_PATH=str(links), CMAKE_INCLUDE_PATH=INCLUDE)
        configure_examples(folder, torchvox.cmake_prefix_path, env)
        call(tool("cmake"), "--build", folder, "--target", "onnx_runner", env=env)

    built = once(tmp_path_factory, "onnx_runner", make)
    needed = call(tool("readelf"), "-d", built / "onnx_runner").stdout
    assert "libtorch" not in needed and "libpython" not in needed
    env = {"LD_LIBRARY_PATH": str(built / "lib"), "PATH": os.environ["PATH"]}
    library, scan, boxes = torchvox.onnx_library(), tmp_path / "scan.bin", tmp_path / "boxes.bin"
    inputs[0].numpy().tofile(scan)
    done = call(built / "onnx_runner", detector_onnx, library, scan, 4, boxes, env=env)
    rows, scores, labels, count, _ = (out[0].numpy() for out in Program(detector_onnx)(*inputs))
    n, width = int(count), rows.shape[1] + 2
    assert n > 20 and done.stdout == f"{n} boxes\n"
    expected = np.concatenate([rows, scores[:, None], labels[:, None]], 1)[:n].astype(np.float32)
    assert np.fromfile(boxes, np.float32).reshape(-1, width).tobytes() == expected.tobytes()
    (tmp_path / "cut.onnx").write_bytes(detector_onnx.read_bytes()[:1000])
    files = (tmp_path / "cut.onnx", library, scan, 4, boxes)
    failed = call(built / "onnx_runner", *files, env=env, ok=False)
    assert failed.returncode == 1 and "Protobuf parsing failed" in failed.stdout
