# SPDX-License-Identifier: Apache-2.0
"""Builds wheels, one for each minor version of torch, with and without CUDA, and tries them.

    python configs/wheels.py                     say what there is to build, and what is lacking
    python configs/wheels.py --only pt215cpu     build these, each in an environment of its own
    python configs/wheels.py --here              build for the torch and the build of this
                                                 environment (`make wheel`)

A wheel serves every Python 3.10 to 3.14 that is on PATH or named in TORCHVOX_PYTHONS, since
torchvox._C alone depends on Python's version. It is repaired into dist/, installed with torch into
an environment that has neither compiler nor toolkit, and tried there. It needs uv, patchelf on PATH
(a package of the system, which no extra brings), and for wheels with CUDA the toolkit;
TORCH_CUDA_ARCH_LIST names their architectures.
"""

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = [f"3.{minor}" for minor in range(10, 15)]
EXTRAS = "cli,viz"


def matrix() -> list[str]:
    """pt211cpu, pt211cu, ...: every torch that is supported, without CUDA and with its own."""
    oldest, newest = PROJECT["tool"]["torchvox"]["supported-torch"].split(" to ")
    minors = range(int(oldest.split(".")[1]), int(newest.split(".")[1]) + 1)
    return [f"pt2{minor}{kind}" for minor in minors for kind in ("cpu", "cu")]


def interpreters() -> dict[str, str]:
    """Version -> interpreter, for the Pythons that are here with their headers."""
    program = "import sys, sysconfig, pathlib as p; print('%d.%d' % sys.version_info[:2])"
    program += "; p.Path(sysconfig.get_path('include'), 'Python.h').stat()"
    named = [name for name in os.environ.get("TORCHVOX_PYTHONS", "").split(os.pathsep) if name]
    found = {}
    for name in [sys.executable, *named, *(f"python{version}" for version in PYTHONS)]:
        path = shutil.which(name)
        done = path and subprocess.run([path, "-c", program], capture_output=True, text=True)
        if done and done.returncode == 0:
            found.setdefault(done.stdout.strip(), path)
        elif name in named:
            sys.exit(f"wheels: TORCHVOX_PYTHONS names {name}, which is no Python with its headers")
    return {version: found[version] for version in PYTHONS if version in found}


