# SPDX-License-Identifier: Apache-2.0
"""OctoMap's trees and graphs, held against a writer and a reader that walk them node by node."""

import itertools
import math
import random
import re
import struct

import fuzzing
import numpy as np
import pytest
from helpers import DATA
from hypothesis import given
from hypothesis import strategies as st

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.io import MapContents, read_graph, read_octomap, write_octomap

SENSOR = [0.7, 0.4, 0.1192029, 0.971]
HEAD = "# Octomap OcTree {}file\n# by hand\nid {}\nsize {}\nres {}\ndata\n"
AXES, CELL = np.array([0, 21, 42]), np.array([0, 3, 6])  # bits of a region's key, of a voxel in it
PATHS = st.lists(st.integers(0, 7), min_size=12, max_size=16).map(tuple)
LEAVES = st.dictionaries(PATHS, st.sampled_from([-2048, -7, 0, 3595]), max_size=30)


def node_of(leaves):
    """The tree of {path of child numbers: units}; of leaves above one another the lower counts."""
    if any(leaves):
        below = [{p[1:]: v for p, v in leaves.items() if p[:1] == (i,)} for i in range(8)]
        return [node_of(each) if each else None for each in below]
    return leaves[()]


def count_of(node):
    return 1 + sum(count_of(c) for c in node if c is not None) if isinstance(node, list) else 1


def largest(node):
    return max(largest(c) for c in node if c is not None) if isinstance(node, list) else node


def packed(node, binary, color=b""):
    """The bytes of a node and all below it."""
    children = node if isinstance(node, list) else [None] * 8
    if binary:
        kinds = [3 if isinstance(c, list) else 0 if c is None else 1 + (c >= 0) for c in children]
        own = struct.pack("<H", sum(kind << 2 * i for i, kind in enumerate(kinds)))
        below = [c for c in children if isinstance(c, list)]
    else:
        mask = sum(1 << i for i, c in enumerate(children) if c is not None)
        own = struct.pack("<f", largest(node) / 1024) + color + bytes([mask])
        below = [c for c in children if c is not None]
    return own + b"".join(packed(c, binary, color) for c in below)


def write_tree(path, node, res="0.1", name="OcTree", body=None):
    binary = path.suffix == ".bt"
    size = 0 if node is None else count_of(node)
    if body is None:
        body = packed(node, binary, b"\1\2\3" if name[0] == "C" else b"") if size else b""
    path.write_bytes(HEAD.format("binary " * binary, name, size, res).encode() + body)


def unpacked(data, binary):
    """The tree of a file's body; of a .bt one with 0 and -1 for its labels."""
    data = iter(data)

    def node():
        if binary:
            kinds = next(data) | next(data) << 8
            kinds = [kinds >> 2 * i & 3 for i in range(8)]
            return [node() if kind == 3 else (None, -1, 0)[kind] for kind in kinds]
        value = round(struct.unpack("<f", bytes(next(data) for _ in range(4)))[0] * 1024)
        mask = next(data)
        children = [node() if mask >> i & 1 else None for i in range(8)]
        assert not mask or value == largest(children)
        return children if mask else value

    made = node()
    assert not list(data)
    return made


def voxels_of(node, corner=(-32768,) * 3, edge=65536):
    """{(x, y, z): units} of a tree."""
    if not isinstance(node, list):
        cells = [range(low, low + edge) for low in corner]
        return {(x, y, z): node for x in cells[0] for y in cells[1] for z in cells[2]}
    found, half = {}, edge // 2
    for i, child in enumerate(node):
        if child is not None:
            at = tuple(low + half * (i >> axis & 1) for axis, low in enumerate(corner))
            found |= voxels_of(child, at, half)
    return found


def voxels_in(contents):
    logodds = contents.layers["logodds"]
    row, cell = np.nonzero(logodds != -32768)
    places = ((contents.keys[row, None] >> AXES) % 2**21 - 2**20) * 8 + (cell[:, None] >> CELL) % 8
    return dict(zip(map(tuple, places.tolist()), logodds[row, cell].tolist(), strict=True))


