# SPDX-License-Identifier: Apache-2.0
"""Column layouts of files without a header, by name or as a list; sizes are never guessed from."""

from torchvox._util.errors import WrongUseError

LAYOUTS = {
    "kitti": ("x", "y", "z", "intensity"),
    "nuscenes": ("x", "y", "z", "intensity", "ring"),
    "xyz": ("x", "y", "z"),
    "xyzrgb": ("x", "y", "z", "red", "green", "blue"),
}
SKIP = "_"  # a column of the file that is not read


def parse_layout(layout: str) -> tuple[str, ...]:
    """Columns of a layout: a name from LAYOUTS, or a comma list such as "x,y,z,_,ring".

    "_" stands for a column to skip. Raises WrongUseError, a ValueError.
    """
    key = layout.strip().lower()
    if key in LAYOUTS:
        return LAYOUTS[key]
    columns = tuple(name.strip() for name in key.split(","))
    named = [name for name in columns if name != SKIP]
    if len(columns) == 1:
        raise WrongUseError(f"layout {layout!r} is unknown: {layout_choices()}")
    if not {"x", "y", "z"} <= set(named) or len(set(named)) != len(named) or "" in named:
        rule = "x, y and z, and every column once ('_' skips a column)"
        raise WrongUseError(f"layout {layout!r} must name {rule}")
    return columns


def layout_choices() -> str:
    """A phrase for messages that lists the layouts."""
    names = ", ".join(f"{name} ({','.join(columns)})" for name, columns in LAYOUTS.items())
    return f"choose {names}, or list the columns, such as x,y,z,intensity,time"
