# SPDX-License-Identifier: Apache-2.0
"""Builds wheels, each with a binding for every supported minor version of torch, and tries them.

    python configs/wheels.py              list what can be built here
    python configs/wheels.py cpu cu13     build these (`make wheel` builds what can be built here)

One wheel serves all supported versions of torch, each of which has its binding in it, and every
Python 3.10 to 3.14 that is on PATH or named in TORCHVOX_PYTHONS, since torchvox._C alone depends on
Python's version. The bindings are compiled against the headers and libraries of torch's own wheels,
which are fetched from the package index and unpacked, not installed. The wheel is repaired into
dist/, installed beside each torch into an environment that has neither compiler nor toolkit, and
tried there. It needs uv, and for wheels with CUDA the toolkit; TORCH_CUDA_ARCH_LIST names their
architectures.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = [f"3.{minor}" for minor in range(10, 15)]
KINDS = ("cpu", "cu13")  # what the default wheels of all supported torches are built with
ARCHS = "7.5;8.0;8.6;9.0;10.0;12.0+PTX"
EXTRAS = "cli,viz"
# Of a wheel of torch: what a binding is compiled and linked with.
NEEDED = re.compile(
    r"torch/(version\.py|include/.*|lib/lib(torch|torch_cpu|torch_cuda|c10|c10_cuda)\.so)"
)


def torch_versions() -> list[str]:
    """The minor versions of torch that are supported."""
    oldest, newest = PROJECT["tool"]["torchvox"]["supported-torch"].split(" to ")
    minors = range(int(oldest.split(".")[1]), int(newest.split(".")[1]) + 1)
    return [f"2.{minor}" for minor in minors]


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


def unpacked_torch(minor: str) -> Path:
    """The folder `torch` of the newest wheel of a minor version, without what no build needs."""
    folder = ROOT / "build" / "wheels" / f"torch-{minor}"
    if not (folder / "torch").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
        only = ("--only-binary=:all:", "--python-version=3.12")
        call(*pip, *only, "--dest", folder, f"torch=={minor}.*")
        [wheel] = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if NEEDED.fullmatch(name)]
            archive.extractall(folder / "unpacked", names)
        (folder / "unpacked" / "torch").rename(folder / "torch")  # whole, or not there
        wheel.unlink()
    return folder / "torch"


def build(kind: str, label: str, pythons: dict[str, str]) -> Path:
    """The repaired wheel of a kind, in dist/. label: its local version, "" for none."""
    folder = ROOT / "build" / "wheels" / kind
    dependencies = PROJECT["project"]["optional-dependencies"]["wheel"]
    tools = environment(
        folder / "tools", sys.executable, *PROJECT["build-system"]["requires"], *dependencies
    )
    torches = [str(unpacked_torch(minor)) for minor in torch_versions()]
    env = {
        "TORCH_CUDA_ARCH_LIST": ARCHS,
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "TORCHVOX_BUILD_DIR": os.environ.get("TORCHVOX_BUILD_DIR", str(folder / "cmake")),
        "TORCHVOX_CUDA": str(int(kind != "cpu")),
        "TORCHVOX_LOCAL_VERSION": label,
        "TORCHVOX_PYTHONS": os.pathsep.join(pythons.values()),
        "TORCHVOX_TORCH_DIRS": os.pathsep.join(torches),
    }
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


def lack(kind: str) -> str:
    """What keeps this machine from building a kind, "" if nothing does."""
    return "needs nvcc on PATH" if kind != "cpu" and not shutil.which("nvcc") else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, "all", []], help="what to build")
    parser.add_argument("--index", action="store_true", help="no local version, as the index takes")
    parser.add_argument("--try-all", action="store_true", help="try on each Python, not on one")
    options = parser.parse_args()
    pythons = interpreters()
    lacking = [version for version in PYTHONS if version not in pythons]
    print(
        f"one wheel for torch {', '.join(torch_versions())} and Python {', '.join(pythons)}", end=""
    )
    print(f" (not on PATH with headers: {', '.join(lacking)})" if lacking else "")
    kinds = options.kinds
    if "all" in kinds:
        kinds = [kind for kind in KINDS if not lack(kind)]
    elif not kinds:
        print("\n".join(f"  {kind:6} {lack(kind)}".rstrip() for kind in KINDS))
    here = "{}.{}".format(*sys.version_info)
    for kind in kinds:
        started = time.monotonic()
        wheel = build(kind, "" if options.index else kind, pythons)
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.relative_to(ROOT)}\n    {time.monotonic() - started:5.1f} s  {size:.2f} MB")
        for torch in torch_versions():
            for version in pythons if options.try_all else [here]:
                folder = ROOT / "build" / "wheels" / kind / f"try-{torch}-{version}"
                try:
                    try_wheel(wheel, f"{torch}.*", pythons[version], folder)
                except SystemExit as failure:  # newer torch leaves out old Pythons
                    if version == here or "no wheels with a matching Python" not in str(failure):
                        raise
                    print(f"    no torch {torch} for Python {version}")


if __name__ == "__main__":
    main()
