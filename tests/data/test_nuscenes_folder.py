# SPDX-License-Identifier: Apache-2.0
"""nuScenes: a small set made here, of a vehicle that drives a curve past things at known places."""

import json
import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.data.readers import nuscenes_files
from torchvox.data.readers.nuscenes import ATTRIBUTES, CLASSES, NuScenes, held_back
from torchvox.io.poses import rotations

POLE = np.array([[12.0, 9.0, z] for z in (0.0, 1.0, 2.0, 3.0)])  # in the world
SPEED = np.array([3.0, 1.0, 0.0])  # of the first thing, a car
THINGS = {**nuscenes_files.CATEGORIES, "animal": ""}
NAMES = [*THINGS.values()]
WORDS = [ATTRIBUTES[CLASSES.index(n)][1] if n in CLASSES else "" for n in NAMES]
WORDS[0] = "vehicle.moving"
CONE, RACK = NAMES.index("traffic_cone"), NAMES.index("bicycle_rack")


def turn(yaw, pitch=0.0):
    """The quaternion w, x, y, z of a turn about z after one about y."""
    (c, s), (d, t) = ((math.cos(a / 2), math.sin(a / 2)) for a in (yaw, pitch))
    return [c * d, -s * t, c * t, s * d]


def frames(tick):
    """The vehicle in the world after `tick` twentieths of a second, the lidar in the vehicle."""
    yield {"translation": [0.4 * tick, 0.01 * tick**2, 0.5], "rotation": turn(0.02 * tick, 0.01)}
    yield {"translation": [0.9, 0.1, 1.8], "rotation": turn(-1.5, 0.03)}


def to_lidar(values, tick, shift=1):
    """Points of the world, or directions where shift is 0."""
    for frame in frames(tick):
        w, *xyz = frame["rotation"]
        values = values - shift * np.array(frame["translation"])
        values = values @ rotations(np.array([[*xyz, w]]))[0]
    return values


def thing(number, tick):
    """Place, size (w, l, h) and yaw in the world."""
    place = np.array([2.0 * number, -6.0 if number % 2 else 8.0, 1.0])
    return place + SPEED * (number == 0) * tick / 20, [2.0, 4.0 + number, 1.5], 0.5 * number


def make(root, scenes=(1,), pace=1):
    """Scenes of three keyframes and 21 sweeps: four points of the pole, one on the vehicle."""
    tables = defaultdict(list)

    def add(table, token, **values):
        tables[table].append({"token": token, **values})

    for name in ("LIDAR_TOP", "CAM"):
        add("sensor", name, channel=name)
        add("calibrated_sensor", name, sensor_token=name, **[*frames(0)][1])
    for name in {*THINGS, *WORDS}:
        add("category", name, name=name)
        add("attribute", name, name=name)
    for s in scenes:
        add("scene", f"{s}", name=f"scene-{s:04}")
        for tick in range(21):
            token, file, time = f"{s}/{tick}", f"{s}_{tick}.bin", 10**15 + 50_000 * tick * pace
            add("ego_pose", token, **next(frames(tick)))
            row = {"timestamp": time, "filename": file, "ego_pose_token": token}
            row |= {"sample_token": f"{s}/{(tick + 5) // 10 * 10}", "is_key_frame": tick % 10 == 0}
            row["prev"] = f"{s}/{tick - 1}" if tick else ""
            add("sample_data", token, calibrated_sensor_token="LIDAR_TOP", **row)
            add("sample_data", f"cam{token}", calibrated_sensor_token="CAM", **row)
            if tick % 10 == 0:
                add("sample", token, timestamp=time, scene_token=f"{s}")
            points = np.full((5, 5), tick, np.float32)
            points[:, :3] = [*to_lidar(POLE, tick), [0.5, -0.5, 0.0]]
            points.tofile(root / file)
        for number, (category, word) in enumerate(zip(THINGS, WORDS, strict=True)):
            add("instance", name := f"{s}.{number}", category_token=category)
            for tick in (0, 10, 20):
                place, size, yaw = thing(number, tick)
                row = {"sample_token": f"{s}/{tick}", "instance_token": name, "num_radar_pts": 0}
                row |= {"attribute_tokens": [word] * (word != ""), "rotation": turn(yaw)}
                row |= {"num_lidar_pts": 0 if number == CONE and tick else 5, "size": size}
                row |= {"prev": f"{name}/{tick - 10}", "next": f"{name}/{tick + 10}"}
                add("sample_annotation", f"{name}/{tick}", translation=[*place], **row)
    (root / "v1.0-trainval").mkdir()
    for name, rows in tables.items():
        (root / "v1.0-trainval" / f"{name}.json").write_text(json.dumps(rows, indent=1))
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make(tmp_path_factory.mktemp("nuscenes"), (1, 3))


def truth(data):
    """As detections."""
    batch = {k: v.numpy() for k, v in data.batch(range(len(data))).items()}
    names = {"boxes": "boxes", "labels": "labels", "scores": "weight"}
    return [{k: batch[names[k]][i, :n] for k in names} for i, n in enumerate(batch["num_boxes"])]


