# SPDX-License-Identifier: Apache-2.0
"""PLY files as MeshLab, CloudCompare, PDAL, Open3D and scripts spell them."""

import struct

import numpy as np
import pytest
from file_cases import XYZ, check

NAN = np.nan
XYZ_LINES = ("float x", "float y", "float z")
COLORS = {"red": ("u1", [7, 1]), "green": ("u1", [8, 2]), "blue": ("u1", [9, 3])}


def ply(
    body="1 2 3\n4 5 6\n", *more, xyz=XYZ_LINES, element="vertex 2", form="ascii", head="", tail=""
):
    lines = [f"property {name}" for name in (*xyz, *more)]
    lines = [
        "ply",
        f"format {form} 1.0",
        *head.splitlines(),
        f"element {element}",
        *lines,
        *tail.splitlines(),
        "end_header",
    ]
    body = body if isinstance(body, bytes) else body.encode()
    return "".join(f"{line}\n" for line in lines).encode("latin-1") + body


EDGES = "element edge 1\nproperty int a\nproperty int b"
FACES = "element face 1\nproperty list uchar int vertex_indices"
LIST = struct.pack("<3f", *XYZ[0]) + b"\x01\x09\x05" + struct.pack("<3f", *XYZ[1]) + b"\xff\x06"
CASES = {
    "capitals": (ply(xyz=("float X", "double Y", "float Z")), {}),
    "types in capitals": (ply(xyz=("Float x", "FLOAT32 y", "Double z")), {}),
    "comment and a tab": (ply(head="comment\tby hand\nobj_info\tnone\ncomment"), {}),
    "CRLF": (ply().replace(b"\n", b"\r\n"), {}),
    "byte-order mark": (b"\xef\xbb\xbf" + ply(), {}),
    "vertices": (ply(element="Vertices 2"), {}),
    "integers with a point": (ply("1 2 3 255.0\n4 5 6 7\n", "uchar l"), {"l": ("u1", [255, 7])}),
    "integers that are none": (
        ply("1 2 3 nan\n4 5 6 7\n", "uchar l"),
        {"l": ("f8", [NAN, 7]), "problems": "l is declared uint8"},
    ),
    "fractions of integers": (
        ply("1 2 3 0.5\n4 5 6 7\n", "uchar l"),
        {"l": ("f8", [0.5, 7]), "problems": "l is declared uint8"},
    ),
    "NaN of Windows": (
        ply("1 2 3 -nan(ind)\n4 5 6 -1.#INF\n", "float t"),
        {"t": ("f4", [NAN, -np.inf])},
    ),
    "a vertex on two lines": (ply("1 2\n3\n4 5\n6\n"), {}),
    "two vertices on a line": (ply("1 2 3 4 5 6\n"), {}),
    "two vertices, then faces": (ply("1 2 3 4 5 6\n3 0 1 1\n", tail=FACES), {"problems": "1 face"}),
    "a value short, then faces": (
        ply("1 2 3\n4 5 6 7\n3 0 1 1\n", "float t", tail=FACES),
        "line 11 is not 4 numbers: 1 2 3",
    ),
    "a value too many": (ply("1 2 3\n4 5 6 7\n"), "line 9 is not 3 numbers: 4 5 6 7"),
    "edges first, on the line of a vertex": (
        ply("8 9 1 2 3\n4 5 6\n", head=EDGES),
        {"problems": "1 edge"},
    ),
    "cut short": (ply("1 2 3\n4 5.2\n"), "line 9 is not 3 numbers|cut short"),
    "a word": (ply("1 2 3\n4 5 x\n"), "line 9 is not 3 numbers: 4 5 x"),
    "a name in Latin-1": (ply("1 2 3 4\n4 5 6 7\n", "int gr\xf6\xdfe"), {"größe": ("i4", [4, 7])}),
    "a name twice": (
        ply("1 2 3 4 5\n4 5 6 7 8\n", "int t", "int t"),
        {"t": ("i4", [4, 7]), "t_2": ("i4", [5, 8]), "problems": "more than one t"},
    ),
    "colors": (ply("1 2 3 7 8 9\n4 5 6 1 2 3\n", "uchar r", "uchar g", "uchar b"), COLORS),
    "colors of MeshLab": (
        ply("1 2 3 7 8 9\n4 5 6 1 2 3", *(f"uchar diffuse_{c}" for c in ("red", "green", "blue"))),
        COLORS,
    ),
    "a list count below 0": (
        ply("1 2 3 1 9 5\n4 5 6 -1 6\n", "list char char n", "char l"),
        {"l": ("i1", [5, 6]), "problems": "its list n is left out"},
    ),
    "a list count below 0, binary": (
        ply(LIST, "list char char n", "char l", form="binary_little_endian"),
        {"l": ("i1", [5, 6]), "problems": "its list n is left out"},
    ),
    "unknown type": (ply("", "thing l"), "property l has the unknown type thing"),
    "a count of fractions": (ply("", "list float int l"), "must be whole"),
    "no z": (ply(xyz=("float x", "float y", "float w")), "no x, y, z"),
    "no vertices": (ply(element="line 2"), "no element vertex"),
    "unknown form": (ply(form="utf8"), "names no known format"),
    "an unknown line": (ply(head="elements 3"), "has the line 'elements 3'"),
}


@pytest.mark.parametrize("case", CASES)
def test_ply_files(tmp_path, case):
    check(tmp_path / "a.ply", *CASES[case])
