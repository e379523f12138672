# SPDX-License-Identifier: Apache-2.0
"""What torchvox info says of a recording."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from torchvox._util.errors import TorchvoxError, WrongUseError, short
from torchvox.io import Recording, open_recording
from torchvox.io.bags import Topic
from torchvox.io.frames import TRANSFORMS, pose_topic
from torchvox.io.pointcloud2 import point_times


def recording_facts(path: Path, topic: str | None, header: bool) -> dict[str, Any]:
    """All facts, for JSON. topic: of these scans alone; header: without those of messages."""
    recording = open_recording(path, topic)
    files = path.rglob("*") if path.is_dir() else [path]
    own = recording.topics if topic is None else [recording.topic]
    facts: dict[str, Any] = {
        **{"path": str(path), "format": recording.format},
        **{"bytes": sum(file.stat().st_size for file in files if file.is_file())},
        **{"start": str(recording.start), "seconds": recording.seconds},
        "topics": [dict(name=t.name, type=t.type, messages=t.messages, hz=t.rate) for t in own],
    }
    each = "one of each scan" if recording.has_poses else None
    facts |= {"poses": each or _poses(recording.topics), "notes": recording.notes}
    clouds = {sensor.name for sensor in recording.sensors if sensor.messages}
    recording.close()
    for each in facts["topics"]:
        if each["name"] in clouds and not header:
            each |= _first_scan(open_recording(path, each["name"]))
    return facts


def _poses(topics: list[Topic]) -> str:
    """Where torchvox map finds the poses of scans."""
    try:
        chosen = pose_topic(topics, None)
    except WrongUseError as error:
        return str(error)
    has_tf = any(topic.type in TRANSFORMS and topic.messages for topic in topics)
    return chosen.name if chosen is not None else "tf" if has_tf else "none"


def _first_scan(recording: Recording) -> dict[str, Any]:
    try:
        scan = recording.scan(0)
        columns = {axis: str(scan.table.xyz.dtype) for axis in "xyz"}
        columns |= {name: str(type_) for name, type_ in scan.table.columns.items()}
        facts = {"frame": scan.sensor, "shape": scan.shape, "points": len(scan.table)}
        facts |= {"columns": columns, "problems": scan.problems}
        return facts | {"time": point_times(scan.table, scan.stamp)[1]}
    except TorchvoxError as error:  # the other topics are shown
        return {"problems": [str(error)]}
    finally:
        recording.close()


def recording_lines(facts: dict[str, Any]) -> str:
    """The facts in print."""
    lines = [f"format    {facts['format']}, {facts['bytes']:,} bytes"]
    start = datetime.timedelta(microseconds=int(facts["start"]) // 1000)
    if any(topic["messages"] for topic in facts["topics"]):
        date = f"{datetime.datetime(1970, 1, 1) + start:%Y-%m-%d %H:%M:%S}"
        lines.append(f"duration  {facts['seconds']:,.1f} s, from {date} UTC")
    for topic in facts["topics"]:
        rate = f"{topic['messages']:,} messages, {topic['hz']:.3g} Hz"
        lines.append(f"topic     {short(topic['name'])}, {short(topic['type'])}, {rate}")
        if "columns" in topic:
            height, width = topic["shape"]
            organised = f" ({height} x {width})" if height > 1 else ""
            points = f"{topic['points']:,} points{organised} in the first"
            lines.append(f"          frame {short(topic['frame']) or 'none'}, {points}")
            fields = ", ".join(f"{short(name)} {type_}" for name, type_ in topic["columns"].items())
            lines.append(f"          {fields}")
        if "time" in topic:
            lines.append(f"          times of points: {topic['time']}")
        lines += [f"          {short(problem)}" for problem in topic.get("problems", ())]
    lines += [f"note      {note}" for note in facts["notes"]]
    return "\n".join([*lines, f"poses     {short(facts['poses'])}"])
