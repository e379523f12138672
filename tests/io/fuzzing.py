# SPDX-License-Identifier: Apache-2.0
"""Files of every kind, how they are damaged, and what becomes of them in a process of their own:
`python fuzzing.py KIND/NAME/FILE...` prints a line of JSON for each: path, what the reader did, and
what is wrong with that: neither a result nor a typed error, more than 1 GiB, more than 10 s.
"""

import json
import re
import struct
import sys
import time
import traceback
from pathlib import Path

import numpy as np

MOST_KIB, MOST_SECONDS = 1 << 20, 10.0
EXTREMES = (0, 1, -1, 127, 255, 65535, 2**31 - 1, -(2**31), 2**32 - 2, 10**8, 2**40, 2**63 - 1)
TOKENS = (b"&a ", b"*a", b"[", b"{", b"- ", b"<<: *a\n", b"? ", b"!!int ", b"0x", b": ", b"\n  ")
NUMBERS = (b"99999999", b"4294967296", b"-1", b"1e999", b"nan", b"0", b"1" * 5000)
TEXTS = ("pcd-ascii", "ply-ascii", "xyz", "grid", "config", "table", "index", "poses")


def write_las(path, point_format, number=60, chunk=0):
    """A LAS or LAZ file; chunk: points in each, -1 for as many as one likes."""
    import laspy
    import lazrs
    from laspy._compression.lazrsbackend import LazrsBackend, LazrsPointWriter

    class Writer(LazrsPointWriter):
        def write_initial_header_and_vlrs(self, header, encoding_errors):
            record = bytearray(self.vlr.record_data())
            struct.pack_into("<i", record, 12, chunk)
            self.vlr = lazrs.LazVlr(bytes(record))
            super().write_initial_header_and_vlrs(header, encoding_errors)
            self.compressor = lazrs.LasZipCompressor(self.dest, self.vlr)

        def write_points(self, points):
            super().write_points(points)
            if chunk < 0:
                self.compressor.finish_current_chunk()

    class Backend(LazrsBackend):
        def create_writer(self, dest, header):
            return Writer(dest, header.point_format, parallel=False)

    rng, version = np.random.default_rng(0), "1.4" if point_format > 5 else "1.2"
    header = laspy.LasHeader(point_format=point_format, version=version)
    header.scales = [0.01] * 3
    header.add_extra_dim(laspy.ExtraBytesParams("more", "2u2"))
    file = laspy.LasData(header)
    file.X, file.Y, file.Z = rng.integers(0, 10_000, (3, number))
    file.intensity = rng.integers(0, 9, number)
    options = {"laz_backend": (Backend(),)} if chunk else {}
    with laspy.open(path, "w", header=header, do_compress=chunk != 0, **options) as writer:
        for half in (file.points[: number // 2], file.points[number // 2 :]):
            writer.write_points(half)


def write_point_wise(path):
    """A LAZ file as LASzip 1.2 wrote them: one chunk without a table."""
    write_las(path, 3, 60, 50_000)
    data = bytearray(path.read_bytes())
    start, record = struct.unpack_from("<I", data, 96)[0], data.index(b"laszip encoded") + 52
    table = struct.unpack_from("<q", data, start)[0]
    struct.pack_into("<2H2BHIi", data, record, 1, 0, 1, 2, 0, 0, -1)
    path.write_bytes(data[:start] + data[start + 8 : table])


def write_pcd(path, encoding):
    import pypcd4

    # pypcd4 leaves uncompressed what does not shrink.
    points = np.random.default_rng(0).integers(-9, 9, (50, 4)).astype(np.float32)
    pypcd4.PointCloud.from_xyzi_points(points).save(path, encoding=pypcd4.Encoding(encoding))


def write_npz(path, save):
    arrays = {"points": np.arange(80, dtype=np.float32).reshape(20, 4), "origin": np.ones(3)}
    texts = {"columns": np.array([*"xyzt"]), "unit": np.array("m")}
    save(path, **texts, junk=np.ones(9), **arrays)


def write_ply(path, format_):
    """Vertices with a list among their values, between two other elements."""
    order = {"ascii": None, "binary_little_endian": "<", "binary_big_endian": ">"}[format_]
    body = b""
    for i in range(-3, 20):
        form, values = "B2i", [2, -i, 5]  # an edge
        if i >= 0:
            form, values = f"3fH{i % 3}HB", [i, 1, 2, i % 3, *([7] * (i % 3)), i % 256]
        line = " ".join(map(str, values)).encode() + b"\n"
        body += line if order is None else struct.pack(order + form, *values)
    path.write_bytes(PLY.format(format_).encode() + body)


def write_columns(path):
    columns = {"xyz": np.ones((9, 3), np.int32), "scale": np.full(3, 0.5), "offset": np.ones(3)}
    np.savez(path, intensity=np.arange(9, dtype=np.uint16), crs=np.array("here"), **columns)


def write_h5(path, **options):
    import h5py

    with h5py.File(path, "w") as file:
        for name, width in (("data", 3), ("normal", 3)):
            values = np.arange(4 * 32 * width, dtype=np.float32).reshape(4, 32, width)
            file.create_dataset(name, data=values, **options)
        file.create_dataset("label", data=np.array([[0], [1], [2], [1]], np.uint8))


def write_map(path):
    from torchvox.mapping.contents import MapContents
    from torchvox.mapping.contents import write_map as write

    logodds = np.arange(1536, dtype=np.int16).reshape(3, 512) % 99
    layers = {"logodds": logodds, "hit_miss": np.ones((3, 512, 2), np.int32)}
    layers["sample_row"] = np.array([0, -1, 1], np.int32)
    layers["sample_count"] = np.arange(1024, dtype=np.int32).reshape(2, 512) % 5
    for name, columns in (("sample_mean", 3), ("sample_cov", 6)):
        layers[name] = np.full((2, 512, columns), 0.1, np.float32)
    model = [0.7, 0.4, 0.12, 0.97], "every_ray", "mine"
    ndt = {"ndt": [0.05, 0.2, 3.0, 0.2, 100.0]}
    write(path, MapContents(np.arange(3) * 2**40, layers, 0.1, [0.0, 0.1, 0.2], *model, **ndt))


def write_tree(path):
    """A pruned cube of 64 voxels and single ones, as OctoMap's tree."""
    from torchvox.mapping.contents import MapContents
    from torchvox.mapping.octomap import write_octomap

    logodds = np.full((1, 512), -32768, np.int16)
    logodds.reshape(8, 8, 8)[:4, :4, :4] = 70
    logodds[0, 500:] = np.arange(12) * 9 - 50
    key = np.array([2**20 << 42 | 2**20 << 21 | 2**20])
    model = [0.7, 0.4, 0.12, 0.97], "scan"
    write_octomap(path, MapContents(key, {"logodds": logodds}, 0.1, [0.0] * 3, *model))


def write_graph(path, clouds=([[1, 2, 3]] * 4, [[0, 0, 0]])):
    """Scans, all from one pose a quarter turn about z and (1, 2, 3) away, and an edge."""
    half = 0.5**0.5
    pose = struct.pack("<i3di4d", 3, 1, 2, 3, 4, half, 0, 0, half)
    body = struct.pack("<I", len(clouds))
    for number, points in enumerate(clouds):
        body += struct.pack("<I", len(points))
        body += b"".join(struct.pack("<i3d", 3, *point) for point in points)
        body += pose + struct.pack("<I", number)
    path.write_bytes(body + struct.pack("<3I", 1, 0, 1) + pose + struct.pack("<d", 1.0))


def write_text(path, text):
    path.write_text(text)


PLY = """ply
format {} 1.0
comment by hand
element edge 3
property list uchar int ends
element vertex 20
property float x
property float32 y
property float z
property list uint16 ushort more
property uchar label
element face 0
end_header
"""
GRID = "voxel_size: [0.2, 0.2, 4]\npoint_cloud_range: [-50, -50, -3, 50, 50, 1]\nmax_points: 10\n"
CONFIG = """base: pointnet2_cls_shapes_small
model: &a {kind: pointnet2_classifier, args: {}}
train: {epochs: 3, lr: 1e-3, augment: {yaw: true}}
data: {kind: shapes, points: 64, seed: 0x10}
"""
TUM = "# time x y z qx qy qz qw\n" + "1.5 1 -2 3e0 0 0 0.6 0.8\n" * 9
TABLE = "\n".join(",".join(f"{i * j / 7:.3f}" for j in range(1, 7)) for i in range(40))
WRITERS = {
    "las": (".las", lambda path: write_las(path, 3)),
    "las-7": (".las", lambda path: write_las(path, 7)),
    "laz": (".laz", lambda path: write_las(path, 3, 60, 25)),
    "laz-7": (".laz", lambda path: write_las(path, 7, 60, 25)),
    "laz-one": (".laz", lambda path: write_las(path, 7, 60, 50_000)),
    "laz-variable": (".laz", lambda path: write_las(path, 6, 60, -1)),
    "laz-variable-1": (".laz", lambda path: write_las(path, 1, 60, -1)),
    "laz-points": (".laz", write_point_wise),
    "pcd-ascii": (".pcd", lambda path: write_pcd(path, "ascii")),
    "pcd-binary": (".pcd", lambda path: write_pcd(path, "binary")),
    "pcd-compressed": (".pcd", lambda path: write_pcd(path, "binary_compressed")),
    "ply": (".ply", lambda path: write_ply(path, "binary_little_endian")),
    "ply-big": (".ply", lambda path: write_ply(path, "binary_big_endian")),
    "ply-ascii": (".ply", lambda path: write_ply(path, "ascii")),
    "xyz": (".xyz", lambda path: write_text(path, "//X Y Z red\n" + "1 2.5 -3e2 7\n" * 20)),
    "npz-columns": (".npz", write_columns),
    "npy": (".npy", lambda path: np.save(path, np.arange(80, dtype=np.float32).reshape(20, 4))),
    "npz": (".npz", lambda path: write_npz(path, np.savez_compressed)),
    "npz-stored": (".npz", lambda path: write_npz(path, np.savez)),
    "bin": (".bin", lambda path: np.arange(80, dtype=np.float32).tofile(path)),
    "grid": (".yaml", lambda path: write_text(path, GRID)),
    "config": (".yaml", lambda path: write_text(path, CONFIG)),
    "table": (".txt", lambda path: write_text(path, TABLE)),
    "map": (".npz", write_map),
    "bt": (".bt", write_tree),
    "ot": (".ot", write_tree),
    "graph": (".graph", write_graph),
    "poses": (".txt", lambda path: write_text(path, TUM)),
    "h5": (".h5", write_h5),
    "h5-gzip": (".h5", lambda path: write_h5(path, compression="gzip", chunks=(2, 32, 3))),
}


def damage(whole, rng, text):
    """The bytes with one to four changes, half of them among the first 400 or the last 100."""
    data = bytearray(whole)
    for _ in range(rng.integers(1, 5)):
        if len(data) < 9:
            break
        place = rng.integers(0, 4)
        low, high = ((0, 400), (0, 400), (len(data) - 100, len(data)), (0, len(data)))[place]
        at = int(rng.integers(max(low, 0), min(high, len(data))))
        many = int(rng.integers(1, 20))
        change = rng.integers(0, 8 if text else 6)
        if change == 0:
            data[at] ^= 1 << rng.integers(0, 8)
        elif change == 1:
            data[at : at + many] = rng.bytes(many)
        elif change == 2:
            data[at:at] = bytes(data[at : at + many]) * int(rng.integers(1, 40))
        elif change == 3:
            del data[at : at + many]
        elif change == 4 and rng.random() < 0.3:
            del data[at:]
        elif change in (4, 5):
            width = int(rng.choice([1, 2, 4, 8]))
            value = EXTREMES[rng.integers(len(EXTREMES))] % 256**width
            data[at : at + width] = value.to_bytes(width, "little")
        elif change == 6:
            data[at:at] = TOKENS[rng.integers(len(TOKENS))]
        elif found := list(re.finditer(rb"\d+", data)):
            start, end = found[rng.integers(len(found))].span()
            data[start:end] = NUMBERS[rng.integers(len(NUMBERS))]
    return bytes(data)


def read(kind, path):
    from torchvox import io

    if kind == "grid":
        io.load_grid(str(path))
    elif kind == "config":
        from torchvox.train.config import load_config

        load_config(str(path)).text()
    elif kind == "table":
        from torchvox.data.readers.stored import read_table

        read_table(path, 6, ",")
    elif kind in ("bt", "ot"):
        io.read_octomap(path, max_regions=1 << 16)
    elif kind in ("map", "graph", "poses"):
        getattr(io, f"read_{kind}")(path)
    elif kind.startswith("h5"):
        from torchvox.data.readers.modelnet import ModelNet40

        ModelNet40(path.parent, points=8, normals=True)[0]
    else:
        layout = "kitti" if kind == "bin" else None
        for chunk in io.open_points(path, layout, salvage=True).chunks(9):
            chunk.world()
        io.read_cloud(path, layout)


def peak_kib():
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])