def test_a_pole_of_ten_sweeps_is_one_pole(root):
    batch = NuScenes(root, points=60).batch([0, 1, 2])
    points, count = batch["points"][1], int(batch["num_points"][1])
    assert batch["points"].shape == (3, 60, 5) and count == 5 + 9 * 4
    assert points[count:].isnan().all() and not points[:count].isnan().any()
    assert points[4, :3].tolist() == [0.5, -0.5, 0]  # of the keyframe, where it stays
    poles = torch.cat([points[:4], points[5:count]]).view(10, 4, 5).double().numpy()
    assert np.abs(poles[..., :3] - to_lidar(POLE, 10)).max() < 1e-5
    assert np.allclose(poles[..., 4], 0.05 * np.arange(10)[:, None], atol=1e-6)
    assert (poles[..., 3] == 10 - np.arange(10)[:, None]).all()
    few, again = (NuScenes(root, points=20)[1]["points"] for _ in range(2))
    assert torch.equal(few, again) and len({*few[:, 4].tolist()}) > 5  # a random part
    for how, age in (("repeat", [0.5]), ("keyframe", [0]), ("none", [])):
        first, second = (NuScenes(root, sweeps=15, short_history=how)[i] for i in range(2))
        found = second["points"][5 : second["num_points"] : 4, 4]
        assert np.allclose(found, [*(0.05 * i for i in range(1, 11)), *age * 4], atol=1e-6)
        assert first["num_points"] == 5 + 14 * 4 * (how != "none")  # without points on the vehicle


def test_boxes_are_in_the_frame_of_the_lidar(root):
    batch = NuScenes(root, "val").batch([0, 1])
    assert batch["num_boxes"].tolist() == [14, 13]  # one cone without points is dropped
    for sample, number in np.ndindex(2, 13):
        place, (width, length, height), yaw = thing(number, tick := 10 * sample)
        x, y, _ = to_lidar([math.cos(yaw), math.sin(yaw), 0], tick, shift=0)
        expected = [*to_lidar(place, tick), length, width, height, math.atan2(y, x)]
        expected += [*to_lidar(SPEED * (number == 0), tick, shift=0)[:2]]
        assert batch["boxes"][sample, number].tolist() == pytest.approx(expected, abs=1e-5)
        assert CLASSES[batch["labels"][sample, number]] == NAMES[number]
    assert batch["labels"][1, 13] == -1 and batch["weight"].sum(1).tolist() == [14, 13]
    assert NuScenes(root, min_points=0)[1]["num_boxes"] == 14


@pytest.mark.parametrize(("pace", "known"), [(3, True), (3.2, False)])  # 1.5, 1.6 s
def test_velocities_are_known_over_a_second_and_a_half_at_most(tmp_path, pace, known):
    data = NuScenes(make(tmp_path, pace=pace), sweeps=1)
    speed = data.batch([0, 1, 2])["boxes"][:, 0, 7:].norm(dim=1).tolist()
    expected = math.hypot(*SPEED) / pace if known else math.nan
    assert speed == pytest.approx([expected] * 3, rel=1e-3, nan_ok=True)


def test_detections_that_are_the_truth_have_no_error(root):
    found = truth(data := NuScenes(root))
    parked = [*to_lidar(thing(RACK, 0)[0], 0), 2, 1, 1, 0, 0, 0]  # neither right nor wrong
    more = {"boxes": [parked], "labels": [CLASSES.index("bicycle")], "scores": [2]}
    scores = data.measure([{k: np.concatenate([found[0][k], more[k]]) for k in more}, *found[1:]])
    # The lidar is tilted, so that a yaw and a velocity in its plane differ a little.
    assert scores["mAP"] == pytest.approx(1) and scores["NDS"] == pytest.approx(1, abs=1e-3)
    assert max(scores[k] for k in ("trans", "scale", "attr")) < 1e-5
    moved = data.measure([{**f, "boxes": f["boxes"] + [1.5, *[0] * 6, 9, 0]} for f in found])
    still = data.measure([{**f, "boxes": f["boxes"][:, :7].tolist()} for f in found])
    assert still["mAP"] == pytest.approx(1)
    assert still["car/vel"] == pytest.approx(math.hypot(*SPEED))
    assert moved["car/1.0"] == 0 and moved["trans"] == pytest.approx(1.5, abs=1e-2)
    assert moved["bus/attr"] == 1 and moved["car/attr"] < 1


def test_results_hold_the_boxes_in_the_world(root, tmp_path):
    found = truth(data := NuScenes(root))
    found[2] = {name: np.concatenate([values] * 60) for name, values in found[2].items()}
    data.write(found, tmp_path)
    content = json.loads((tmp_path / "results_nusc.json").read_text())
    assert [name for name, used in content["meta"].items() if used] == ["use_lidar"]
    assert [len(rows) for rows in content["results"].values()] == [14, 13, 500]
    for number, row in enumerate(content["results"]["1/10"]):
        w, *xyz = row["rotation"]
        x, y, _ = to_lidar(rotations(np.array([[*xyz, w]]))[0, :, 0], 10, shift=0)
        width, length, height = row["size"]
        back = [*to_lidar(row["translation"], 10), length, width, height, math.atan2(y, x)]
        assert back == pytest.approx(found[1]["boxes"][number, :7].tolist(), abs=1e-5)
        assert row["velocity"] == pytest.approx([*SPEED[:2] * (number == 0)], abs=1e-3)
        names = row["sample_token"], row["detection_name"], row["attribute_name"]
        assert names == ("1/10", NAMES[number], WORDS[number])


