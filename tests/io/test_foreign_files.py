# SPDX-License-Identifier: Apache-2.0
"""Text, PLY and PCD files of other programs: MeshLab, CloudCompare, PDAL, PCL, Open3D, pandas,
spreadsheets, scripts; and what is written in text."""

import re
import struct

import numpy as np
import pytest
from helpers import read_points as read
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from torchvox._util.errors import CloudFileError, TorchvoxError, WrongUseError
from torchvox.io import PointTable, create_points, open_points
from torchvox.io.roles import with_colors


def check(path, data, expected, layout=None):
    """expected: "! words of the refusal", or "name type values; .. | words of the one problem" of
    the columns besides the points 1 2 3 and 4 5 6 (`xyz f8 ..`: other points)."""
    path.write_bytes(data)
    if expected.startswith("!"):
        with pytest.raises(TorchvoxError, match=expected[2:]) as error:
            open_points(path, layout)
        assert "\n" not in str(error.value)
        return
    columns, mark, words = expected.partition("|")
    problems = open_points(path, layout).problems
    assert len(problems) == len(mark) and re.search(words.strip(), " ".join(problems)), problems
    parts = [part.split() for part in columns.split(";") if part.strip()]
    lists = {"xyz": ["f8", *"123456"], **{name.replace("#", " "): words for name, *words in parts}}
    table = read(path, layout)
    assert ["xyz", *table.attributes] == list(lists)
    for name, (type_, *values) in lists.items():
        got = table.world() if name == "xyz" else table.attributes[name]
        assert got.dtype == type_, name
        number = int if got.dtype.kind in "iu" else float
        np.testing.assert_array_equal(got.ravel(), np.array([*map(number, values)], type_))


