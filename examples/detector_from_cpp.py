# SPDX-License-Identifier: Apache-2.0
"""A trained detector without Python: C++ runs its exported program on a generated scan and finds
exactly the boxes that the model finds here.

    torchvox train center_world_small -o run
    torchvox export run/model.pt --no-fuse -o run/program.pt
    python examples/detector_from_cpp.py run/model.pt run/program.pt

Needs cmake and a C++ compiler; `make detect-demo` runs all of it.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import torch

import torchvox
from torchvox.data import World
from torchvox.models import checkpoints

SOURCE = Path(__file__).parent / "cpp"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model.pt of torchvox train")
    parser.add_argument("program", type=Path, help="TorchScript of torchvox export --no-fuse")
    parser.add_argument("--runner", type=Path, help="detector_runner, if it is built already")
    args = parser.parse_args()
    scan = World("val", reach=40).batch([0])
    points = scan["points"][:, : int(scan["num_points"][0])].contiguous()
    model = checkpoints.load(args.model)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        runner = args.runner or build(folder / "build")
        points.numpy().tofile(folder / "scan.bin")
        call(runner, args.program, points.size(2), folder / "outputs.pt", folder / "scan.bin")
        outputs = torch.load(folder / "outputs.pt", weights_only=True)
        expected = model(points, scan["num_points"])
    same = all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
    print(f"{int(outputs[3][0])} boxes from C++, {'the' if same else 'NOT the'} bits of the model")
    if not same:
        raise SystemExit(1)


def build(folder: Path) -> Path:
    prefix = f"-DCMAKE_PREFIX_PATH={torchvox.cmake_prefix_path}"
    call("cmake", "-S", SOURCE, "-B", folder, prefix, "-DCMAKE_BUILD_TYPE=Release")
    call("cmake", "--build", folder, "--target", "detector_runner")
    return folder / "detector_runner"


def call(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    main()
