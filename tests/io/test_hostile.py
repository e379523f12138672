# SPDX-License-Identifier: Apache-2.0
"""Files that claim more than they hold end in one sentence: the process lives, in 1 GiB and 10 s.

They are read in a process of their own, which a reader that believes them takes down.
"""

import io
import json
import os
import re
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import fuzzing
import numpy as np
import pytest

from torchvox._util.errors import WrongUseError

for module in ("laspy", "lazrs", "pypcd4", "yaml", "pydantic", "h5py", "lightning"):
    pytest.importorskip(module, reason=f"{module} is not installed")

ROOT = Path(__file__).resolve().parents[2]
LONG = [pytest.param(1, 200, marks=pytest.mark.slow)]
LIMIT = 6 << 30  # of address space: what a fault may take of the machine


def address_space():
    """The process of the tests may be large already: torch alone is, with CUDA."""
    return (int(Path("/proc/self/statm").read_text().split()[0]) << 12) + LIMIT


def verdicts_of(paths):
    """What became of every file; one that takes the process down is followed by another process."""
    left, found = [*map(str, paths)], {}
    while left:
        try:
            done = subprocess.run(
                [sys.executable, fuzzing.__file__, *left],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (address_space(),) * 2),
                capture_output=True,
                text=True,
                timeout=300 + len(left),
            )
            lines, errors = done.stdout, done.stderr
        except subprocess.TimeoutExpired as slow:
            lines, errors = (slow.stdout or b"").decode(), "no end"
        found |= {path: verdict for path, *verdict in map(json.loads, lines.splitlines())}
        left = left[len(lines.splitlines()) :]
        if left:
            found[left.pop(0)] = ["nothing", f"the process died: {errors[-500:]}"]
    return found


@pytest.mark.parametrize(("seed", "count"), [(0, 10), *LONG])
def test_damaged_files(seed, count, tmp_path):
    paths = []
    for kind, (suffix, write) in fuzzing.WRITERS.items():
        name = f"ply_data_train0{suffix}" if kind.startswith("h5") else f"a{suffix}"
        write(whole := tmp_path / name)
        fuzzing.read(kind, whole)
        for number in range(count):
            path, rng = tmp_path / kind / str(number) / name, np.random.default_rng([seed, number])
            path.parent.mkdir(parents=True)
            text = kind in fuzzing.TEXTS or kind.startswith("pcd")
            path.write_bytes(fuzzing.damage(whole.read_bytes(), rng, text))
            paths.append(path)
    faults = {path: fault for path, (_, fault) in verdicts_of(paths).items() if fault}
    assert not faults


def patched(kind, *changes):
    """A file of fuzzing.WRITERS with (where, format, value); the bytes may say where."""

    def write(path):
        fuzzing.WRITERS[kind][1](path)
        data = bytearray(path.read_bytes())
        for where, format_, value in changes:
            struct.pack_into(format_, data, where(data) if callable(where) else where, value)
        path.write_bytes(data)

    return write


def points_at(data):
    return struct.unpack_from("<I", data, 96)[0]


def table_at(data):
    return struct.unpack_from("<q", data, points_at(data))[0]


def record_at(data):
    """Of the LASzip record: after the head of its VLR, which names it."""
    return data.index(b"laszip encoded") + 52


def wrong_table(path):
    """Chunks of any size, whose table says 2^31 - 1 points."""
    import lazrs

    fuzzing.WRITERS["laz-variable"][1](path)
    data = path.read_bytes()
    vlr = lazrs.LazVlr(data[record_at(data) : points_at(data)])
    at, table = table_at(data), io.BytesIO()
    start = io.BytesIO(data)
    start.seek(points_at(data))
    chunks = [(2**31 - 1, size) for _, size in lazrs.read_chunk_table(start, vlr)]
    lazrs.write_chunk_table(table, chunks, vlr)
    path.write_bytes(data[:at] + table.getvalue() + bytes(32))


def replaced(kind, old, new):
    def write(path):
        fuzzing.WRITERS[kind][1](path)
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new))

    return write


def raw(data):
    """A file of these bytes, or this text."""
    return lambda path: path.write_bytes(data.encode() if isinstance(data, str) else data)


