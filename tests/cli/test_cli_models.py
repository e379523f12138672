# SPDX-License-Identifier: Apache-2.0
"""torchvox import, torchvox export and torchvox detect."""

import json

import numpy as np
import pytest
import torch
from upstream import yanx27

from torchvox.models import PointNet2Classifier, checkpoints
from torchvox.models.fuse import fuse_batch_norms

KITTI = ("--layout", "kitti", "--device", "cpu")


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    network = yanx27.Classifier(10, 6, "ssg")
    torch.save({"epoch": 1, "model_state_dict": network.state_dict()}, tmp_path / "best.pth")
    return tmp_path / "best.pth"


@pytest.fixture
def model_file(tmp_path):
    """A small classifier."""
    levels = [
        {"points": 16, "radii": [0.4], "neighbors": [4], "channels": [[8]]},
        {"points": None, "radii": [], "neighbors": [], "channels": [[16]]},
    ]
    torch.manual_seed(0)
    model = PointNet2Classifier(10, in_channels=6, levels=levels, head=[16])
    checkpoints.save(model.eval(), tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_import_reports_parity_and_writes_a_model(torchvox_cli, checkpoint, tmp_path):
    result = torchvox_cli("import", checkpoint, "--verify", "-o", "model.pt")
    result.ok("79 of 79 used, each once", "flag closed", "distances expanded, as published")
    model = checkpoints.load(tmp_path / "model.pt")
    assert model.config()["preset"] == "yanx27" and model.in_channels == 6
    content = torch.load(checkpoint, weights_only=True)
    del content["model_state_dict"]["fc1.bias"]
    torch.save(content, checkpoint)
    torchvox_cli("import", checkpoint, "-o", "b.pt").assert_one_sentence(1, "has no fc1.bias")
    assert not (tmp_path / "b.pt").exists()


@pytest.mark.parametrize("kind", ["script", "export"])
def test_export_writes_a_program_with_the_bits_of_the_model(
    torchvox_cli, model_file, kind, recwarn
):
    result = torchvox_cli("export", "model.pt", "--format", kind, "-o", "program.pt")
    result.ok("points, lengths -> scores; the bits of the model")
    assert not [w for w in recwarn if "not writable" in str(w.message)]


def test_a_fused_file_is_exported_in_its_own_dtype_alone(torchvox_cli, model_file, tmp_path):
    torchvox_cli("export", "model.pt", "--dtype", "bfloat16").ok("wrote model.script.pt")
    fused = fuse_batch_norms(checkpoints.load(model_file), torch.bfloat16)
    checkpoints.save(fused, tmp_path / "fused.pt")
    result = torchvox_cli("export", "fused.pt", "--dtype", "float16")
    result.assert_one_sentence(2, "fused with weights of bfloat16")
    torchvox_cli("export", "fused.pt").ok()


def test_models_that_differ_behind_a_dot_are_exported_apart(torchvox_cli, model_file, tmp_path):
    """And equal ones to equal files: archives of torch hold the name that they are written to."""
    for name in ("net.a", "net.b"):
        (tmp_path / f"{name}.pt").write_bytes(model_file.read_bytes())
        torchvox_cli("export", f"{name}.pt").ok()
    torchvox_cli("export", "net.a.pt", "-o", "new/program.pt").ok()
    written = sorted(tmp_path.glob("*.script.pt"))
    assert [p.name for p in written] == ["net.a.script.pt", "net.b.script.pt"]
    contents = {p.read_bytes() for p in (*written, tmp_path / "new" / "program.pt")}
    assert len(contents) == 1


@pytest.fixture
def written(model_file, tmp_path):
    """model.pt, an older program.pt2, and what lies beside them."""
    (tmp_path / "program.pt2").write_bytes(b"older")
    return sorted(p.name for p in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (lambda *out: None, 1, "scores of the program must be float32 [2, 10] on cpu, got None"),
        (lambda out: out[:, :-1], 1, "float32 [2, 10] on cpu, got float32 [2, 9] on cpu"),
        (lambda out: out + 1, 1, "program.pt2 is not written: the program differs from the model"),
        (RuntimeError("no compiler"), 1, "no compiler"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_export_that_fails_leaves_the_older_file(
    torchvox_cli, written, tmp_path, monkeypatch, fault, code, words
):
    """fault: what becomes of the outputs of a program, or what ends its writing."""
    from torchvox.models import export

    load = export.load_program

    def load_other(*file):
        return lambda *inputs: fault(load(*file)(*inputs))

    def break_off(program, package_path):
        package_path.write(b"half")
        raise fault

    monkeypatch.setattr(export, "load_program", load_other)
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", break_off)
    kind = "aoti" if isinstance(fault, BaseException) else "script"
    result = torchvox_cli("export", "model.pt", "--format", kind, "-o", "program.pt2")
    result.assert_one_sentence(code, words)
    assert (tmp_path / "program.pt2").read_bytes() == b"older"
    assert sorted(p.name for p in tmp_path.iterdir()) == written


def test_detect_writes_boxes_and_a_picture(torchvox_cli, detector_file, scan, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    detect = ("detect", scan, *KITTI, "-m", detector_file, "--score", 0, "-o")
    result = torchvox_cli(*detect, "a.json", "--pictures", "a.png", "--time")
    result.ok("20 boxes", "wrote a.json and a.png", "read ", "detect ")
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["points"] == 3000 and content["overflow"] >= 0
    scores = [box["score"] for box in content["boxes"]]
    assert len(scores) == 20 and scores == sorted(scores, reverse=True)
    names = ["class", "score", "x", "y", "z", "l", "w", "h", "yaw"]
    assert all(list(box) == names for box in content["boxes"])
    assert {box["class"] for box in content["boxes"]} <= {"Car", "Pedestrian", "Cyclist"}
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    torchvox_cli(*detect[:-3], "--score", 1, "-o", "b.json").ok("no boxes")


def test_detect_draws_labelled_boxes_of_a_file_or_a_folder(
    torchvox_cli, detector_file, scan, tmp_path
):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    detect = ("detect", scan, *KITTI, "-m", detector_file)
    (tmp_path / "boxes").mkdir()
    (tmp_path / "b.bin").write_bytes(scan.read_bytes())
    truth, plot = ("--truth", "boxes"), ("--pictures", "out")
    torchvox_cli(*detect, *truth).assert_one_sentence(2, "give --pictures too")
    torchvox_cli(*detect, *plot, *truth).assert_one_sentence(2, "such as scan.csv or scan.json")
    torchvox_cli(*detect, *plot, "--truth", "a").assert_one_sentence(2, "a does not exist")
    (tmp_path / "boxes" / "scan.csv").write_text("class,x,y,z,l,w,h,yaw\nCar,10,0,1,4,2,2,0.3\n")
    file = ("--truth", "boxes/scan.csv")
    one = torchvox_cli(*detect, "b.bin", *plot, *file)
    one.assert_one_sentence(2, "must be a folder for several scans")
    both = torchvox_cli(*detect, "b.bin", *plot, *truth, "--time").ok("median of 2 scans: read ")
    assert "1 of 2 scans have no boxes in boxes: b.bin" in both.err
    marked, plain = (
        (tmp_path / "out" / f"{name}.boxes.png").read_bytes() for name in ("scan", "b")
    )
    assert marked != plain
    torchvox_cli(
        *detect, "--pictures", "c.png", "--truth", "torchvox_out/scan.boxes.json", "-o", "c.json"
    ).ok()


def test_intensities_that_do_not_fit_the_detector_are_noted_once(torchvox_cli, detector_file, scan):
    points = np.fromfile(scan, np.float32).reshape(-1, 4) * [1, 1, 1, 255]
    for name in ("a", "b"):
        points.astype(np.float32).tofile(scan.parent / f"{name}.bin")
    err = torchvox_cli("detect", "a.bin", "b.bin", *KITTI, "-m", detector_file).ok().err
    assert err.count("a.bin: intensities reach 25") == err.count("intensities") == 1


def test_commands_take_the_name_of_a_model_with_weights(torchvox_cli, scan, tmp_path):
    pytest.importorskip("lightning", reason="the extra train is not installed")
    from torchvox.data.worlds.shapes import CLASSES, Shapes

    torchvox_cli("detect", scan, *KITTI, "-m", "center_world_small", "-o", "a.json").ok()
    name, sample = "pointnet2_cls_shapes_small", Shapes(split="val", seed=2, points=512, size=1)[0]
    np.save(tmp_path / "shape.npy", sample["points"].numpy())
    likely = f"shape.npy: {CLASSES[int(sample['label'])]} "
    predict = ("predict", "shape.npy", "-m", name, "--device", "cpu")
    torchvox_cli(*predict).ok(likely)
    torchvox_cli(*predict, "-o", "p.json").assert_one_sentence(2, "would write nothing", "--json")
    torchvox_cli(*predict, "--category", "mug").assert_one_sentence(2, "remove --category")
    for folder in "abc":
        (tmp_path / "of" / folder).mkdir(parents=True)
        np.savetxt(tmp_path / "of" / folder / "shape.txt", sample["points"].numpy())
    (tmp_path / "of" / "val.txt").write_text("a/shape")
    table = torchvox_cli(*predict, "of", "--json", "p.json")
    table.ok("second", f"of/a/shape.txt │ {CLASSES[int(sample['label'])]} ")
    rows = json.loads((tmp_path / "p.json").read_text())
    assert [row["file"] for row in rows] == ["shape.npy", *(f"of/{f}/shape.txt" for f in "abc")]
    assert sum(rows[3]["classes"].values()) == pytest.approx(1, abs=1e-5)
    small = ("data.seed=2", "data.val_size=32", "--device", "cpu", "--at-least", "accuracy=0.8")
    torchvox_cli("eval", name, *small).ok("32 samples of shapes")
    torchvox_cli("export", name).ok()
    assert (tmp_path / "a.json").exists() and (tmp_path / f"{name}.script.pt").exists()
    none = torchvox_cli("detect", scan, *KITTI, "-m", "pointpillars_world", "-o", "b.json")
    none.assert_one_sentence(2, "`torchvox train pointpillars_world -o DIR` makes")


def test_a_point_with_an_intensity_that_is_no_number_is_none(torchvox_cli, detector_file, scan):
    points = np.fromfile(scan, np.float32).reshape(-1, 4)
    points[100:110, 3] = np.nan
    points.tofile(scan.parent / "nan.bin")
    np.delete(points, slice(100, 110), 0).tofile(scan.parent / "less.bin")
    boxes = []
    for name in ("nan", "less"):
        arguments = (f"{name}.bin", *KITTI, "-m", detector_file, "-o", f"{name}.json")
        torchvox_cli("detect", *arguments, "--score", 0).ok()
        boxes.append(json.loads((scan.parent / f"{name}.json").read_text())["boxes"])
    assert boxes[0] == boxes[1] and len(boxes[0]) == 20


def test_a_head_that_cannot_be_merged_is_run_and_exported_as_it_is(torchvox_cli, scan, tmp_path):
    pytest.importorskip("yaml", reason="the extra train is not installed")
    from torchvox.models.detection import detector

    small = [
        "model.args.point_cloud_range=[-12.8, -12.8, -5, 12.8, 12.8, 3]",
        "model.args.backbone={layers: [0, 0, 0], channels: [8, 8, 8]}",
        "model.args.neck={channels: [8, 8, 8]}",
        "model.args.head.convs=2",
        "model.args.head.shared=8",
        "model.args.head.width=8",
    ]
    checkpoints.save(detector("centerpoint_pillars_nuscenes", small), tmp_path / "model.pt")
    torchvox_cli("detect", scan, *KITTI, "-m", "model.pt", "-o", "a.json").ok()
    torchvox_cli("export", "model.pt").ok()


def test_an_exported_script_detects_what_the_model_detects(torchvox_cli, detector_file, scan):
    result = torchvox_cli("export", detector_file, "-o", "model.script.pt")
    inputs, outputs = "points, num_points", "boxes, scores, labels, count, overflow"
    result.ok(f"{inputs} -> {outputs}; the bits of the model")
    (scan.parent / "in").mkdir()
    for name in ("a", "b"):
        (scan.parent / "in" / f"{name}.bin").write_bytes(scan.read_bytes())
    for model, folder in ((detector_file, "one"), ("model.script.pt", "two")):
        result = torchvox_cli(
            "detect", "in", "--layout", "kitti", "-m", model, "-o", folder, "--score", 0
        ).ok()
        assert len(result.out.splitlines()) == 2
    one, two = (scan.parent / f / "b.boxes.json" for f in ("one", "two"))
    assert one.read_text() == two.read_text()


def test_a_classifier_is_not_a_detector(torchvox_cli, model_file, scan):
    result = torchvox_cli("detect", scan, *KITTI, "-m", model_file)
    result.assert_one_sentence(1, "model.pt is not a detector")
