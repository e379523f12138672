# SPDX-License-Identifier: Apache-2.0
"""Rules of the source tree that a compiler does not check."""

import re
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT
from mutants import run as mutants

CSRC = ROOT / "csrc"
# Names of random streams are part of the bits of rooms.py.
ALLOWED = {"CHANGELOG.md", "tests/core/test_sources.py", "torchvox/data/worlds/rooms.py"}
SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
KERNEL_INCLUDES = re.compile(
    r"csrc/kernels/|cuda|cub/|thrust/|cooperative_groups|[a-z_0-9]+$|[a-z_]+\.h$"
)
TORCH = re.compile(r"(torch|ATen|c10|pybind11)/|Python\.h")

sources = sorted(p for p in CSRC.rglob("*") if p.suffix in SUFFIXES)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code(path: Path) -> str:
    text = path.read_text()
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def kernels(suffix: str = "") -> list[Path]:
    return [p for p in sources if "kernels" in p.parts and p.suffix.endswith(suffix)]


def test_kernels_include_only_the_standard_library_cuda_and_themselves():
    for path in kernels():
        for included in INCLUDE.findall(code(path)):
            assert KERNEL_INCLUDES.match(included) and not TORCH.match(included), name(path)


def test_no_header_that_costs_half_a_minute_is_included():
    banned = {"torch/extension.h", "torch/torch.h", "ATen/ATen.h", "torch/all.h", "torch/script.h"}
    assert not [name(path) for path in sources if banned & set(INCLUDE.findall(code(path)))]


def test_cuda_code_neither_allocates_nor_waits_nor_uses_the_legacy_stream():
    for path in kernels(".cu"):
        text = code(path)
        assert not re.findall(
            r"\bcuda(?:Malloc|Free|DeviceSynchronize|StreamSynchronize|Memcpy|Memset)\s*\(", text
        ), name(path)
        assert not re.findall(r"<<<[^,>]+,[^,>]+>>>", text), f"{name(path)}: no stream"


def test_only_kernel_files_are_cuda():
    assert all("kernels" in p.parts for p in sources if p.suffix in {".cu", ".cuh"})


def test_custom_function_is_included_where_gradients_are():
    users = [
        p for p in sources if "torch/csrc/autograd/custom_function.h" in INCLUDE.findall(code(p))
    ]
    assert all("autograd::Function<" in code(p) for p in users if p.name != "pch.h")


def test_kernels_use_no_openmp_and_start_no_thread():
    banned = r"#pragma omp|std::thread|std::async|omp\.h|\brand\("
    assert not [name(path) for path in kernels() if re.search(banned, code(path))]


def test_every_source_names_its_license():
    for path in sources:
        assert "SPDX-License-Identifier: Apache-2.0" in path.read_text().split("\n", 2)[0], path


# The field's word, or American spelling, stands for each: see docs/glossary.md.
RETIRED = re.compile(
    r"neighbour|centre[^p]|colour|behaviour|normalis|quantis|synchronis|initialis|optimis[ei]|recognis"
    r"|\b(slot|row)[ _](lists?|notes?)\b|giant|\bcrew|textbook|score[ _]order"
    r"|batch norms? folded|fold(s|ed|ing)? (its |the |a |of )?batch norm|box[ _]codes?\b"
    r"|\blearner\b|PackedPoints",
    re.IGNORECASE,
)


# Phrases that an engineer has to read twice, and what to write instead. Add a line to retire
# another one: a pattern of one line of text, whatever its case.
THING = "(point|row|line|box|number|column)"
WHOLE = "(voxel|row|cell|box|sample|file|query|region|point|cloud|line|batch|segment|step)"
PHRASES = {
    r"takes no part": "is not compared",
    r"without a word": "silently",
    r"of one's own": "your own",
    r"\bmends\b|\bmended\b": "fixes",
    r"(are|is|be|as) told\b": "is given, is set",
    r"let in again": "allowed again",
    r"\bslips\b": "passes",
    r"nobody wants": "padding",
    r"(?<!waits )for nothing\b": "for free, needlessly",
    r"\banew\b": "again",
    r"\bbut for\b": "except",
    rf"\b(a|one) {THING} an? {WHOLE}\b": "one .. per ..",
    r"\b(a|one) (warp|thread|block|task|lane) an? [a-z]": "one .. per ..",
    r"(?<!there )(?<!where )\bis no (file|folder|checkpoint|detector|rotation)": "is not a ..",
}
PROSE = ("csrc/", "torchvox/", "tests/", "docs/", "README.md", "CONTRIBUTING.md")


def tracked(*suffixes: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no repository")
    files = [f for f in listed.stdout.split() if f.endswith(suffixes) and (ROOT / f).is_file()]
    return [file for file in files if file not in ALLOWED and "third_party" not in file]


def test_retired_words_stay_away():
    for file in tracked(".py", ".h", ".cuh", ".cpp", ".cu", ".md", ".yaml"):
        word = RETIRED.search((ROOT / file).read_text())
        assert not word, f"{file}: {word.group()!r}"


def test_retired_phrases_stay_away():
    patterns = [(re.compile(pattern, re.IGNORECASE), pattern) for pattern in PHRASES]
    hits = [
        f"{file}:{number}: {match.group()!r}: write {PHRASES[pattern]!r}"
        for file in tracked(".py", ".h", ".cuh", ".cpp", ".cu", ".md", ".yaml")
        if file.startswith(PROSE)
        for number, line in enumerate((ROOT / file).read_text().split("\n"), 1)
        for compiled, pattern in patterns
        if (match := compiled.search(line))
    ]
    assert not hits, "\n".join(hits)


WIDTH = 120
GENERATED = "docs/benchmark_results.md"


def test_lines_of_pages_are_at_most_120_columns():
    """Outside of tables, code and links."""
    wide = []
    for file in set(tracked(".md")) - {"CHANGELOG.md", GENERATED}:
        is_code = False
        for number, line in enumerate((ROOT / file).read_text().split("\n"), 1):
            is_code ^= line.lstrip().startswith("```")
            plain = is_code or line.lstrip().startswith(("|", "!", "[")) or "http" in line
            if len(line) > WIDTH and not plain:
                wide.append(f"{file}:{number}")
    assert sorted(wide) == []


def test_every_mutant_fits_the_tree():
    assert not [problem for mutant in mutants.load() if (problem := mutant.problem())]