def map_of(voxels, voxel_size=0.1, origin=(0.0, 0.0, 0.0)):
    places = np.array([*voxels]).reshape(-1, 3)
    keys, row = np.unique(((places // 8 + 2**20) << AXES).sum(axis=1), return_inverse=True)
    logodds = np.full((len(keys), 512), -32768, np.int16)
    logodds[row, (places % 8 << CELL).sum(axis=1)] = [*voxels.values()]
    return MapContents(keys, {"logodds": logodds}, voxel_size, [*origin], SENSOR, "scan")


def signs(voxels, threshold=0):
    """The voxels as a file of labels has them."""
    return {cell: 3595 if units >= threshold else -2048 for cell, units in voxels.items()}


def scene(seed=0, edge=20):
    """Voxels with equal blocks, holes and both signs, around the origin."""
    rng = random.Random(seed)
    blocks = {place: rng.choice([-9, 5, 7, None]) for place in itertools.product((0, 1), repeat=3)}
    cells = itertools.product(range(edge), repeat=3)
    found = {(x - 8, y - 8, z - 8): blocks[x // 16, y // 16, z // 16] for x, y, z in cells}
    found |= {cell: rng.randint(-2048, 3595) for cell in rng.sample(sorted(found), 50)}
    return {cell: units for cell, units in found.items() if units is not None}


@pytest.mark.parametrize("suffix", [".ot", ".bt"])
@given(leaves=LEAVES)
def test_a_tree_is_read_as_it_stands(suffix, leaves, tmp_path):
    node, path = (node_of(leaves) if leaves else None), tmp_path / f"a{suffix}"
    write_tree(path, node, res="0.30000000000000004")
    expected = voxels_of(node) if leaves else {}
    found = read_octomap(path)
    assert voxels_in(found) == (signs(expected) if suffix == ".bt" else expected)
    assert found.voxel_size == 0.1 + 0.2
    assert [found.sensor, found.rule, found.preset] == [SENSOR, "scan", "octomap"]


def test_log_odds_are_rounded_from_zero_and_clipped(tmp_path):
    pairs = {0.5: 1, -0.5: -1, 1.5: 2, 2.5: 3, -2.5: -3, 40960.0: 32767, -40960.0: -32767}
    node = node_of({(*[0] * 15, i): units for i, units in enumerate(pairs)})
    write_tree(tmp_path / "a.ot", node)
    expected = {cell: pairs[units] for cell, units in voxels_of(node).items()}
    assert voxels_in(read_octomap(tmp_path / "a.ot")) == expected


@pytest.mark.parametrize("threshold", [0.0, 6.5 / 1024])
@pytest.mark.parametrize("suffix", [".ot", ".bt"])
def test_trees_are_written_pruned_and_read_back(suffix, threshold, tmp_path):
    path = tmp_path / f"a{suffix}"
    cells = scene() | {(-32768, 32767, 0): 5, (32767, -32768, -1): -9}
    write_octomap(path, map_of(cells, 0.1 + 1e-16), threshold)
    head, _, body = path.read_bytes().partition(b"data\n")
    size, res = re.search(rb"size (\d+)\nres (\S+)\n$", head).groups()
    node = unpacked(body, suffix == ".bt")
    assert int(size) == count_of(node) and float(res) == 0.1 + 1e-16 != 0.1
    binary = signs(cells, threshold * 1024)
    written = {cell: 0 if units > 0 else -1 for cell, units in binary.items()}
    assert voxels_of(node) == (written if suffix == ".bt" else cells)

    def pruned(node):
        if not isinstance(node, list):
            return True
        equal = not isinstance(node[0], list) and node.count(node[0]) == 8
        return not equal and all(map(pruned, node))

    assert pruned(node)
    assert voxels_in(read_octomap(path)) == (binary if suffix == ".bt" else cells)


def test_a_map_moves_by_whole_voxels_and_none_else(tmp_path):
    cells, path = scene(1), tmp_path / "a.ot"
    write_octomap(path, map_of(cells, 0.1, (0.3, 1e-8, -1.7)))
    moved = {(x + 3, y, z - 17): units for (x, y, z), units in cells.items()}
    assert voxels_in(read_octomap(path)) == moved
    for contents, words in (
        (map_of(cells, 0.1, (0.0, 0.05, 0.0)), "whole voxels of 0.1 m away, got .0.0, 0.05"),
        (map_of(cells, 0.1, (0.0, 0.0, 0.1 + 1e-6)), "whole voxels of 0.1 m away"),
        (map_of({(32768, 0, 0): 1}), r"within \+-32768, got 32768 to 32768"),
        (map_of({(0, 0, -32769): 1}), r"within \+-32768, got -32769 to -32769"),
        (map_of({(0, 0, -32766): 1}, 0.1, (0.0, 0.0, -0.3)), r"got -32769"),
    ):
        with pytest.raises(WrongUseError, match=words):
            write_octomap(tmp_path / "b.bt", contents)
    with pytest.raises(WrongUseError, match=r"written as .bt or .ot"):
        write_octomap(tmp_path / "b.graph", map_of(cells))
    assert not (tmp_path / "b.bt").exists()


def test_pruned_cubes_expand_up_to_a_limit(tmp_path):
    for suffix in (".bt", ".ot"):
        path = tmp_path / f"a{suffix}"
        write_tree(path, node_of({(0,) * 12: -2048, (7,) * 16: 3595}))  # 8 regions and one
        assert len(voxels_in(read_octomap(path, max_regions=9))) == 4097
        with pytest.raises(CloudFileError, match="expand to 9 regions, more than 8"):
            read_octomap(path, max_regions=8)
        write_tree(path, node_of({(0,): 0}))
        with pytest.raises(CloudFileError, match="expand to 68719476736 regions"):
            read_octomap(path)


def test_colors_are_left_and_old_names_known(tmp_path):
    path, node = tmp_path / "a.ot", node_of({(1,) * 16: 70, (1,) * 15 + (2,): -70})
    for name, binary in (("ColorOcTree", ".ot"), ("1", ".ot"), ("ColorOcTree", ".bt")):
        path = tmp_path / f"a{binary}"
        write_tree(path, node, name=name)
        assert list(voxels_in(read_octomap(path))) == list(voxels_of(node))


GOOD = node_of({(1,) * 16: 5, (1,) * 15 + (7,): -5})


@pytest.mark.parametrize(
    ("suffix", "written", "words"),
    [
        (".bt", {"node": 7}, "a node without children does not say"),
        (".bt", {"node": node_of({(1,) * 17: 5})}, "more than 16 levels"),
        (".ot", {"node": node_of({(1,) * 17: 5})}, "more than 16 levels"),
        (".ot", {"node": node_of({(i,) * 20: 5 for i in range(8)})}, "more than 16 levels"),
        (".bt", {"body": packed(GOOD, True)[:-2]}, "its 15 nodes are not one tree"),
        (".bt", {"body": packed(GOOD, True)[:-1]}, "18 nodes do not fit the 31 bytes"),
        (".bt", {"body": packed(GOOD[1], True)}, "it has 17 nodes, its header promises 18"),
        (".ot", {"body": packed(GOOD, False) + b"\0"}, "18 nodes do not fit the 91 bytes"),
        (".ot", {"body": packed(7, False) * 18}, "its 18 nodes are not one tree"),
        (".ot", {"node": math.nan}, "log-odds that are not finite"),
        (".bt", {"node": None, "body": b"\0\0"}, "no nodes, but 2 bytes after"),
        (".ot", {"res": "0"}, "voxel_size must be above 0"),
        (".ot", {"res": "wide"}, "could not convert string to float"),
        (".ot", {"name": "OcTreeStamped"}, "id must be one of .* got 'OcTreeStamped'"),
    ],
)
def test_what_is_no_tree_is_told(suffix, written, words, tmp_path):
    path = tmp_path / f"a{suffix}"
    write_tree(path, **{"node": GOOD, **written})
    with pytest.raises(CloudFileError, match=f"{path} is not a readable OctoMap file: .*{words}"):
        read_octomap(path)


@pytest.mark.parametrize("kind", ["ot", "bt", "graph", "map"])
def test_every_shorter_file_is_refused(kind, tmp_path):
    suffix, write = fuzzing.WRITERS[kind]
    path = tmp_path / f"a{suffix}"
    write(path)
    whole = path.read_bytes()
    for size in range(0, len(whole), len(whole) // 300 or 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CloudFileError) as error:
            fuzzing.read(kind, path)
        assert len(str(error.value).splitlines()) == 1


def test_a_graph_has_points_in_the_frames_of_its_poses(tmp_path):
    path, points = tmp_path / "a.graph", np.random.default_rng(0).normal(size=(5, 3))
    fuzzing.write_graph(path, [points, points[:0]])
    one, none = read_graph(path)
    assert np.array_equal(one.points, points) and none.points.shape == (0, 3)
    quarter = [[0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3]]  # about z, and away
    assert np.allclose(one.pose, quarter, atol=1e-15) and np.array_equal(one.pose, none.pose)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CloudFileError, match="81 bytes after its scans are not 1 edges"):
        read_graph(path)


@pytest.mark.filterwarnings("error")
def test_a_graph_with_a_rotation_of_other_values_is_refused(tmp_path):
    path = tmp_path / "a.graph"
    fuzzing.write_graph(path)
    data, at = bytearray(path.read_bytes()), 8 + 5 * 28  # four points, the place
    assert data[at : at + 4] == struct.pack("<i", 4)
    data[at : at + 4] = struct.pack("<i", -(2**31))
    path.write_bytes(data)
    with pytest.raises(CloudFileError, match="its rotations not 4"):
        read_graph(path)


def test_a_real_graph_is_a_wall_ahead():
    path = DATA / "occupancy" / "spherical_scan.graph"
    if not path.exists():
        pytest.skip(f"no {path}: set TORCHVOX_DATA to the folder of real scans")
    (scan,) = read_graph(path)
    assert scan.points.shape == (10_201, 3) and scan.points.min(axis=0)[0] > 3
    assert scan.pose.tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, -0.5]]


def test_octomap_reads_what_is_written_here_and_the_other_way_round(tmp_path):
    octomap = pytest.importorskip("pyoctomap")

    def leaves(tree):
        """Voxels of its leaves, by their centers and edges."""
        found = {}
        for leaf in tree.begin_leafs():
            center, edge = leaf.getCoordinate(), round(leaf.getSize() / 0.1)
            low = [round(c / 0.1 - edge / 2) for c in center]
            cells = itertools.product(*(range(v, v + edge) for v in low))
            found |= dict.fromkeys(cells, round(leaf.current_node.getLogOdds() * 1024))
        return found

    cells = scene(2) | {(-32768, 32767, 0): 5, (32767, -32768, -1): -9}
    for suffix in (".ot", ".bt"):
        write_octomap(tmp_path / f"a{suffix}", map_of(cells))
    ours = octomap.OcTree(0.5).read(str(tmp_path / "a.ot"))
    assert leaves(ours) == cells and ours.getResolution() == 0.1
    ours.writeBinary(str(tmp_path / "b.bt"))  # which prunes
    one, other = ((tmp_path / f"{n}.bt").read_bytes().partition(b"size")[2] for n in "ab")
    assert one == other
    ours = octomap.OcTree(0.5)
    assert ours.readBinary(str(tmp_path / "a.bt")) and leaves(ours) == signs(cells)

    theirs, rng = octomap.OcTree(0.1), np.random.default_rng(0)
    for center in rng.uniform(-1, 1, (3, 3)):
        theirs.insertPointCloud(rng.normal(0, 0.4, (300, 3)), center)
    for x, y, z in np.ndindex(8, 8, 8):  # a cube that is pruned
        theirs.updateNode(np.array([x - 3.5, y - 3.5, z + 40.5]) / 10, True)
    theirs.updateInnerOccupancy()
    expected = leaves(theirs)
    assert theirs.getNumLeafNodes() < len(expected)
    theirs.write(str(tmp_path / "b.ot"))
    theirs.writeBinary(str(tmp_path / "b.bt"))
    assert voxels_in(read_octomap(tmp_path / "b.ot")) == expected
    assert voxels_in(read_octomap(tmp_path / "b.bt")) == signs(expected)