RGB = "red u2 255 1; green u2 0 2; blue u2 7 3"
FRACTIONS = "red u2 255 255; green u2 0 0; blue u2 128 128"
ODD = "xyz f8 1 nan 3 4 5 nan"
BIG = 1510593618140000001
TEXT = [
    ("a.txt", "//X Y Z Red\n1\t2  3 4\n\n4 5 6 7\n", "red u2 4 7"),
    ("a.csv", "X,y,Z,Dev,_\n1,2,3,4,0\n4,5,6,7,0", "Dev i8 4 7; _ i8 0 0"),
    ("a.csv", "time,TIME,x,y,z\n7,8,1,2,3\n7,8,4,5,6\n", "time i8 7 7; TIME i8 8 8"),
    ("a.pts", "2\n1 2 3 9\n4 5 6 8\n", "intensity i8 9 8"),
    ("a.pts", "1 2 3 255 0 7\n4 5 6 1 2 3\n", RGB),
    ("a.pts", "1 2 3 -9 255 0 7\n4 5 6 8 1 2 3\n", f"intensity i8 -9 8; {RGB}"),
    ("a.csv", "x,y,z,t\n", "xyz f8; t f8"),
    ("a.pts", "0\n", "xyz f8"),
    # whole numbers
    ("a.csv", f"t,x,y,z\n{BIG},1,2,3\n-7,4,5,6\n", f"t i8 {BIG} -7"),
    ("a.csv", f"x,y,z,t\n1,2,3,{2**64 - 1}\n4,5,6,0\n", f"t u8 {2**64 - 1} 0"),
    ("a.csv", "x,y,z,t\n1,2,3,7.0\n4,5,6,0\n", "t f8 7 0"),
    ("a.csv", f"x,y,z,id\n1,2,3,{2**64}\n", f"! column id.* {2**64}"),
    ("a.csv", f"x,y,z,id\n1,2,3,{'1' * 5000}\n", "! column id.* 1111"),
    ("a.csv", f"x,y,z,id\n1,2,3,{2**63}\n4,5,6,-1\n", f"! column id.* {2**63}"),
    ("a.csv", f"x,y,z,id\n1,2,3,{BIG}\n4,5,6,\n", f"! column id.* {BIG}"),
    ("a.csv", f"x,y,z,id\n1,2,3,0.5\n4,5,6,{2**53 + 1}\n", f"! column id.* {2**53 + 1}"),
    # colors
    ("a.txt", "//X Y Z R G B\n1 2 3 255 0 7\n4 5 6 1 2 3\n", RGB),
    ("a.csv", "x,y,z,Red,Green,Blue\n1,2,3,255.0,0,7.0\n4,5,6,1,2,3\n", RGB),
    ("a.csv", "x,y,z,r,g,b\n1,2,3,.5,1,0\n4,5,6,1,1,0\n", "red f8 .5 1; green i8 1 1; blue i8 0 0"),
    ("a.txt", "//X Y Z Rf Gf Bf\n1 2 3 1 0 0.5\n4 5 6 1 0 0.5\n", f"{FRACTIONS} | from 0 to 1"),
    # comments and counts
    ("a.txt", "# one\n# x y z, of a mine\n1 2 3\n# here\n// there\n4 5 6\n", ""),
    ("a.txt", "# made today\n# x, y, z, t\n# units: m\n1 2 3 4\n4 5 6 7\n", "t i8 4 7"),
    ("a.txt", "//X Y Z t\n2\n1 2 3 4\n4 5 6 7\n", "t i8 4 7"),
    ("a.xyz", "3\n1 2 3\n4 5 6\n", "! promises 3 points but holds 2"),
    # spreadsheets, pandas, R
    ("a.csv", '"x","y","z","t"\n"1","2","3","4"\n"4","5","6","7"\n', "t i8 4 7"),
    ("a.csv", "x,y,z,t,\n1,2,3,4,\n4,5,6,7,\n", "t i8 4 7"),
    ("a.csv", "1,2,3,\n4,5,6,\n", ""),
    ("a.csv", "sep=;\nx;y;z\n1;2;3;\n4;5;6;\n", ""),
    ("a.csv", 'x;y;z;t\n1,0;2,0;3,0;"0,5"\n4;5;6;1,25\n', "t f8 0.5 1.25"),
    ("a.txt", "x\ty\tz\tGPS Time\n1,0\t2\t3,0\t\n4\t5\t6\t1,5\n", "GPS#Time f8 nan 1.5"),
    ("a.csv", ",x,y,z,t\n0,1,2,3,4\n1,4,5,6,7\n", "t i8 4 7 | column 1 has no name"),
    ("a.txt", " x y z t\n0 1 2 3 4\n1 4 5 6 7\n", "t i8 4 7 | column 1 has no name"),
    ("a.txt", '"x" "y" "z"\n"1" 1 2 3\n"2" 4 5 6\n', "| column 1 has no name"),
    ("a.csv", "x,y,z,t,u\n1,2,3,,\n4,5,6,7,NA\n", "t f8 nan 7; u f8 nan nan"),
    ("a.csv", "t,x,y,z\n#N/A,1,2,3\n#DIV/0!,4,5,6\n", "t f8 nan nan"),
    ("a.csv", "x,y,z,t,t\n1,2,3,4,5\n4,5,6,7,8\n", "t i8 4 7; t_2 i8 5 8 | t_2"),
    ("a.csv", "0,1,2\n4,5,6\n", "xyz f8 0 1 2 4 5 6 | 0,1,2, is read as a point"),
    # codes and line ends
    ("a.csv", "\ufeffx,y,z\r\n1,2,3\r\n4,5,6\r\n", ""),
    ("a.csv", b"x,y,z,H\xf6he\r1,2,3,4\r4,5,6,7", "Höhe i8 4 7"),
    ("a.csv", "x,y,z\n1,2,3\n4,5,6\n".encode("utf-16"), ""),
    # NaN and infinity
    ("a.txt", "x y z t\n1 1.#R 3 1.#INF00\n4 5 -nan(ind) -1.#inf\n", f"{ODD}; t f8 inf -inf"),
    ("a.txt", "x y z t\n1 -1.#IND 3 nan(SNAN)\n4 5 1.#QNAN +5e-1\n", f"{ODD}; t f8 nan 0.5"),
    # what is refused
    ("a.csv", "1,2,3\n1,2\n", "! line 2 is not 3 numbers: 1,2"),
    ("a.xyz", "# c\n1 2 3\n\n1 2 x\n", "! line 4 is not 3 numbers"),
    ("a.xyz", "1 2 x\n1 2 3\n", "! line 1 is not only numbers"),
    ("a.csv", "name,x,y,z\ncar,1,2,3\n7,4,5,6\n", "! line 2 is not only numbers: car"),
    ("a.csv", "x,y,z\n1_0,2,3\n", "! line 2 is not only numbers"),
    ("a.csv", "x,y,z\n1,2,3\n1_0,2,3\n", "! line 3 is not 3 numbers"),
    ("a.csv", 'x,y,z,t\n1,2,3,"1,234"\n', "! line 2 is not only numbers"),
    ("a.xyz", "1 2 3 4\n", "! does not name its 4 columns: add --layout"),
    ("a.csv", "x,y,z\n1,2,3,4\n", "! 4 columns, but 3 are named"),
    ("a.csv", "x,y,w\n1,2,3\n", "! x,y,w do not name x, y, z"),
    ("a.xyz", "# none\n", "! not a text file"),
    ("a.xyz", b"PK\0\0", "! not a text file"),
]

