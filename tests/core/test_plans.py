# SPDX-License-Identifier: Apache-2.0
"""No launch plan changes a bit: every combination of the plans of an op, over its sample inputs.

Plans of the GPU are compared with the CPU too, where nothing is forced.
"""

import re
from itertools import product

import pytest
from helpers import PLANS, ROOT, assert_same_bits, forced
from samples import OPS, on, run, sample_inputs

# Of a block size that must be one of a table, and of other bits: tests of their domains force them.
ELSEWHERE = {"fps_threads", "fps_points_per_thread", "group_mlp"}


def test_every_plan_of_the_kernels_belongs_to_an_op():
    headers = "".join(path.read_text() for path in (ROOT / "csrc/kernels").rglob("*.h"))
    names = set(re.findall(r'PlanOverride \w+\{\s*"(\w+)"', headers))
    assert names == {name for op in OPS for name in op.plans} | ELSEWHERE


def combinations(op, device: str) -> list[dict]:
    """Each a value of every plan of the op on that device."""
    names = [name for name in op.plans if device in PLANS[name].devices]
    values = product(*(PLANS[name].values for name in names))
    return [dict(zip(names, chosen, strict=True)) for chosen in values] if names else []


@pytest.mark.parametrize(
    ("op", "device", "plans"),
    [
        pytest.param(
            *(op, device, plans),
            id=f"{op}-{device}-{', '.join(map(str, plans.values()))}",
            marks=[pytest.mark.gpu] if device == "cuda" else [],
        )
        for op in OPS
        for device in ("cpu", "cuda")
        for plans in combinations(op, device)
    ],
)
def test_every_plan_gives_the_same_bits(op, device, plans):
    for name, make in {**sample_inputs(op), "3000": lambda: op.call(3000, 1)}.items():
        expected = run(op, make())
        with forced(**plans):
            outputs = run(op, on(device, make()))
        assert_same_bits(outputs, expected, f"{op}, {name}")
