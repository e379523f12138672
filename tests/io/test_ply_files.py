# SPDX-License-Identifier: Apache-2.0
"""PLY files as MeshLab, CloudCompare, PDAL, Open3D and scripts spell them."""

import struct

import pytest
from file_cases import check

XYZ = ("float x", "float y", "float z")
EDGES = ("element edge 1", "property int a", "property int b")
FACES = ("element face 1", "property list uchar int vertex_indices")
CHARS = ("list char char n", "char l")
RGB = "red u1 7 1; green u1 8 2; blue u1 9 3"
LINES = struct.pack("<9f", *range(1, 10))
LIST = struct.pack("<3f3B3fbB", 1, 2, 3, 1, 9, 5, 4, 5, 6, -1, 6)


def ply(body="1 2 3\n4 5 6\n", *more, xyz=XYZ, element="vertex 2", form="ascii", head=(), tail=()):
    names = [f"property {name}" for name in (*xyz, *more)]
    lines = ["ply", f"format {form} 1.0", *head, f"element {element}", *names, *tail, "end_header"]
    body = body if isinstance(body, bytes) else body.encode()
    return "".join(f"{line}\n" for line in lines).encode("latin-1") + body


CASES = [
    (ply(xyz=("Float X", "FLOAT32 Y", "Double Z"), head=("comment\tby hand", "obj_info\tno")), ""),
    (b"\xef\xbb\xbf" + ply(element="Vertices 2").replace(b"\n", b"\r\n"), ""),
    (ply("1 2 3 255.0\n4 5 6 7\n", "uchar l"), "l u1 255 7"),
    (ply("1 2 3 nan\n4 5 6 7\n", "uchar l"), "l f8 nan 7 | l .float64 in place of uint8"),
    (ply("1 2 3 -nan(ind)\n4 5 6 -1.#INF\n", "float t"), "t f4 nan -inf"),
    (ply("1 2\n3 4\n5 6\n"), ""),
    (ply("1 2 3 4 5 6\n3 0 1 1\n", tail=FACES), "| 1 face"),
    (ply("1 2 3\n4 5 6 7\n3 0 1 1\n", "float t", tail=FACES), "! line 11 is not 4 numbers: 1 2 3"),
    (ply("1 2 3\n4 5 6 7\n"), "! line 9 is not 3 numbers: 4 5 6 7"),
    (ply("8 9\n1 2 3\n4 5 6\n", head=EDGES), "| 1 edge"),
    (ply("1 2 3\n4 5 6\n7 8 9\n"), "| bytes follow"),
    (ply(LINES, form="binary_little_endian"), "| bytes follow"),
    (ply("1 2 3\n4 5 x\n"), "! line 9 is not 3 numbers: 4 5 x"),
    (ply("1 2 3.2345678\n"), "! cut short"),
    (ply("1 2 3 4\n4 5 6 7\n", "int gr\xf6\xdfe"), "größe i4 4 7"),
    (ply("1 2 3 4 5\n4 5 6 7 8\n", "int t", "int t"), "t i4 4 7; t_2 i4 5 8 | t_2"),
    (ply("1 2 3 7 8 9\n4 5 6 1 2 3\n", "uchar r", "uchar g", "uchar b"), RGB),
    (ply("1 2 3 7 8 9\n4 5 6 1 2 3", *(f"uchar diffuse_{c}" for c in RGB.split()[::4])), RGB),
    (ply("1 2 3 1 9 5\n4 5 6 -1 6\n", *CHARS), "l i1 5 6 | list n is ignored"),
    (ply(LIST, *CHARS, form="binary_little_endian"), "l i1 5 6 | list n is ignored"),
    (ply("", "thing l"), "! property l has the unknown type thing"),
    (ply("", "list float int l"), "! must be whole"),
    (ply(xyz=("float x", "float y", "float w")), "! no x, y, z"),
    (ply(element="line 2"), "! no element vertex"),
    (ply(form="utf8"), "! has no known format"),
    (ply(head=("elements 3",)), "! has the line 'elements 3'"),
]


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_ply_files(tmp_path, data, expected):
    check(tmp_path / "a.ply", data, expected)