FLOATS = ("float x", "float y", "float z")
EDGES = ("element edge 1", "property int a", "property int b")
FACES = ("element face 1", "property list uchar int vertex_indices")
CHARS = ("list char char n", "char l")
RGB8 = "red u1 7 1; green u1 8 2; blue u1 9 3"
LINES = struct.pack("<9f", *range(1, 10))
LIST = struct.pack("<3f3B3fbB", 1, 2, 3, 1, 9, 5, 4, 5, 6, -1, 6)


def ply(
    body="1 2 3\n4 5 6\n", *more, xyz=FLOATS, element="vertex 2", form="ascii", head=(), tail=()
):
    names = [f"property {name}" for name in (*xyz, *more)]
    lines = ["ply", f"format {form} 1.0", *head, f"element {element}", *names, *tail, "end_header"]
    body = body if isinstance(body, bytes) else body.encode()
    return "".join(f"{line}\n" for line in lines).encode("latin-1") + body


PLY = [
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
    (ply("1 2 3 7 8 9\n4 5 6 1 2 3\n", "uchar r", "uchar g", "uchar b"), RGB8),
    (ply("1 2 3 7 8 9\n4 5 6 1 2 3", *(f"uchar diffuse_{c}" for c in RGB8.split()[::4])), RGB8),
    (ply("1 2 3 1 9 5\n4 5 6 -1 6\n", *CHARS), "l i1 5 6 | list n is ignored"),
    (ply(LIST, *CHARS, form="binary_little_endian"), "l i1 5 6 | list n is ignored"),
    (ply("", "thing l"), "! property l has the unknown type thing"),
    (ply("", "list float int l"), "! must be whole"),
    (ply(xyz=("float x", "float y", "float w")), "! no x, y, z"),
    (ply(element="line 2"), "! no element vertex"),
    (ply(form="utf8"), "! has no known format"),
    (ply(head=("elements 3",)), "! has the line 'elements 3'"),
]

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
PCD = [
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
    (more("R G B", "1 1 1", "U U U", "7 8 9", "1 2 3"), RGB8),
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


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [*TEXT, *(("a.ply", *case) for case in PLY), *(("a.pcd", *case) for case in PCD)],
)
def test_files_of_other_programs(tmp_path, name, data, expected):
    if name == "a.pcd":
        pytest.importorskip("pypcd4", reason="the extra pcd is not installed")
    check(tmp_path / name, data if isinstance(data, bytes) else data.encode(), expected)