def call(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """What a program printed; its failure is the end, with all that it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nwheels: {shlex.join(words)} gave {done.returncode}")
    return done.stdout


def uv(*arguments: object) -> str:
    return call(sys.executable, "-m", "uv", *arguments)


def environment(folder: Path, python: str, *requirements: object) -> Path:
    """A fresh environment of this interpreter; returns its bin folder."""
    uv("venv", "--quiet", "--clear", "--python", python, folder)
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", *requirements)
    return folder / "bin"


def build(target: str, tools: Path, folder: Path, cmake: Path, pythons: dict[str, str]) -> Path:
    """The repaired wheel, in dist/. `tools` is the bin folder of an environment with torch."""
    facts = call(tools / "python", "configs/cmake/torch_facts.py")
    torch = dict(fact.split("=", 1) for fact in facts.split(";"))
    label = "pt" + "".join(torch["VERSION"].split(".")[:2])
    cuda = target.endswith("cu")
    label += "cu" + torch["CUDA"].replace(".", "") if cuda else "cpu"
    env = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "TORCHVOX_BUILD_DIR": os.environ.get("TORCHVOX_BUILD_DIR", str(cmake)),
        "TORCHVOX_CUDA": str(int(cuda)),
        "TORCHVOX_LOCAL_VERSION": label,
        "TORCHVOX_PYTHONS": os.pathsep.join(pythons.values()),
    }
    if not shutil.which("patchelf", path=env["PATH"]):
        sys.exit("wheels: no patchelf on PATH, which repairs wheels: install the system's package")
    raw = folder / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    options = ("--quiet", "--no-build-isolation", "--python", tools / "python", "--out-dir", raw)
    call(sys.executable, "-m", "uv", "build", "--wheel", *options, ROOT, env=env)
    [wheel] = raw.glob("*.whl")
    repair = PROJECT["tool"]["cibuildwheel"]["repair-wheel-command"]
    repaired = folder / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    call(*shlex.split(repair.format(dest_dir=repaired, wheel=wheel)), env=env)
    [wheel] = repaired.glob("*.whl")
    (ROOT / "dist").mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, ROOT / "dist"))


def ten_lines() -> str:
    """README's first program, on the CPU."""
    readme = (ROOT / "README.md").read_text()
    return re.search(r"^```python\n(.*?)^```", readme, re.M | re.S)[1].replace('"cuda"', '"cpu"')


def try_wheel(wheel: Path, torch: str, python: str, folder: Path) -> None:
    """Installs the wheel and torch, and runs them with nothing else on PATH."""
    started = time.monotonic()
    log = folder.with_name(f"{folder.name}.log")
    log.write_text(f"{wheel.name}, torch {torch}\n")
    tools = environment(folder, python, f"torch=={torch}", f"torchvox[{EXTRAS}] @ {wheel.as_uri()}")
    seconds = time.monotonic() - started
    print(f"    {seconds:5.1f} s  installed with torch {torch} on {python}", flush=True)
    env = {"PATH": str(tools), "HOME": str(folder), "COLUMNS": "100"}
    for name in ("c++", "g++", "gcc", "nvcc"):
        assert shutil.which(name, path=env["PATH"]) is None, name
    imports = "import time, torch; t = time.perf_counter(); import torchvox, torchvox._C\n"
    imports += "print(f'import torchvox after torch: {time.perf_counter() - t:.2f} s')"
    programs = {
        "import": ("python", "-c", imports),
        "README's ten lines": ("python", "-c", ten_lines()),
        "torchvox doctor": ("torchvox", "doctor"),
        "torchvox demo": ("torchvox", "demo", "--device", "cpu", "-o", folder / "demo"),
    }
    for name, (program, *arguments) in programs.items():
        started = time.monotonic()
        said = call(tools / program, *arguments, env=env, cwd=folder)
        seconds = time.monotonic() - started
        with open(log, "a") as lines:
            lines.write(f"==== {name}: {seconds:.1f} s\n{said}\n")
        print(f"    {seconds:5.1f} s  {name}", flush=True)
    assert (folder / "demo" / "overview.png").stat().st_size > 10_000
    shutil.rmtree(folder)
    print(f"    {log.relative_to(ROOT)}")


def describe() -> None:
    toolkit = "" if shutil.which("nvcc") else ", which lacks nvcc here"
    for target in matrix():
        kind = "for the CPU alone" if target.endswith("cpu") else f"with its CUDA{toolkit}"
        print(f"  {target:8}  torch 2.{target[3:5]} {kind}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=matrix(), default=[], help="what to build")
    parser.add_argument("--here", action="store_true", help="for the torch of this environment")
    parser.add_argument("--try-all", action="store_true", help="try on each Python, not on one")
    options = parser.parse_args()
    pythons = interpreters()
    lacking = [version for version in PYTHONS if version not in pythons]
    print(f"one wheel for Python {', '.join(pythons)}", end="")
    print(f" (not on PATH with headers: {', '.join(lacking)})" if lacking else "")
    targets = options.only
    if options.here:
        facts = runpy.run_path(str(ROOT / "torchvox" / "_build.py"))["BUILD_INFO"]
        minor = "".join(facts["torch"].split(".")[:2])
        targets = [f"pt{minor}{'cu' if facts['cuda'] else 'cpu'}"]
    elif not targets:
        describe()
    for target in targets:
        torch, folder = f"2.{target[3:5]}.*", ROOT / "build" / "wheels" / target
        if options.here:
            torch, tools, cmake = facts["torch"], Path(sys.executable).parent, "cmake"
        else:
            wanted = [*PROJECT["build-system"]["requires"], f"torch=={torch}", "numpy"]
            wanted += PROJECT["project"]["optional-dependencies"]["wheel"]
            tools, cmake = environment(folder / "venv", sys.executable, *wanted), target
        started = time.monotonic()
        wheel = build(target, tools, folder, ROOT / "build" / cmake, pythons)
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.relative_to(ROOT)}\n    {time.monotonic() - started:5.1f} s  {size:.2f} MB")
        here = "{}.{}".format(*sys.version_info)
        for version in pythons if options.try_all else [here]:
            try:
                try_wheel(wheel, torch, pythons[version], folder / f"try{version}")
            except SystemExit as failure:  # newer torch leaves out old Pythons
                if version == here or "no wheels with a matching Python" not in str(failure):
                    raise
                print(f"    no torch {torch} for Python {version}")


if __name__ == "__main__":
    main()