def judge(kind, path, base):
    """(what the reader did, what is wrong with that or None)."""
    from torchvox._util.errors import TorchvoxError

    Path("/proc/self/clear_refs").write_text("5")  # restarts the peak
    begin, fault, outcome = time.process_time(), None, "read"
    try:
        read(kind, path)
    except TorchvoxError as error:
        outcome = str(error)
        if len(outcome.splitlines()) != 1 or len(outcome) > 6000:
            fault = f"message of {len(outcome)} characters: {outcome[:300]!r}"
        if isinstance(error.__cause__, MemoryError) and not kind.startswith("np"):
            fault = f"asks for too much memory: {outcome}"
    except BaseException:
        fault = traceback.format_exc()
    if time.process_time() - begin > MOST_SECONDS:
        fault = f"took {time.process_time() - begin:.0f} s"
    if peak_kib() - base > MOST_KIB:
        fault = f"took {(peak_kib() - base) >> 10} MiB"
    return outcome, fault


if __name__ == "__main__":
    from torchvox.train.config import load_config

    load_config("pointnet2_cls_shapes_small")  # what is imported is not the file's time and memory
    base = peak_kib()
    for name in sys.argv[1:]:
        path = Path(name)
        print(json.dumps([name, *judge(path.parent.parent.name, path, base)]), flush=True)