def test_a_layout_skips_columns_and_no_points(tmp_path):
    check(tmp_path / "a.csv", b"1,2,3,0,9\n4,5,6,,8\n", "ring i8 9 8", "x,y,z,_,ring")
    check(tmp_path / "a.csv", b"a,1,2,3\nb,4,5,6\n", "! line 1 is not only numbers", "_,x,y,z")


@pytest.mark.parametrize(
    ("at", "odd", "expected"),
    [
        (19_000, "7,1,2,3,7.5,5", "i8 7; f8 7.5; i8 5"),
        (19_000, f"7,1,2,3,4,{2**63}", f"i8 7; i8 4; u8 {2**63}"),
        (19_000, f"7,1,2,3,{2**53 + 1},.5", f"i8 7; i8 {2**53 + 1}; f8 0.5"),
        (100, "# comment\n7,1,2,3,,5", "i8 7; f8 nan; i8 5"),
        (19_000, "7,1,2,3,x,5", "! line 19002 is not 6 numbers"),
        (19_000, f"7,1,2,3,0.5,{2**64}", f"! column c.* {2**64}"),
    ],
)
def test_an_odd_line_far_down(tmp_path, at, odd, expected):
    lines = ["a,x,y,z,b,c", *["7,1,2,3,4,5"] * 20_000]
    lines.insert(at + 1, odd)
    (tmp_path / "a.csv").write_text("\n".join(lines))
    if expected.startswith("!"):
        with pytest.raises(CloudFileError, match=expected[2:]):
            read(tmp_path / "a.csv")
        return
    table = read(tmp_path / "a.csv")
    columns = [f"{a.dtype.str[1:]} {a[at]}" for a in table.attributes.values()]
    assert "; ".join(columns) == expected and len(table) == 20_001


VALUES = st.sampled_from(["u1", "i4", "u8", "i8", "f4", "f8"]).flatmap(lambda kind: arrays(kind, 2))
MARKS = st.sampled_from("aRx_ ,;:\"'#/%\n\t\u2028é.1")
NAMES = st.text(MARKS, min_size=1, max_size=4) | st.text(max_size=3)


@pytest.mark.parametrize("suffix", [".csv", ".txt", ".xyz", ".ply", ".pcd"])
@given(st.dictionaries(NAMES.filter(lambda name: name not in ("x", "y", "z")), VALUES, max_size=3))
def test_what_is_written_reads_back_or_is_refused(tmp_path_factory, suffix, attributes):
    if suffix == ".pcd":
        pytest.importorskip("pypcd4", reason="the extra pcd is not installed")
    path = tmp_path_factory.mktemp("a") / f"a{suffix}"
    source = PointTable(np.array([[0.1, -0.0, 1e300], [1 / 3, 5, -7]]), attributes)
    try:
        with create_points(path, source) as writer:
            writer.append(source)
    except WrongUseError:
        return
    back = read(path)
    np.testing.assert_array_equal(back.xyz, source.xyz)
    expected, _ = with_colors(attributes)
    assert [name.lower() for name in back.attributes] == [name.lower() for name in expected]
    for values, again in zip(expected.values(), back.attributes.values(), strict=True):
        np.testing.assert_array_equal(again.astype(values.dtype), values)


def test_digits_of_float32_text(tmp_path):
    few = np.array([1.00000012, 16777217.0, 8.5899346e9], np.float32)  # 8 digits do not do
    bits = np.frombuffer(np.random.default_rng(0).bytes(4000), np.float32)
    values = np.concatenate([few, bits[np.isfinite(bits)]])
    source = PointTable(np.zeros((len(values), 3)), {"a": values})
    with create_points(tmp_path / "a.csv", source) as writer:
        writer.append(source)
    np.testing.assert_array_equal(read(tmp_path / "a.csv").attributes["a"].astype("f4"), values)


@pytest.mark.parametrize("suffix", [".csv", ".txt", ".xyz", ".pts", ".ply"])
def test_no_points_read_back(tmp_path, suffix):
    with create_points(tmp_path / f"a{suffix}", PointTable(np.zeros((0, 3)))):
        pass
    assert len(read(tmp_path / f"a{suffix}")) == 0
