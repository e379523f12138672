# SPDX-License-Identifier: Apache-2.0
"""Builds the CPU library for aarch64 on x86-64, tests it under qemu and compares its bits.

The build is that of setup.py with a cross compiler, Debian's Python for arm64 and torch's wheel,
which are fetched into build/aarch64. Then tests/checksums.py runs every op here, with the build in
place, and under qemu. `make aarch64` makes both builds.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "aarch64"
DEBIAN, SITE, PYTHON = BUILD / "debian", BUILD / "site", BUILD / "python"
CROSS = "aarch64-linux-gnu-"
TOOLS = {  # program -> package
    f"{CROSS}g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64-static": "qemu-user-static",
    "apt-get": "apt",
}
# Without torch's dependencies of CUDA, which are 2 GB; those of tests/samples.py too.
PACKAGES = (
    *("numpy", "filelock", "typing-extensions", "sympy", "mpmath", "networkx", "jinja2"),
    *("markupsafe", "fsspec", "pybind11", "pytest", "iniconfig", "pluggy", "packaging", "pygments"),
)


def call(*command: object, text: bool = False, **env: object) -> str:
    """What a program printed, if `text`; its failure is the end."""
    words = [str(word) for word in command]
    out = subprocess.PIPE if text else None
    environment = {**os.environ, **{name: str(value) for name, value in env.items()}}
    done = subprocess.run(words, cwd=ROOT, env=environment, stdout=out, text=True)
    if done.returncode:
        sys.exit(f"aarch64: {' '.join(words)} gave {done.returncode}")
    return done.stdout


def fetch_python() -> Path:
    """Debian's Python for arm64, unpacked with its headers and libraries into DEBIAN."""
    apt = BUILD / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()  # nothing is installed, so that all dependencies are fetched
    options = ["Debug::NoLocking=1", "APT::Architecture=arm64", "APT::Architectures=arm64"]
    options += [f"Dir::State::status={apt}/status", f"Dir::State::Lists={apt}/lists"]
    get = ["apt-get", "-qq", *(f"-o{option}" for option in (*options, f"Dir::Cache={apt}/cache"))]
    call(*get, "update")
    packages = "python3-minimal", "libpython3-stdlib", "libpython3-dev", "libstdc++6"
    call(*get, "install", "--yes", "--download-only", "--no-install-recommends", *packages)
    for package in apt.glob("cache/archives/*.deb"):
        call("dpkg", "-x", package, DEBIAN)
    [config] = DEBIAN.glob("usr/include/aarch64-linux-gnu/python3.*/pyconfig.h")
    # The other one includes it by a path in which the cross compiler does not look.
    shutil.copy(config, DEBIAN / "usr" / "include" / config.parent.name)
    return DEBIAN / "usr" / "bin" / config.parent.name


def write_stub() -> None:
    """In place of the libraries of CUDA that torch loads, one whose functions find no device."""
    folder = SITE / "torch" / "lib"
    libraries = list(folder.glob("*.so*"))
    dynamic = call(f"{CROSS}readelf", "-d", *libraries, text=True)
    table = call(f"{CROSS}nm", "-D", *libraries, text=True)
    defined = set(re.findall(r"^[0-9a-f]+ . ([^@\s]+)", table, re.M))
    source, versions = "int no_device(void) { return 100; }  // cudaErrorNoDevice\n", {}
    undefined = set(re.findall(r"^ +U ((?:__)?(?:cu|nv|nccl)[^@\s]*)@?(\S*)", table, re.M))
    for name, version in sorted(undefined):
        if name not in defined:
            source += f'int {name}(void) __attribute__((alias("no_device")));\n'
            versions.setdefault(version or "none", []).append(name)
    nodes = [f"{version} {{ {'; '.join(names)}; }};\n" for version, names in versions.items()]
    code, script, stub = BUILD / "stub.c", BUILD / "stub.map", BUILD / "stub.so"
    code.write_text(source)
    script.write_text("".join(nodes))
    options = "-shared", "-fPIC", "-w", f"-Wl,--version-script={script}"
    call(f"{CROSS}gcc", *options, "-o", stub, code)
    for name in set(re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl).*)\]", dynamic)):
        if not (folder / name).exists():
            (folder / name).symlink_to(stub)


def fetch() -> None:
    """Makes PYTHON: an aarch64 Python with torch that runs here."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    python = fetch_python()
    version = python.name.removeprefix("python")
    platforms = [f"--platform=manylinux_2_{glibc}_aarch64" for glibc in (28, 27, 17)]
    call(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"),
        *(f"--target={SITE}", f"--python-version={version}", *platforms),
        *(f"torch=={metadata.version('torch').split('+')[0]}", *PACKAGES),
    )
    write_stub()
    run = f"exec qemu-aarch64-static -L '{DEBIAN}' '{python}'"
    PYTHON.write_text(f"#!/bin/sh\nPYTHONPATH='{SITE}':$PYTHONPATH {run} \"$@\"\n")
    PYTHON.chmod(0o755)


def main() -> None:
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            sys.exit(f"aarch64: {tool} is missing; on Debian, run `apt-get install {package}`")
    if not PYTHON.exists():
        fetch()
    cmake = BUILD / "cmake"
    toolchain = ROOT / "configs" / "cmake" / "aarch64.cmake"
    call(
        *(sys.executable, "setup.py", "--quiet", "build", f"--build-lib={BUILD / 'lib'}"),
        TORCHVOX_BUILD_DIR=cmake,
        TORCHVOX_CMAKE_ARGS=f"--toolchain={toolchain} -DTORCHVOX_PYTHON={PYTHON}",
        TORCHVOX_CUDA=0,
        TORCHVOX_TORCH_DIRS=SITE / "torch",
    )
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
    call("cmake", "--build", cmake, "--target", "kernel_tests", "-j", jobs)
    call("ctest", "--test-dir", cmake, "--output-on-failure", "-j", jobs)
    calls, here = BUILD / "calls.pt", BUILD / "x86-64.json"
    calls.unlink(missing_ok=True)
    checksums = "tests/checksums.py", "--calls", calls
    call(sys.executable, *checksums, here, PYTHONPATH=ROOT)
    there = BUILD / "aarch64.json"
    call(PYTHON, *checksums, there, "--against", here, PYTHONPATH=BUILD / "lib")


if __name__ == "__main__":
    main()
