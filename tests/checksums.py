# SPDX-License-Identifier: Apache-2.0
"""Checksums of all outputs and gradients of every op, over the calls of the acceptance tests.

python tests/checksums.py FILE            writes them, of the CPU and of the GPU where there is one
python tests/checksums.py FILE --against OLD   and names what differs from those of another build
python tests/checksums.py FILE --calls CALLS   of the calls stored in CALLS, which the first run
writes: torch's random numbers differ between processors
"""

import argparse
import hashlib
import json
from pathlib import Path

import torch
from helpers import bits
from samples import OPS, Call, leaves, on, run, sample_inputs, some_gradient, with_gradients
from samples import with_special_values as special


def checksum(outputs: tuple) -> str:
    digest = hashlib.sha256()
    for out in outputs:
        if out is not None:
            digest.update(f"{out.dtype} {tuple(out.shape)}".encode())
            digest.update(bits(out).numpy().tobytes())
    return digest.hexdigest()[:16]


def stored_calls(file: Path | None) -> dict[str, dict[str, Call]]:
    """The calls of each op, also with special values; from the file, or stored there."""
    if file is not None and file.exists():
        return torch.load(file)
    calls: dict[str, dict[str, Call]] = {}
    for op in OPS:
        makes = {**sample_inputs(op), "large": lambda op=op: op.call(3000, 1)}
        made = {name: make() for name, make in makes.items()}
        calls[str(op)] = made | {f"{name}, special": special(op, made[name]) for name in made}
    if file is not None:
        torch.save(calls, file)
    return calls


def checksums(device: str, calls: dict[str, dict[str, Call]]) -> dict[str, str]:
    found = {}
    for op in OPS:
        for name, call in calls[str(op)].items():
            call = with_gradients(op, on(device, call))
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
    parser.add_argument("--calls", type=Path)
    options = parser.parse_args()
    calls = stored_calls(options.calls)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    found = {key: value for device in devices for key, value in checksums(device, calls).items()}
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
