# SPDX-License-Identifier: Apache-2.0
"""PCD files as PCL of all versions, PDAL, Open3D, CloudCompare and others spell them."""

import struct

import numpy as np
import pytest
from file_cases import check

pytest.importorskip("pypcd4", reason="the extra pcd is not installed")

HEAD = {
    **{"VERSION": ".7", "FIELDS": "x y z", "SIZE": "4 4 4", "TYPE": "F F F", "COUNT": "1 1 1"},
    **{"WIDTH": "2", "HEIGHT": "1", "VIEWPOINT": "0 0 0 1 0 0 0", "POINTS": "2", "DATA": "ascii"},
}
POINTS = b"1 2 3\n4 5 6\n"


def pcd(body=POINTS, begin=b"", **entries):
    head = {**HEAD, **entries}
    return begin + "".join(f"{k} {v}\n" for k, v in head.items() if v is not None).encode() + body


def more(names, sizes, types, first, second, counts="1 1 1 1 1 1 1"):
    """Fields beside the points, and their words of both points."""
    texts = (f"x y z {names}", f"4 4 4 {sizes}", f"F F F {types}", counts[: 5 + len(sizes) + 1])
    body = f"1 2 3 {first}\n4 5 6 {second}\n".encode()
    return pcd(body, **dict(zip(("FIELDS", "SIZE", "TYPE", "COUNT"), texts, strict=True)))


def pairs(data, body, points=64):
    """As many points (1, 2, 3) with a field h of two values."""
    fields = {"FIELDS": "x y z h", "SIZE": "4 4 4 2", "TYPE": "F F F U", "COUNT": "1 1 1 2"}
    return pcd(body, **fields, WIDTH=points, POINTS=points, DATA=data)


def compressed(whole, promised=None):
    data = pytest.importorskip("lzf").compress(whole)
    return struct.pack("<II", len(data), promised or len(whole)) + data


ROWS = np.zeros(64, [("p", "<f4", 3), ("h", "<u2", 2)])
ROWS["p"], ROWS["h"] = [1, 2, 3], np.arange(128).reshape(64, 2) // 99
PAIRS = f"xyz f8 {'1 2 3 ' * 64}; h u2 {' '.join(map(str, ROWS['h'].ravel()))}"
FIELDS = ROWS["p"].T.tobytes() + ROWS["h"].tobytes()
OLD = dict.fromkeys(("FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "DATA"))
CASES = [
    (pcd(FIELDS="X Y Z", TYPE="f f f", POINTS=None).replace(b"\n", b"\r\n"), ""),
    (pcd(b"COLUMNS x y z\nDATA ascii\n" + POINTS, **OLD), ""),
    (pcd(b"\n1\t2  3\n\n 4 5 6 \n\n", WIDTH=None, HEIGHT=None), ""),
    (pcd(WIDTH=None, HEIGHT=None, POINTS=None), "! neither POINTS nor WIDTH"),
    (pcd(VERSION=None, VIEWPOINT="here", COUNT=None), ""),
    (pcd(begin=b"\xef\xbb\xbf# gr\xf6\xdfe\n", DATA="ASCII"), ""),
    (more("h", "4", "F", "", "", "1 1 1 0"), "| fields h have COUNT 0"),
    (more("l", "1", "U", "255.0", "7"), "l u1 255 7"),
    (more("l", "1", "U", "300", "7"), "l i8 300 7 | l .int64 in place of uint8"),
    (more("t", "8", "I", "1510593618140000001", "7"), "t i8 1510593618140000001 7"),
    (more("t", "4", "F", "-nan(ind)", "1.#INF"), "t f4 nan inf"),
    (more("x", "4", "F", "8", "9"), "x_2 f4 8 9 | x_2"),
    (more("rgb", "4", "U", "1056816", "65793"), "red u1 16 1; green u1 32 1; blue u1 48 1"),
    (more("rgb", "4", "F", "nan", "0"), "red u1 192 0; green u1 0 0; blue u1 0 0 | rgb is NaN"),
    (more("rgb red", "4 1", "U U", "7 9", "8 9"), "rgb u4 7 8; red u1 9 9"),
    (more("R G B", "1 1 1", "U U U", "7 8 9", "1 2 3"), "red u1 7 1; green u1 8 2; blue u1 9 3"),
    (pairs("Binary", ROWS.tobytes() + bytes(9)), PAIRS),
    (pairs("binary_compressed", compressed(FIELDS)), PAIRS),
    (pairs("binary_compressed", compressed(FIELDS, 1100)), "! damaged"),
    (pcd(TYPE="F F Q"), "! no type Q of SIZE 4"),
    (pcd(SIZE="4 4"), "! have different lengths"),
    (pcd(WIDTH="3"), "! is 3, but POINTS is 2"),
    (pcd(WIDTH="-2"), "! WIDTH must be whole numbers"),
    (pcd(FIELDS="x y w"), "! no x, y, z fields"),
    (pcd(DATA="zip"), "! DATA must be ascii"),
    (pcd(FIELDS=None), "! has no FIELDS"),
    (pcd(COUNT="0 0 0"), "! points of 0 values"),
    (b"FIELDS x y z\n", "! header does not end"),
    (pcd(b"1 2 3.2345678\n"), "! promises 2 points, it holds 1"),
    (pcd(POINTS * 2), "! promises 2 points, it holds 4"),
    (pcd(b"1 2 3\n4 5 q\n"), "! line 12 is not 3 numbers: 4 5 q"),
]


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_pcd_files(tmp_path, data, expected):
    check(tmp_path / "a.pcd", data, expected)
