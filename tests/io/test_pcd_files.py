# SPDX-License-Identifier: Apache-2.0
"""PCD files as PCL of all versions, PDAL, Open3D, CloudCompare and others spell them."""

import struct

import numpy as np
import pytest
from file_cases import XYZ, check

pytest.importorskip("pypcd4", reason="the extra pcd is not installed")

NAN = np.nan
HEAD = {
    "VERSION": ".7",
    "FIELDS": "x y z",
    "SIZE": "4 4 4",
    "TYPE": "F F F",
    "COUNT": "1 1 1",
    "WIDTH": "2",
    "HEIGHT": "1",
    "VIEWPOINT": "0 0 0 1 0 0 0",
    "POINTS": "2",
    "DATA": "ascii",
}
POINTS = b"1 2 3\n4 5 6\n"


def pcd(body=POINTS, begin=b"", **entries):
    head = {**HEAD, **entries}
    return begin + "".join(f"{k} {v}\n" for k, v in head.items() if v is not None).encode() + body


def four(field, values, **entries):
    """A fourth field of (name, TYPE, SIZE) beside the points, with two words."""
    name, kind, size = field
    body = b"1 2 3 %b\n4 5 6 %b\n" % tuple(value.encode() for value in values)
    more = {"FIELDS": f"x y z {name}", "SIZE": f"4 4 4 {size}", "TYPE": f"F F F {kind}"}
    return pcd(body, **more, COUNT="1 1 1 1", **entries)


def compressed(whole, promised=None):
    import lzf

    data = lzf.compress(whole)
    return struct.pack("<II", len(data), promised or len(whole)) + data


PAIRS = np.arange(128, dtype="<u2").reshape(64, 2) // 99
SAME = np.tile(np.array(XYZ[0], "<f4")[:, None], 64)
PAIR_FIELDS = {"FIELDS": "x y z h", "SIZE": "4 4 4 2", "TYPE": "F F F U", "COUNT": "1 1 1 2"}
MANY = {**PAIR_FIELDS, "WIDTH": "64", "POINTS": "64"}
ROWS = np.zeros(64, [("p", "<f4", 3), ("h", "<u2", 2)])
ROWS["p"], ROWS["h"] = SAME.T, PAIRS
PAIRED = {"xyz": SAME.T, "h": ("(2,)u2", PAIRS)}
OLD = {"FIELDS": None, "WIDTH": None, "HEIGHT": None, "COUNT": None, "DATA": None}
CASES = {
    "capitals": (pcd(FIELDS="X Y Z"), {}),
    "types in lower case": (pcd(TYPE="f f f"), {}),
    **{f"version {v}": (pcd(VERSION=v), {}) for v in ("0.7", ".6", ".5")},
    "columns": (pcd(b"COLUMNS x y z\nDATA ascii\n" + POINTS, **OLD, SIZE=None, TYPE=None), {}),
    "no POINTS": (pcd(POINTS=None), {}),
    "no WIDTH and HEIGHT": (pcd(WIDTH=None, HEIGHT=None), {}),
    "no number": (pcd(WIDTH=None, HEIGHT=None, POINTS=None), "neither POINTS nor WIDTH"),
    "no VERSION, no VIEWPOINT": (pcd(VERSION=None, VIEWPOINT=None), {}),
    "a wrong VIEWPOINT": (pcd(VIEWPOINT="here"), {}),
    "DATA in capitals": (pcd(DATA="ASCII"), {}),
    "byte-order mark": (pcd(begin=b"\xef\xbb\xbf"), {}),
    "comment in Latin-1": (pcd(begin=b"# gr\xf6\xdfe\n"), {}),
    "CRLF": (pcd().replace(b"\n", b"\r\n"), {}),
    "tabs and empty lines": (pcd(b"\n1\t2  3\n\n 4 5 6 \n\n"), {}),
    "COUNT 0": (
        pcd(FIELDS="x y z h", SIZE="4 4 4 4", TYPE="F F F F", COUNT="1 1 1 0"),
        {"problems": "h has COUNT 0"},
    ),
    "integers with a point": (four(("l", "U", 1), ("255.0", "7")), {"l": ("u1", [255, 7])}),
    "integers that are none": (
        four(("l", "U", 1), ("nan", "7")),
        {"l": ("f8", [NAN, 7]), "problems": "l is declared uint8"},
    ),
    "integers too large": (
        four(("l", "U", 1), ("300", "7")),
        {"l": ("i8", [300, 7]), "problems": "l is declared uint8"},
    ),
    "64 bits": (
        four(("t", "I", 8), ("1510593618140000001", "7")),
        {"t": ("i8", [1510593618140000001, 7])},
    ),
    "NaN of Windows": (four(("t", "F", 4), ("-nan(ind)", "1.#INF")), {"t": ("f4", [NAN, np.inf])}),
    "a field twice": (
        four(("x", "F", 4), ("8", "9")),
        {"x_2": ("f4", [8, 9]), "problems": "more than one x"},
    ),
    "packed colors": (
        four(("rgb", "U", 4), ("1056816", "65793")),
        {"red": ("u1", [16, 1]), "green": ("u1", [32, 1]), "blue": ("u1", [48, 1])},
    ),
    "packed and plain colors": (
        pcd(
            b"1 2 3 7 9\n4 5 6 8 9\n",
            FIELDS="x y z rgb red",
            SIZE="4 4 4 4 1",
            TYPE="F F F U U",
            COUNT=None,
        ),
        {"rgb": ("u4", [7, 8]), "red": ("u1", [9, 9])},
    ),
    "colors apart": (
        pcd(
            b"1 2 3 7 8 9\n4 5 6 1 2 3\n",
            FIELDS="x y z R G B",
            SIZE="4 4 4 1 1 1",
            TYPE="F F F U U U",
            COUNT=None,
        ),
        {"red": ("u1", [7, 1]), "green": ("u1", [8, 2]), "blue": ("u1", [9, 3])},
    ),
    "binary": (pcd(ROWS.tobytes() + bytes(9), **MANY, DATA="Binary"), PAIRED),
    "compressed, field by field": (
        pcd(compressed(SAME.tobytes() + PAIRS.tobytes()), **MANY, DATA="binary_compressed"),
        PAIRED,
    ),
    "compressed and damaged": (
        pcd(compressed(SAME.tobytes() + PAIRS.tobytes(), 1100), **MANY, DATA="binary_compressed"),
        "damaged",
    ),
    "unknown type": (pcd(TYPE="F F Q"), "no type Q of SIZE 4"),
    "sizes of two": (pcd(SIZE="4 4"), "are not as many"),
    "places": (pcd(WIDTH="3"), "3 x 1 places are not its 2 points"),
    "a negative number": (pcd(WIDTH="-2"), "WIDTH must be whole numbers"),
    "no z": (pcd(FIELDS="x y w"), "no x, y, z fields"),
    "unknown data": (pcd(DATA="zip"), "DATA must be ascii"),
    "no fields": (pcd(FIELDS=None), "names no FIELDS"),
    "no values": (pcd(COUNT="0 0 0"), "points of 0 values"),
    "no end": (b"FIELDS x y z\n", "header does not end"),
    "too few": (pcd(b"1 2 3.2345678\n"), "promises 2 points, it holds 1"),
    "too many": (pcd(POINTS * 2), "promises 2 points, it holds 4"),
    "a word": (pcd(b"1 2 3\n4 5 q\n"), "line 12 is not 3 numbers: 4 5 q"),
}


@pytest.mark.parametrize("case", CASES)
def test_pcd_files(tmp_path, case):
    check(tmp_path / "a.pcd", *CASES[case])
