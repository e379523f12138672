# SPDX-License-Identifier: Apache-2.0
"""Errors are one sentence on stderr: exit code 2 for wrong use, 1 for failed work."""

import importlib
import os
import pickle
import warnings

import numpy as np
import pytest
import torch
from helpers import write_points

from torchvox.io import PointTable

KITTI = ("--layout", "kitti")
VOXELIZE, SAMPLE, BEV, DETECT = (
    (command, "scan.bin", *KITTI) for command in ("voxelize", "sample", "bev", "detect")
)
DOWNSAMPLE = ("downsample", "a.ply", "--voxel", "1")
CONVERT, VIEW = ("convert", "a.npz", "-o"), ("view", "a.npz")
SCANS = ("map", "scans", "--layout", "xyz")
POSED = (*SCANS, "--poses", "poses.txt", "-o", "a.npz")
IMPORT, EXPORT = ("import", "best.pth"), ("export", "model.pt")
WRONG_USE = [
    (("fly",), ("No such command",)),
    (("voxelize", "scan.bin", "--wings", "2"), ("--wings",)),
    (("voxelize",), ("PATH",)),
    (("voxelize", "scan.bin"), ("--layout", "kitti", "nuscenes")),
    (("demo", "--device", "tpu"), ("'--device': 'tpu' is not one of",)),
    (("info", "scan.bin", "scan.bin"), ("a .bin file does not name its columns",)),
    (("info", "a.pcd", "a.las", *KITTI), ("names its columns; remove --layout",)),
    (("info", "scan.bin", "--layout", "velodyne"), ("velodyne", "kitti")),
    (("info", "nowhere.bin"), ("nowhere.bin", "does not exist")),
    (("info", "above"), ("folders in it are not searched",)),
    ((*VOXELIZE, "--voxel", "1,2"), ("--voxel takes 1 or 3",)),
    ((*VOXELIZE, "--voxel", "5m"), ("--voxel takes numbers separated by commas", "'5m'")),
    ((*BEV, "-o", "a.tif"), ("a.tif: bird's-eye views are written as .png",)),
    ((*VOXELIZE, "scan.bin", "-o", "a.npz"), ("one file",)),
    ((*VOXELIZE, "scan.bin", "-o", "out"), ("both write",)),
    ((*VOXELIZE, "--format", "pdf"), ("--format",)),
    ((*VOXELIZE, "--format", "png", "-o", "x.npz"), ("conflicts with",)),
    ((*VOXELIZE, "--max-points", "-2"), ("--max-points",)),
    ((*VOXELIZE, "-o", "taken"), ("--output must be a folder or .npz",)),
    ((*SAMPLE, "-o", "/dev/null"), ("--output must be a folder or .npz",)),
    ((*SAMPLE, "--start", "²"), ("--start",)),
    ((*SAMPLE, "--start", "3000"), ("past the 3,000 points",)),
    ((*SAMPLE, "-n", "9" * 30), ("--samples must fit into 64 bits",)),
    ((*BEV, "--channels", "beauty"), ("beauty", "height_max")),
    ((*BEV, "--channels", "count,density"), ("one channel",)),
    ((*BEV, "--channels", "occupancy:²"), ("occupancy:²",)),
    ((*BEV, "--size", "0,4"), ("--size",)),
    ((*BEV, "--size", "inf,4"), ("--size",)),
    ((*BEV, "--voxel", "1e-9"), ("at most 2^24 voxels",)),
    (("downsample", "a.ply"), ("--voxel",)),
    (("downsample", "a.ply", "--voxel", "0"), ("voxel size", "above 0")),
    (("downsample", "a.ply", "--voxel", "1e-9"), ("bits", "voxel size >=")),
    ((*DOWNSAMPLE, "--policy", "labl=max"), ("labl", "intensity, classification")),
    ((*DOWNSAMPLE, "--policy", "classification=median"), ("median", "majority")),
    ((*DOWNSAMPLE, "--policy", "label"), ("NAME=RULE",)),
    ((*DOWNSAMPLE, "--adaptive", "4"), ("--adaptive", "LEVELS,MAX_POINTS")),
    ((*DOWNSAMPLE, "--adaptive", "11,5"), ("levels",)),
    ((*DOWNSAMPLE, "--adaptive", "1," + "9" * 30), ("2^63",)),
    ((*DOWNSAMPLE, "--keep", "best"), ("best",)),
    ((*DOWNSAMPLE, "--origin", "middle"), ("--origin",)),
    ((*DOWNSAMPLE, "--memory-limit", "lots"), ("--memory-limit", "512MiB")),
    ((*DOWNSAMPLE, "--keep", "nearest_centroid", "--memory-limit", "1MB"), ("nearest_centroid",)),
    ((*DOWNSAMPLE, "--drop-withheld"), ("withheld",)),
    ((*DOWNSAMPLE, "-o", "b.pdf"), ("b.pdf",)),
    ((*DOWNSAMPLE, "--merge", "-o", "out"), ("--merge", "one file")),
    ((*DOWNSAMPLE, "--trace", "t.npz", "--memory-limit", "1MB", "-o", "b.ply"), ("trace",)),
    *(
        ((*DOWNSAMPLE, f"--bounds={box}"), ("--bounds", "upper"))
        for box in ("nan,0,0,1,1,1", "0,0,2,1,1,1", "inf,0,0,inf,1,1", "0,0,0,1,1,nan")
    ),
    ((*CONVERT, "b.obj"), ("points are written as .las",)),
    ((*CONVERT, "out", "--format", "e57"), ("--format must be one of las",)),
    ((*CONVERT, "b.copc.laz"), ("b.copc.laz: COPC files are read",)),
    ((*CONVERT, "b.ply", "--scale", "1"), ("--scale is for .las",)),
    ((*CONVERT, "b.las", "--scale", "0"), ("scales must be finite",)),
    ((*CONVERT, "b.las", "--scale", "1,2"), ("--scale takes 1 or 3",)),
    ((*CONVERT, "b.csv", "--policy", "nir"), ("NAME=drop", "'nir'")),
    ((*CONVERT, "b.csv", "--policy", "red=mean"), ("NAME=drop",)),
    ((*CONVERT, "b.csv", "--policy", "nir=drop"), ("nir", "has intensity")),
    ((*VIEW, "-o", "a.pdf"), (".html or .png",)),
    ((*VIEW, "--color", "level"), ("--color level: no column level in a.npz",)),
    ((*VIEW, "--max-points", "0"), ("--max-points",)),
    ((*VIEW, "--voxel", "-1"), ("--voxel must be positive",)),
    (SCANS, ("--poses", "--trajectory")),
    (("map", "scans", "--poses", "poses.txt"), ("--layout",)),
    ((*POSED, "-o", "a.tif"), ("a.tif", ".npz", ".html")),
    ((*POSED, "--ros-yaml"), ("--ros-yaml", ".png")),
    ((*POSED, "--select", "free"), ("--select",)),
    ((*POSED, "-o", "a.png", "--slice", "2,1"), ("--slice",)),
    ((*POSED, "--voxel", "0"), ("voxel_size",)),
    ((*POSED, "--preset", "odd"), ("preset", "octomap")),
    ((*POSED, "--layers", "odd"), ("hit_miss", "odd")),
    ((*POSED, "--ndt", "--preset", "octomap"), ("ndt", "every_ray")),
    ((*POSED, "--capacity", "odd"), ("capacity", "odd")),
    ((*POSED, "--threshold", "1"), ("--threshold",)),
    ((*POSED, "--bounds", "0,0,0,1,1"), ("--bounds", "6")),
    ((*POSED, "--bounds=0,0,0,-1,1,1"), ("--bounds", "upper")),
    ((*POSED, "--bounds=0,0,0,1,inf,1"), ("point_cloud_range",)),
    ((*POSED, "--max-range", "nan"), ("max_range",)),
    ((*POSED, "--trajectory", "poses.txt"), ("--poses", "--trajectory")),
    ((*POSED, "--batch-seconds", "1"), ("--batch-seconds", "--trajectory")),
    ((*POSED, "--memory-limit", "1MB", "--capacity", "9"), ("--memory-limit", "--capacity")),
    ((*POSED, "--memory-limit", "lots"), ("--memory-limit", "lots")),
    ((*POSED, "--memory-limit", "1"), ("--memory-limit must hold a region of", "got '1'")),
    ((*SCANS, "--trajectory", "poses.txt"), ("TUM",)),
    ((*SCANS, "--trajectory", "tum.txt"), ("no file", "gps_time", "coordinates alone", "--times")),
    ((*SCANS, "--trajectory", "tum.txt", "--times", "names"), ("--times needs --poses",)),
    (("map", "scans", "a.graph", "--poses", "poses.txt"), ("all maps", "all scans")),
    (("map", "a.graph", "--poses", "poses.txt"), ("--poses", "graphs")),
    (("map", "m.bt", "--voxel", "0.1", "--min-range", "1"), ("--voxel, --min-range",)),
    ((*DETECT, "-m", "none.pt"), ("model none.pt does not exist",)),
    (("detect", "scan.bin", "--layout", "x,y,z,_", "-m", "model.pt"), ("no intensity column",)),
    ((*DETECT, "-m", "model.pt", "-o", "a.txt"), (".json",)),
    ((*DETECT, "-m", "model.pt", "--score", "2"), ("--score",)),
    (("predict", "scan.bin", *KITTI, "-m", "."), ("model . is not a file",)),
    (("import", "none.pth"), ("model none.pth does not exist",)),
    ((*IMPORT, "-o", "above"), ("--output must be a file, got above, a folder",)),
    ((*IMPORT, "--json", "/dev/null"), ("--json must be a file, got /dev/null",)),
    ((*IMPORT, "--source", "kitti"), ("--source",)),
    ((*IMPORT, "--set", "order"), ("--set",)),
    ((*IMPORT, "--set", "order=[a"), ("--set order=[a",)),
    ((*IMPORT, "--config", "no.yaml"), ("--config",)),
    ((*EXPORT, "--format", "tensorrt"), ("--format",)),
    ((*EXPORT, "--dtype", "int8"), ("--dtype",)),
    ((*EXPORT, "--format", "aoti", "-o", "a.pt"), ("aoti is written to a .pt2 file",)),
]
FAILED_WORK = [
    ((*SAMPLE, "-o", "scan.bin/x.npz"), "scan.bin/x.npz: cannot be"),
    ((*VOXELIZE, "-o", "taken/a.npz"), "taken"),
    ((*VOXELIZE, "--voxel", "1.3e-6", "--bounds", "0,0,0,20,20,20"), ""),  # the op refuses
    (("info", "text.npy"), "text.npy is no"),
    (("info", "bare.pcd"), "its header has no FIELDS, SIZE"),
    (("view", "a.npz", "none.npz"), "none.npz"),
    (("export", "text.npy"), "or damaged"),
    (("export", "best.pth"), "no checkpoint of torchvox.models"),
    ((*DETECT, "-m", "best.pth"), "no checkpoint of torchvox.models"),
    (("bev", "plain.npy", "--channels", "intensity_top"), "no intensity column"),
    (("demo", "nan.npy"), "no finite point"),
]
if not torch.cuda.is_available():  # never a fallback
    FAILED_WORK += [
        ((*command, "--device", "cuda"), "--device cuda")
        for command in (VOXELIZE, SAMPLE, BEV, ("demo", "plain.npy"))
    ]


