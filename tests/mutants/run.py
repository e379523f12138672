# SPDX-License-Identifier: Apache-2.0
"""Do the tests notice faults? Puts each fault of mutants.yaml into a copy of the tree, one at a
time, and runs the tests that should fail. Exit code 1: a fault survived or could not be tried.

The copy and its CPU-only build stay in build/mutants: a later run compiles what has changed.
"""

import argparse
import filecmp
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
TREE, BUILD = WORK / "tree", WORK / "cmake"
BUILD_LOG, TEST_LOG = WORK / "build.log", WORK / "tests.log"
SECONDS = 900  # for the tests of one mutant


@dataclass(frozen=True)
class Mutant:
    """before: stands once in `file`, and becomes `after`. hangs: a test that never ends notices."""

    name: str
    file: str
    before: str
    after: str
    tests: list[str]
    hangs: bool = False

    def problem(self) -> str:
        """Why it does not fit the tree, "" when it does."""
        path = ROOT / self.file
        found = path.read_text().count(self.before) if path.is_file() else 0
        if found != 1:
            return f"{self.name}: {self.before!r} stands {found} times in {self.file}, not once"
        for test in self.tests:
            file, function = re.match(r"([^:]+)(?:::(\w+))?", test).groups("")
            if not (ROOT / file).is_file() or function not in (ROOT / file).read_text():
                return f"{self.name}: there is no test {test}"
        return ""


def load() -> list[Mutant]:
    with Path(__file__).with_name("mutants.yaml").open() as file:
        return [Mutant(**entry) for entry in yaml.safe_load(file)]


def copy_tree() -> None:
    """Tracked files as they are now. What is unchanged keeps its time, for ninja."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    tracked = {name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()}
    for path in TREE.rglob("*"):
        if path.is_file() and str(path.relative_to(TREE)) not in tracked:
            path.unlink()
    for name in tracked:
        copy(name, changed_only=True)


def copy(name: str | Path, changed_only: bool = False) -> None:
    source, target = ROOT / name, TREE / name
    if not (changed_only and target.is_file() and filecmp.cmp(source, target, shallow=False)):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def take_library() -> None:
    """That of the working tree: faults in Python need no other."""
    package = ROOT / "torchvox"
    for path in (*package.glob("lib/**/*"), *package.glob("_C*.so"), package / "_build.py"):
        if path.is_file():
            copy(path.relative_to(ROOT))


def build_library() -> bool:
    """Compiles what has changed, and installs it into the copy."""
    configure = ["cmake", "-GNinja", f"-S{TREE}", f"-B{BUILD}", "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DTORCHVOX_CUDA=0", "-DTORCHVOX_RPATH_TO_BUILD=ON"]
    configure += [f"-DTORCHVOX_PYTHON={sys.executable}"]
    configure += [f"-DCMAKE_INSTALL_PREFIX={TREE / 'torchvox'}"]
    steps = [["cmake", "--build", BUILD], ["cmake", "--install", BUILD]]
    if not (BUILD / "build.ninja").is_file():
        steps.insert(0, configure)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # cmake and ninja
    where = {"env": {**os.environ, "PATH": path}, "stderr": subprocess.STDOUT}
    with BUILD_LOG.open("w") as log:
        return all(subprocess.run(s, stdout=log, **where).returncode == 0 for s in steps)


def run_tests(tests: list[str], tier: str, seconds: float | None) -> tuple[str, str]:
    """("passed", ""), ("failed", the first test that did), ("hung", "") or ("broken", why)."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    command += [] if tier == "all" else ["-m", "not slow"]
    # No bytecode: a fault of equal length, put in within a second, would find that of the original.
    env = {**os.environ, "PYTHONPATH": str(TREE), "PYTHONDONTWRITEBYTECODE": "1"}
    with TEST_LOG.open("w") as log:
        output = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        pytest = subprocess.Popen(command, cwd=TREE, env=env, **output)
        try:
            code = pytest.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(pytest.pid, signal.SIGKILL)
            pytest.wait()
            return "hung", f"no end in {seconds} s"
    if code == 0:
        return "passed", ""
    if code < 0:
        return "failed", f"a crash, {signal.Signals(-code).name}"
    text = TEST_LOG.read_text()
    first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    if code == 1 and first:
        return "failed", first[1]
    return "broken", f"pytest ended with {code}, see {TEST_LOG}"


def try_mutant(mutant: Mutant, tier: str, rebuild: bool) -> tuple[str, str]:
    """("killed", by which test), ("SURVIVED", "") or ("ERROR", why)."""
    path = TREE / mutant.file
    original = path.read_text()
    path.write_text(original.replace(mutant.before, mutant.after))
    try:
        if rebuild and not build_library():
            return "ERROR", f"it does not compile, see {BUILD_LOG}"
        state, what = run_tests(mutant.tests, tier, SECONDS)
    finally:
        path.write_text(original)
    hung = "killed" if mutant.hangs else "ERROR"
    return {"passed": "SURVIVED", "failed": "killed", "hung": hung, "broken": "ERROR"}[state], what


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a name or a path")
    parser.add_argument("--tier", choices=("fast", "all"), default="fast", help='fast: "not slow"')
    options = parser.parse_args()
    mutants = [m for m in load() if options.only in m.name or options.only in m.file]
    if problems := [problem for m in mutants if (problem := m.problem())]:
        sys.exit("\n".join(problems))
    WORK.mkdir(parents=True, exist_ok=True)
    copy_tree()
    if not any(m.file.startswith("csrc/") for m in mutants):
        take_library()
    elif not build_library():
        sys.exit(f"the tree does not compile, see {BUILD_LOG}")
    state, what = run_tests(sorted({t for m in mutants for t in m.tests}), options.tier, None)
    if state != "passed":
        sys.exit(f"without any fault: {what}, see {TEST_LOG}")
    left, stale = [], False
    for mutant in mutants:
        start, compiled = time.monotonic(), mutant.file.startswith("csrc/")
        found, what = try_mutant(mutant, options.tier, rebuild=compiled or stale)
        stale = compiled
        line = f"{found:8}  {mutant.name}  ({mutant.file})  {what}"
        print(f"{time.monotonic() - start:4.0f} s  {line}", flush=True)
        left += [line] if found != "killed" else []
    print(f"\n{len(mutants) - len(left)} of {len(mutants)} killed", *left, sep="\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
