# SPDX-License-Identifier: Apache-2.0
"""The official programs' numbers: kept in golden.json, and live where a variable names their
interpreter.
"""

import json
import os

import golden
import pytest

from torchvox.evaluation import kitti, nuscenes


def ours(which, given):
    if which == "nuscenes":
        return nuscenes.evaluate(**given)
    return kitti.evaluate(given["truth"], given["found"], ["Car", "Pedestrian", "Cyclist"])


@pytest.mark.parametrize("which", golden.SIZES)
def test_the_kept_numbers_of_the_official_program_come_out(which):
    given = golden.inputs(which, golden.SEED, golden.SIZES[which], overlaps=False)
    kept = json.loads(golden.GOLDEN.read_text())[which]
    assert ours(which, given) == pytest.approx(kept, abs=1e-6, nan_ok=True)
    assert len(set(kept.values())) > 60  # there is something to tell apart


@pytest.mark.parametrize("which", golden.SIZES)
@pytest.mark.parametrize("seed", [2, 3])
def test_the_official_program_agrees(which, seed):
    variable = golden.VARIABLES[which]
    if variable not in os.environ:
        pytest.skip(f"{variable} names no interpreter (docs/evaluation.md)")
    given = golden.inputs(which, seed, golden.SIZES[which])
    expected = golden.official(which, given)
    given = {key: value for key, value in given.items() if key not in ("overlaps", "least")}
    assert ours(which, given) == pytest.approx(expected, abs=1e-6, nan_ok=True)