@pytest.fixture
def files(scan, detector_file, tmp_path):
    """Files that the tables name, and what is there."""
    for name in ("laspy", "matplotlib", "pypcd4"):
        pytest.importorskip(name, reason="an extra is not installed")
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "bare.pcd").write_text("VERSION 0.7\nDATA ascii\n1 2 3\n")
    for name in ("taken", "a.graph", "a.pcd", "a.las"):
        (tmp_path / name).touch()
    (tmp_path / "m.bt").write_bytes(b"# Octomap OcTree binary file\n")
    (tmp_path / "above" / "below").mkdir(parents=True)
    (tmp_path / "scans").mkdir()
    for i in range(3):
        np.ones((9, 3), np.float32).tofile(tmp_path / "scans" / f"{i}.bin")
    (tmp_path / "poses.txt").write_text("1 0 0 0 0 1 0 0 0 0 1 0\n" * 3)
    (tmp_path / "tum.txt").write_text("0 0 0 0 0 0 0 1\n9 0 0 0 0 0 0 1\n")
    np.save(tmp_path / "plain.npy", np.random.default_rng(0).random((9, 3)))
    np.save(tmp_path / "nan.npy", np.full((5, 3), np.nan))
    columns = {"intensity": np.arange(20, dtype=np.uint16)}
    columns["classification"] = np.zeros(20, np.uint8)
    table = PointTable(np.random.default_rng(0).random((20, 3), np.float32), columns)
    for name in ("a.ply", "a.npz"):
        write_points(tmp_path / name, table)
    torch.save({"state_dict": {}}, tmp_path / "best.pth")
    return {*tmp_path.rglob("*")}


