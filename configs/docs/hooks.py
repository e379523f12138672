# SPDX-License-Identifier: Apache-2.0
"""What mkdocs adds to docs/: the pages of the API, the pages that lie at the root, the pictures of
the gallery, and the source files that pages link to."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PICTURES = ROOT / "build" / "pictures"  # configs/docs/pictures.py draws them
AT_ROOT = {f"{name.upper()}.md": f"{name}.md" for name in ("readme", "contributing", "changelog")}
# Public packages beside torchvox.ops, whose modules have a page each.
PACKAGES = {
    "nn": "Modules over the ops",
    "models": "Networks",
    "graphs": "CUDA graphs",
    "io": "Files",
    "data": "Data",
    "filter": "Filter of files",
    "mapping": "Occupancy maps",
    "augment": "Augmentation",
    "evaluation": "Evaluation",
    "tracking": "Tracking",
    "train": "Training",
    "onnx": "ONNX Runtime",
    "viz": "Pictures",
    "compat": "Adapters",
    "reference": "Reference",
}
ABOVE = {"neighbor_lists": "neighbors"}  # modules of ops on the page of another
BELOW = {  # public, and not found among the names of their package
    "nn": ("rays.visibility_channels",),
    "models": (
        "detection.detector",
        "detection.detector_names",
        "box_conventions",
        "importing.verify",
    ),
    "viz": ("map_page.map_page",),
    "io": ("table.join",),
    "data": (
        *("folder.ScanFolder", "folder.Objects", "folder.Segments"),
        "kitti.Kitti",
        "nuscenes.NuScenes",
        "modelnet.ModelNet40",
        "s3dis.S3DIS",
    ),
    "filter": ("ray",),
    "mapping": ("ray",),
    "evaluation": ("kitti", "lidar", "nuscenes"),
}
LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?:|#|mailto:)([^()\s#]+)(#[^()\s]*)?\)")


def api_pages() -> Iterator[tuple[str, str, list[str]]]:
    """(page, title, modules and other objects) of each page of the API."""
    names = [path.stem for path in sorted((ROOT / "torchvox" / "ops").glob("*.py"))]
    public = [n for n in names if n != "__init__" and exports(f"ops/{n}.py")]
    for name in public:
        if name not in ABOVE:
            modules = [name, *(k for k, page in ABOVE.items() if page == name)]
            yield f"api/{name}.md", f"Ops: {name}", [f"torchvox.ops.{m}" for m in modules]
    for name, title in PACKAGES.items():
        below = list(BELOW.get(name, ()))
        if name == "reference":  # its package names nothing itself
            below = [path.stem for path in sorted((ROOT / "torchvox" / name).glob("[a-z]*.py"))]
        page = "filter_files" if name == "filter" else name
        parts = [f"torchvox.{name}", *(f"torchvox.{name}.{part}" for part in below)]
        yield f"api/{page}.md", title, parts


def exports(path: str | Path) -> list[str]:
    """__all__ of a module of torchvox that is not imported; none where it is computed."""
    names: list[str] = []
    for node in ast.parse((ROOT / "torchvox" / path).read_text()).body:
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
            if getattr(target, "id", "") == "__all__" and isinstance(node.value, ast.List):
                names += ast.literal_eval(node.value)
    return names


def page_text(title: str, parts: list[str]) -> str:
    contract = DOCS / f"{parts[0].rpartition('.')[2]}.md"
    lines = [f"# {title}", ""]
    if parts[0].startswith("torchvox.ops.") and contract.is_file():
        lines += [f"What they do exactly: [{contract.stem}](../{contract.name}).", ""]
    for part in parts:
        heading = f"    options: {{show_root_heading: {str(part != parts[0]).lower()}}}"
        lines += [f"::: {part}", heading, ""]
    return "\n".join(lines)


def on_config(config: Any) -> Any:
    api = next(part for part in config.nav if "API" in part)
    api["API"] = [{title: page} for page, title, _ in api_pages()]
    return config


def on_files(files: Any, config: Any) -> Any:
    def add(place: str, source: Path) -> None:
        files.append(File.generated(config, place, abs_src_path=str(source)))

    for page, title, parts in api_pages():
        files.append(File.generated(config, page, content=page_text(title, parts)))
    for source, page in AT_ROOT.items():
        add(page, ROOT / source)
    for picture in sorted(PICTURES.glob("*.png")):
        add(f"pictures/{picture.name}", picture)
    for page in (*DOCS.glob("*.md"), *(ROOT / name for name in AT_ROOT)):
        for _, target, _ in LINK.findall(page.read_text()):
            path = (page.parent / target).resolve()
            place = place_of(path)
            if (
                place.startswith("source/")
                and path.is_file()
                and not files.get_file_from_path(place)
            ):
                add(place, path)
    return files


def place_of(path: Path) -> str:
    """Where a file of the tree lies in the site."""
    if DOCS in path.parents:
        return str(path.relative_to(DOCS))
    name = str(path.relative_to(ROOT))
    if path.is_dir():
        return f"api/{path.name}.md"
    return AT_ROOT.get(name) or f"source/{name}.txt"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the repository, to where the site has their targets."""
    uri = page.file.src_uri
    if uri.startswith("api/"):
        return markdown
    folder = ROOT if uri in AT_ROOT.values() else DOCS

    def mend(found: re.Match[str]) -> str:
        path = (folder / found[2]).resolve()
        if ROOT not in path.parents or not path.exists():
            return found[0]  # mkdocs tells
        return f"[{found[1]}]({place_of(path)}{found[3] or ''})"

    return LINK.sub(mend, markdown)
