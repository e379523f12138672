# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks [--device cuda] [--only voxel,sampling,bev] [--out build/bench.json]"""

import argparse
import os
from pathlib import Path

import torch

from benchmarks import bench_bev, bench_sampling, bench_voxel, timing

SUITES = {"voxel": bench_voxel, "sampling": bench_sampling, "bev": bench_bev}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default=",".join(SUITES))
    parser.add_argument("--out", type=Path, default=timing.ROOT / "build" / "bench.json")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("TORCHVOX_DATA", timing.ROOT.parent / "shared" / "data")),
    )
    options = parser.parse_args()
    rows = []
    for name in options.only.split(","):
        rows += SUITES[name].run(options.device, options.data)
    timing.save(rows, options.out)


if __name__ == "__main__":
    main()