@pytest.mark.parametrize(("arguments", "words"), WRONG_USE)
def test_wrong_use_is_exit_code_2(torchvox_cli, files, tmp_path, arguments, words, monkeypatch):
    if arguments[0] == "predict":
        pytest.importorskip("lightning", reason="the extra train is not installed")
    monkeypatch.delattr("torchvox.mapping.job.MapJob.add")  # before the first scan
    torchvox_cli(*arguments).assert_one_sentence(2, *words)
    assert {*tmp_path.rglob("*")} == files


@pytest.mark.parametrize(("arguments", "words"), FAILED_WORK)
def test_failed_work_is_exit_code_1(torchvox_cli, files, tmp_path, arguments, words):
    result = torchvox_cli(*arguments)
    result.assert_one_sentence(1, words)
    assert ".torchvox" not in result.err and {*tmp_path.rglob("*")} == files


@pytest.mark.parametrize("command", ["info", "voxelize", "sample", "bev", "demo"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00\x76\x00garbage", b"\x00" * 40])
def test_a_damaged_file_is_exit_code_1(torchvox_cli, tmp_path, command, content):
    (tmp_path / "a.npy").write_bytes(content)
    torchvox_cli(command, "a.npy").assert_one_sentence(1, "a.npy")
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]


@pytest.mark.parametrize(
    ("module", "arguments", "packages"),
    [
        ("laspy", ("info", "a.laz"), "laspy lazrs"),
        ("lazrs", ("info", "a.laz"), "lazrs"),
        ("pypcd4", ("info", "a.pcd"), "pypcd4"),
        ("rosbags", ("info", "a.bag"), "rosbags"),
        ("matplotlib", ("demo",), "matplotlib"),
        ("yaml", ("voxelize", "scan.bin", *KITTI, "--grid", "sweep_02"), "PyYAML"),
        ("typer", ("info", "scan.bin"), "typer rich PyYAML"),
        ("rich", ("info", "scan.bin"), "rich PyYAML"),
    ],
)
def test_a_missing_extra_names_its_command(
    torchvox_cli, scan, tmp_path, monkeypatch, module, arguments, packages
):
    for name in ("a.laz", "a.pcd"):
        (tmp_path / name).write_bytes(b"LASF")
    (tmp_path / "a.bag").write_bytes(b"#ROSBAG V2.0\n")
    real = importlib.import_module

    def without(name, *rest, **options):
        if name.split(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **options)

    monkeypatch.setattr(importlib, "import_module", without)
    torchvox_cli(*arguments).assert_one_sentence(1, f": run pip install {packages}")


def test_the_memory_that_is_missing_is_printed_in_gigabytes():
    from torchvox.cli.work import sentence

    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60, dtype=torch.uint8)
    if "tried to allocate" not in str(refused.value):
        pytest.skip("another allocator than torch's own")
    assert sentence(refused.value) == "1.15e+09 GB do not fit into memory"


