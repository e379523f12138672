# SPDX-License-Identifier: Apache-2.0
"""Checksums of all outputs and gradients of every op, over the calls of the acceptance tests.

python tests/checksums.py FILE            writes them, of the CPU and of the GPU where there is one
python tests/checksums.py FILE --against OLD   and names what differs from those of another build
"""

import argparse
import hashlib
import json
from pathlib import Path

import torch
from helpers import bits
from samples import OPS, leaves, on, run, sample_inputs, some_gradient, with_gradients


def checksum(outputs: tuple) -> str:
    digest = hashlib.sha256()
    for out in outputs:
        if out is not None:
            digest.update(f"{out.dtype} {tuple(out.shape)}".encode())
            digest.update(bits(out).numpy().tobytes())
    return digest.hexdigest()[:16]


def checksums(device: str) -> dict[str, str]:
    found = {}
    for op in OPS:
        for name, make in {**sample_inputs(op), "large": lambda op=op: op.call(3000, 1)}.items():
            call = with_gradients(op, on(device, make()))
            outs = run(op, call)
            found[f"{device} {op} {name}"] = checksum(outs)
            outs = [out for out in outs if out.requires_grad]
            if outs:
                given = [some_gradient(out) for out in outs]
                got = torch.autograd.grad(outs, leaves(op, call), given, allow_unused=True)
                found[f"{device} {op} {name} gradients"] = checksum(got)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    found = checksums("cpu") | (checksums("cuda") if torch.cuda.is_available() else {})
    options.file.write_text(json.dumps(found, indent=0) + "\n")
    if options.against is None:
        return 0
    before = json.loads(options.against.read_text())
    devices = {key.split()[0] for key in found}
    wanted = [key for key in before if key.split()[0] in devices]
    differ = [key for key in wanted if found.get(key) != before[key]]
    print(f"{len(wanted) - len(differ)} of {len(wanted)} checksums are equal", *differ, sep="\n")
    return bool(differ)


if __name__ == "__main__":
    raise SystemExit(main())