def large_packed(path):
    fuzzing.WRITERS["pcd-compressed"][1](path)
    data = path.read_bytes().replace(b"POINTS 50", b"POINTS 250000000")
    at = data.index(b"DATA binary_compressed\n") + 23
    path.write_bytes(data[: at + 4] + struct.pack("<I", 4_000_000_000) + data[at + 8 :])


def npy(header):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


def shaped(descr, *shape):
    """The header of a .npy that claims a shape."""
    return npy(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n")


def npz(**members):
    def write(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {"points": np.ones((4, 3), np.float32), **members}.items():
                if isinstance(content, np.ndarray):
                    np.save(buffer := io.BytesIO(), content)
                    content = buffer.getvalue()
                archive.writestr(f"{name}.npy", content)

    return write


def aliases(head, each="[{}]", levels=12):
    """A value that stands for 9^levels."""
    lines = [f"{head}a0: &a0 {'{x: 1}' if '<<' in each else 'word'}"]
    for i in range(1, levels):
        lines.append(f"a{i}: &a{i} " + each.format(", ".join([f"*a{i - 1}"] * 9)))
    return "\n".join(lines) + "\n"


ABOUT = (
    b'{"epoch": 0, "origin": [0, 0, 0], "preset": null, "ndt": null, "rule": "scan", '
    b'"sensor": [0.7, 0.4, 0.1, 0.9], "version": 1, "voxel_size": 0.1}'
)
CUBE = b"# Octomap OcTree binary file\nid OcTree\nsize 9\nres 1\ndata\n\xaa\xaa"
TRAIN = "base: pointnet2_cls_shapes_small\n"
HOSTILE = {
    "laz/table.laz": (patched("laz", (lambda d: table_at(d) + 4, "<I", 2**32 - 1)), "chunk table"),
    "laz/far.laz": (patched("laz", (points_at, "<q", 2**62)), "no chunk table"),
    "laz/no_end.laz": (patched("laz", (points_at, "<q", -1)), "no chunk table"),
    "laz/counts.laz": (wrong_table, "chunks do not hold"),
    "laz/layer.laz": (patched("laz-7", (lambda d: points_at(d) + 52, "<I", 2**32 - 1)), "layers"),
    "laz/points.laz": (patched("laz", (107, "<I", 84_000_000)), "cannot hold the 84000000 points"),
    "laz/more.laz": (patched("laz", (107, "<I", 90_000)), "chunks do not hold the 90000 points"),
    "laz/item.laz": (patched("laz", (lambda d: record_at(d) + 36, "<H", 65535)), "LASzip record"),
    "laz/chunks.laz": (patched("laz", (lambda d: record_at(d) + 12, "<I", 900_000_000)), "read"),
    "las/records.las": (patched("las", (100, "<I", 2**32 - 1)), "does not fit"),
    "las/other.las": (patched("las", (0, "<I", 9)), "does not begin with LASF"),
    "las/points.las": (patched("las", (107, "<I", 84_000_000)), "cannot hold the 84000000 points"),
    "las/scale.las": (patched("las", (131, "<d", 0.0)), "give no coordinates"),
    "las/evlrs.las": (patched("las-7", (235, "<q", 2**62), (243, "<I", 9)), "read"),
    "pcd/count.pcd": (replaced("pcd-ascii", b"COUNT 1 ", b"COUNT 99999999 "), "cannot hold"),
    "pcd/points.pcd": (replaced("pcd-binary", b"POINTS 50", b"POINTS 9999999999"), "cannot hold"),
    "pcd/packed.pcd": (large_packed, "cannot hold"),
    "pcd/line.pcd": (raw(b"FIELDS" + b" x" * 200_000), "does not end"),
    **{
        f"{kind}/points.ply": (replaced(kind, b"vertex 20", b"vertex 9999999999"), "do not hold")
        for kind in ("ply", "ply-big", "ply-ascii")
    },
    "ply/skipped.ply": (replaced("ply", b"edge 3", b"edge 99999999"), "bytes do not hold"),
    "ply/header.ply": (raw(b"ply\n" + b"comment x\n" * 200_000), "header does not end"),
    "npy/wide.npy": (raw(shaped("<f4", 0, 10**10)), r"C from 3 to 65536, got float32 \[0, 10+\]"),
    "npy/deep.npy": (raw(npy("(" * 9000)), "not a readable"),
    "npz/origin.npz": (npz(origin=np.zeros(3_000_000)), "origin claims 24000128 bytes"),
    "npz/names.npz": (npz(columns=shaped("<U0", 10**10)), "3 columns, but the layout names 65537"),
    "npz/unused.npz": (npz(junk=b"no array"), "read"),
    "map/keys.npz": (
        npz(about=np.frombuffer(ABOUT, np.uint8), keys=shaped("<i8", 10**12)),
        r"keys must be \[n\] int64, got \[1000000000000\] int64 in \d\d bytes",
    ),
    "ot/size.ot": (replaced("ot", b"size 33", b"size 999999999994"), "do not fit the"),
    "bt/size.bt": (replaced("bt", b"size 33", b"size 999999999994"), "its header promises 99999"),
    "bt/cube.bt": (raw(CUBE), "expand to 549755813888 regions"),
    "graph/points.graph": (patched("graph", (4, "<I", 2**32 - 1)), "promises 120259084260 bytes"),
    "graph/edges.graph": (patched("graph", (-84, "<I", 2**32 - 1)), "not 4294967295 edges"),
    "grid/aliases.yaml": (raw(aliases("")), "aliases written out"),
    "grid/merge.yaml": (raw(aliases("", "{{<<: [{}]}}")), "aliases written out"),
    "grid/deep.yaml": (raw("[" * 5000), "nested too deeply"),
    "grid/number.yaml": (raw("voxel_size: 1" + "0" * 5000), "more than 3000"),
    "grid/long.yaml": (raw("# \n" * 99_999), "longer than"),
    "grid/infinite.yaml": (raw(fuzzing.GRID + "max_voxels: .inf"), "convert float infinity"),
    "grid/date.yaml": (raw("2001-99-99"), "not readable YAML"),
    "config/aliases.yaml": (raw(TRAIN + aliases("") + "train: *a11"), "aliases written out"),
    "config/list.yaml": (raw(TRAIN + f"train: {list(range(9999))}"), r"got \[0, 1, 2, 3, 4, 5, "),
    "config/base.yaml": (raw(f"base: {'b' * 2000}.yaml"), "does not exist"),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    folder, by_path = tmp_path_factory.mktemp("hostile"), {}
    for name, (write, _) in HOSTILE.items():
        path = folder / name / f"a{Path(name).suffix}"
        path.parent.mkdir(parents=True)
        write(path)
        by_path[str(path)] = name
    return {by_path[path]: verdict for path, verdict in verdicts_of(by_path).items()}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_claims_too_much(name, verdicts):
    outcome, fault = verdicts[name]
    assert fault is None
    assert re.search(HOSTILE[name][1], outcome), outcome


def test_a_message_of_a_configuration_is_short():
    from torchvox.train.config import load_config, make_config

    shared, plain = "word", load_config("pointnet2_cls_shapes_small").plain()
    for _ in range(6):
        shared = [shared] * 9
    endless = {**plain, "model": {**plain["model"]}}
    endless["model"]["args"] = endless
    for wrong, reason in (
        ({**plain, "train": shared}, "more than 1000000 characters"),
        ({**plain, "train": [["word"] * 9999]}, "train must hold keys and values"),
        ({**plain, "data": {"kind": "x" * 999}}, "data.kind must be one of"),
        ({**plain, **{f"key{i}": 1 for i in range(999)}}, "unknown key key0"),
        (endless, "more than 1000000 characters"),
    ):
        with pytest.raises(WrongUseError, match=reason) as error:
            make_config(wrong)
        assert len(str(error.value)) < 2000


def test_values_of_an_import_are_bounded(tmp_path):
    from torchvox.cli.importing import _declared, _settings

    (tmp_path / "a.yaml").write_text(aliases("", "{{a: [{}], b: 1}}"))
    for read in (lambda path: _settings(path, []), _declared):
        with pytest.raises(WrongUseError, match="aliases written out"):
            read(tmp_path / "a.yaml")
    with pytest.raises(WrongUseError, match="nested too deeply"):
        _settings(None, ["a=" + "[" * 5000])