BAD = "\x1b[31m\x9b2J\u202e\x07"


@pytest.mark.parametrize(
    "arguments",
    [
        ("info",),
        ("info", "."),
        ("convert", "-o", f"{BAD}.ply"),
        ("downsample", "--voxel", "1"),
        *((command, "-o", "a.npz") for command in ("voxelize", "sample", "bev")),
    ],
)
@pytest.mark.parametrize("kind", ["names", "wrong", "layout"])
def test_control_sequences_of_files_do_not_reach_the_terminal(
    torchvox_cli, tmp_path, arguments, kind
):
    columns = [*"xyz", f"a\n{BAD}"] if kind == "names" else ["x", BAD]
    np.savez(
        tmp_path / f"{BAD}.npz",
        **{"points": np.ones((3, 4)), "columns": columns, BAD: np.ones(7), "colors": np.ones(3)},
    )
    layout = ("--layout", f"x,y,z,{BAD}") if kind == "layout" else ()
    result = torchvox_cli(arguments[0], f"{BAD}.npz", *arguments[1:], *layout)
    assert result.out + result.err
    assert [c for c in result.out + result.err if not (c.isprintable() or c == "\n")] == []
    if kind == "names":
        assert "are not columns" in result.err or "info" in arguments


def test_checkpoints_are_refused_without_the_notices_of_torch(tmp_path):
    from torchvox.models import checkpoints

    (tmp_path / "a.pt").write_bytes(pickle.dumps({"a": os.system}, protocol=4))
    with warnings.catch_warnings(), pytest.raises(checkpoints.CheckpointError):
        warnings.simplefilter("error")
        checkpoints.read(tmp_path / "a.pt")