def test_a_balanced_epoch_takes_each_class_equally_often(tmp_path):
    data = NuScenes(make(tmp_path, (1, 2)), balanced=True)
    orders = [data.order(7, epoch) for epoch in range(20)]
    # Six keyframes have nine classes, two of them cones, too: 56 pairs, 5 draws for each class.
    assert len(orders[0]) == 50 and torch.equal(orders[1], data.order(7, 1))
    assert not torch.equal(orders[1], orders[2]) and not torch.equal(orders[1], data.order(8, 1))
    cones = sum(((order == 0) | (order == 3)).sum() for order in orders)
    assert cones / 20 == pytest.approx(5 + 45 / 3, rel=0.1)


def test_a_run_takes_a_balanced_epoch(root, tmp_path):
    pytest.importorskip("lightning", reason="the extra train is not installed")
    from torchvox.train import fit
    from torchvox.train.config import load_config

    small = ["encoder.channels=[8]", "backbone={layers: [1], strides: [2], channels: [8]}"]
    small += ["head.width=8", "neck={strides: [1], channels: [8]}", "pillar_size=[1.6, 1.6, 8]"]
    text = f"data.points=60;data.root={root};data.cache={tmp_path};train.epochs=1;"
    text += "train.batch_size=20;train.workers=0;train.device=cpu;train.log_every=1"
    changes = [*(f"model.args.{change}" for change in small), *text.split(";")]
    config = load_config("centerpoint_pillars_nuscenes", changes)
    found = fit(config, tmp_path / "run", quiet=True)
    first = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])
    assert math.isfinite(first["loss"]) and "map" in found  # 20 draws of three keyframes: a step


def test_scenes_are_split_as_published():
    val = held_back("v1.0-trainval")
    assert len(val) == 150 and {"scene-0003", "scene-0110", "scene-1073"} <= val
    assert not {"scene-0001", "scene-0037", "scene-1110"} & val
    assert held_back("v1.0-mini") == {"scene-0103", "scene-0916"}


def test_an_index_is_kept_until_a_table_changes(tmp_path, monkeypatch):
    made = NuScenes(make(tmp_path), cache=tmp_path).index
    with monkeypatch.context() as patch:
        patch.setattr(nuscenes_files, "_index", None)
        kept = NuScenes(tmp_path, cache=tmp_path).index
    assert all(np.array_equal(kept[k], v, equal_nan=v.dtype.kind == "f") for k, v in made.items())
    (tmp_path / "v1.0-trainval" / "scene.json").write_text('[{"token": "1", "name": "scene-0003"}]')
    assert len(NuScenes(tmp_path, "val", cache=tmp_path)) == 3
    (path := tmp_path / "nuscenes_v1.0-trainval.npz").write_text("mine")
    with pytest.raises(CloudFileError, match=r"trainval.npz is not a readable index of nuScenes"):
        NuScenes(tmp_path, cache=tmp_path)
    assert path.read_text() == "mine"


def test_what_is_wrong_or_missing_is_named(tmp_path):
    damages = (
        ("ego_pose", '"translation"', '"x"', r"ego_pose.json object 0 has no translation"),
        ("ego_pose", "0.99998", "0.5", r"ego_pose.json object 0: rotation must be a unit quat"),
        ("ego_pose", "[", "[[1], ", r"ego_pose.json is not a .*: object 0 is 1"),
        ("sample_data", "10" + 14 * "0", "null", r"_data.json object 0: timestamp must be 1 fin"),
        ("sample_annotation", " 8.0,", "", r"_annotation.json object 0: translation must be 3 fin"),
        ("sample_annotation", '"1/0"', '"x"', r"sample.json has no x"),
        ("sample", '"1/0"', '"x"', r"among the key frames, .*sample_data.json has no x"),
        ("sensor", "}\n]", "}", r"sensor.json is not a readable .*: line 9 column 3"),
    )
    for number, (table, old, new, words) in enumerate(damages):
        (folder := tmp_path / f"{number}").mkdir()
        path = make(folder) / "v1.0-trainval" / f"{table}.json"
        path.write_text(path.read_text().replace(old, new, 1))
        with pytest.raises(CloudFileError, match=words):
            NuScenes(folder)
    with pytest.raises(WrongUseError, match=r"v1.0-trainval has no sample of val"):
        NuScenes(make(tmp_path), "val")
    (tmp_path / "1_3.bin").unlink()
    with pytest.raises(CloudFileError, match=r"1_3.bin: No such file"):
        NuScenes(tmp_path)[1]
    with pytest.raises(CloudFileError, match=r"v1.0-mini/sensor.json: No such file"):
        NuScenes(tmp_path, version="v1.0-mini")
