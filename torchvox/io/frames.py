# SPDX-License-Identifier: Apache-2.0
"""Poses that a recording holds: odometry, poses, paths or tf, and the way to the sensor's frame."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torchvox._util.errors import CloudFileError, WrongUseError, short
from torchvox.io.poses import Trajectory, inverse, joined, rotations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchvox.io.bags import Bag, Topic

ODOMETRY = "nav_msgs/msg/Odometry"
POSES = ("geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/PoseWithCovarianceStamped")
PATH = "nav_msgs/msg/Path"
TRANSFORMS = ("tf2_msgs/msg/TFMessage", "tf/msg/tfMessage")
RANKS = ((ODOMETRY,), POSES, (PATH,))  # of the topics that are taken by default
BODY = "base_link"  # whose poses messages tell that name no frame of their own
Edge = tuple[str, str]  # parent and child


class Moments(NamedTuple):
    """times [n] int64 in ns; poses [n, 7]: x, y, z, qx, qy, qz, qw; frame: whose poses."""

    times: np.ndarray
    poses: np.ndarray
    frame: str


def trajectory_of(
    bag: Bag, sensor: str, odom: str | None, extrinsic: np.ndarray | None, max_gap: float
) -> Trajectory:
    """The poses of a sensor's frame, at times in seconds after the start of the bag.

    odom: the topic of the poses; by default the only one of the first of RANKS that there is, else
        tf with a single transform that changes.
    extrinsic: [3, 4], the pose of the sensor in the frame whose poses these are; None looks for it
        in tf. Raises WrongUseError where it is not clear which topic, or there is no extrinsic.
    """
    chosen = pose_topic(bag.topics, odom)
    edges: dict[Edge, list[tuple[int, np.ndarray]]] = {}
    if extrinsic is None or chosen is None:
        edges = _edges(bag)
    moving = {edge: own for edge, own in edges.items() if any(_moves(own))}
    if chosen is not None:
        moments = _moments(bag, chosen)
    elif len(moving) == 1:
        (((_, child), own),) = moving.items()
        moments = Moments(np.array([t for t, _ in own]), np.stack([p for _, p in own]), child)
    else:
        names = short(", ".join("->".join(edge) for edge in moving)) or "none"
        rule = f"{bag.path} has no topic of odometry or poses, and in tf not one moving transform"
        raise WrongUseError(f"{rule} but {len(moving)} ({names}): give --odom or --poses")
    good = np.isfinite(moments.poses).all(axis=1)
    good &= np.abs(np.linalg.norm(moments.poses[:, 3:], axis=1) - 1) < 1e-2
    if not good.any():
        raise CloudFileError(f"{bag.path}: none of {len(good)} poses is one of finite numbers")
    if extrinsic is None:
        still = {edge: _matrix(own[-1][1]) for edge, own in edges.items() if edge not in moving}
        extrinsic = _chain(still, moments.frame, sensor, str(bag.path))
    seconds = (moments.times[good] - bag.start) / 1e9
    matrices = np.stack([_matrix(pose) for pose in moments.poses[good]])
    return Trajectory(seconds, matrices, extrinsic=extrinsic, max_gap=max_gap)


def pose_topic(topics: list[Topic], odom: str | None) -> Topic | None:
    """The topic of poses; None for tf."""
    able = [topic for topic in topics if any(topic.type in rank for rank in RANKS)]
    if odom is not None:
        if matches := [topic for topic in able if topic.name.strip("/") == odom.strip("/")]:
            return matches[0]
        names = short(", ".join(f"{topic.name} ({topic.type})" for topic in able) or "none")
        raise WrongUseError(f"--odom {odom} is not a topic of poses: there are {names}")
    for rank in RANKS:
        own = [topic for topic in able if topic.type in rank and topic.messages]
        if len(own) > 1:
            names = short(", ".join(topic.name for topic in own))
            raise WrongUseError(f"several topics have poses, choose one by --odom: {names}")
        if own:
            return own[0]
    return None


def _moments(bag: Bag, topic: Topic) -> Moments:
    times: list[int] = []
    poses: list[np.ndarray] = []
    frame = BODY
    for time, message in _decoded(bag, topic):
        each = [message]
        if topic.type == PATH:  # the last one counts
            times, poses, each = [], [], message.poses
        for stamped in each:
            pose = stamped.pose if topic.type in (POSES[0], PATH) else stamped.pose.pose
            times.append(_ns(stamped.header.stamp) or time)
            poses.append(_numbers(pose.position, pose.orientation))
            if topic.type == ODOMETRY:
                frame = message.child_frame_id.strip("/") or BODY
    if not times:
        raise CloudFileError(f"{bag.path}: {topic.name} has no poses")
    return Moments(np.array(times), np.array(poses), frame)


def _edges(bag: Bag) -> dict[Edge, list[tuple[int, np.ndarray]]]:
    """The transforms of tf by parent and child, with their times; of static ones the last."""
    edges: dict[Edge, list[tuple[int, np.ndarray]]] = {}
    for topic in bag.topics:
        if topic.type not in TRANSFORMS:
            continue
        for _, message in _decoded(bag, topic):
            for one in message.transforms:
                edge = one.header.frame_id.strip("/"), one.child_frame_id.strip("/")
                pose = _numbers(one.transform.translation, one.transform.rotation)
                own = edges.setdefault(edge, [])
                if topic.name.endswith("tf_static"):
                    own.clear()
                own.append((_ns(one.header.stamp), pose))
    return edges


def _decoded(bag: Bag, topic: Topic) -> Iterator[tuple[int, Any]]:
    with bag.errors():
        for time, data in bag.messages(topic.name, topic.type):
            yield time, bag.decoded(data, topic.type)


def _moves(own: list[tuple[int, np.ndarray]]) -> Iterator[bool]:
    return (not np.array_equal(pose, own[0][1]) for _, pose in own)


def _chain(still: dict[Edge, np.ndarray], frame: str, sensor: str, name: str) -> np.ndarray:
    """The pose [3, 4] of the sensor in a frame, over static transforms in both directions."""
    poses, todo = {frame: np.eye(3, 4)}, deque([frame])
    while todo and sensor not in poses:
        at = todo.popleft()
        for (parent, child), pose in still.items():
            if parent == at and child not in poses:
                poses[child] = joined(poses[at], pose)
                todo.append(child)
            elif child == at and parent not in poses:
                poses[parent] = joined(poses[at], inverse(pose))
                todo.append(parent)
    if sensor not in poses:
        known = short(", ".join(sorted({end for edge in still for end in edge})) or "none")
        rule = f"{name} has no static transforms from {frame}, whose poses it has, to {sensor}"
        raise WrongUseError(f"{rule} (frames: {known}): give --extrinsic FILE or identity")
    return poses[sensor]


def _ns(stamp: Any) -> int:
    return stamp.sec * 10**9 + stamp.nanosec


def _numbers(place: Any, turn: Any) -> np.ndarray:
    return np.array([place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w])


def _matrix(numbers: np.ndarray) -> np.ndarray:
    return np.concatenate([rotations(numbers[None, 3:])[0], numbers[:3, None]], axis=1)
