# SPDX-License-Identifier: Apache-2.0
"""Batch norm and max pooling of sparse rows."""

from functools import partial

import torch
from torch import Tensor

from .op_info import HALVES, Call, OpInfo, backward_call, cast, generator, in_dtypes, refused

CHANNELS = 5
TABLES = ("neighbors", "inverse", "arg")


def norm_call(n: int, seed: int = 0, channels: int = CHANNELS, evaluate: bool = False) -> Call:
    g = generator(seed)
    weight, bias, mean = (torch.randn(channels, generator=g) for _ in range(3))
    features = torch.randn(n, channels, generator=g) * 2 + 1
    given = {"mean": mean, "var": mean.square() + 0.1} if evaluate else {}
    return {"features": features, "weight": weight, "bias": bias, "eps": 1e-3, **given}


def norm_backward_call(n: int, seed: int = 0, **options) -> Call:
    forward = norm_call(n, seed, **options)
    return backward_call("sparse_batch_norm", forward, "features", "weight", "bias")


def padded(call: Call, valid: Tensor) -> Call:
    """The call with NaN in the rows that are not in use."""
    changed = {k: call[k].clone() for k in ("grad", "features") if k in call}
    for tensor in changed.values():
        tensor[max(int(valid.reshape(-1)[0]), 0) :] = float("nan")
    return {**call, **changed, "num_valid": valid}


def in_double(call: Call) -> Call:
    floats = [k for k, v in call.items() if torch.is_tensor(v) and v.is_floating_point()]
    return cast(call, **dict.fromkeys(floats, torch.double))


VALID = {
    f"{valid} in use": valid
    for valid in (
        torch.tensor(0), torch.tensor([-1]), torch.tensor([[1, 60], [7, 7]]).int(),
        torch.tensor([31, 2]), torch.tensor(61).int(),
    )
}  # fmt: skip


def norm_samples(call, *halved: str) -> dict:
    return {
        **{name: lambda v=v: padded(call(60), v) for name, v in VALID.items()},
        **{f"{n} rows": partial(call, n) for n in (32, 33, 1025)},
        "1025 of 4000 rows": lambda: padded(call(4000, channels=130), torch.tensor(1025)),
        **in_dtypes(lambda: call(40, channels=8), *halved, dtypes=HALVES),
        "float64": lambda: in_double(call(40)),
        "no channels": lambda: call(40, channels=0),
        "evaluation": lambda: padded(call(60, evaluate=True), torch.tensor(31)),
    }


def pool_call(n: int, seed: int = 0, channels: int = CHANNELS) -> Call:
    """n rows of a grid that half of them fill, some outside of it, to as many outputs."""
    g = generator(seed)
    side = max(round(n ** (1 / 3)), 1)
    indices = torch.randint(-1, side + 1, (n, 4), generator=g, dtype=torch.int32)
    indices[:, 0] %= 2
    _, neighbors, inverse, counts = torch.ops.torchvox.sparse_conv_map(
        indices, [side] * 3, 2, [3, 3, 3], stride=[2, 2, 2], padding=[1, 1, 1], max_rows=n
    )
    features = torch.randint(-4, 4, (n, channels), generator=g) * 0.5  # maxima tie
    features[3::11] = -0.0
    tables = {"neighbors": neighbors, "inverse": inverse}
    return {"features": features, **tables, "num_valid": counts}


def pool_backward_call(n: int, seed: int = 0) -> Call:
    return backward_call("sparse_max_pool", pool_call(n, seed), "features")


def wild_tables(call: Call) -> Call:
    """Entries that name no row."""
    g, tables = generator(2), {k: call[k].shape for k in TABLES if k in call}
    wild = {k: torch.randint(-3, 64, shape, generator=g).int() for k, shape in tables.items()}
    return {**call, **wild}


def pool_gradcheck() -> Call:
    call = pool_call(40, channels=2)
    return {**call, "features": torch.randn(40, 2, generator=generator(1), dtype=torch.double)}


OPS = [
    OpInfo(
        "sparse_batch_norm", norm_call, varying={"features": 0},
        sample_inputs=norm_samples(norm_call, "features"),
        gradients=("features", "weight", "bias"),
        gradcheck_inputs={
            "training": lambda: in_double(padded(norm_call(12), torch.tensor(9))),
            "evaluation": lambda: in_double(norm_call(12, evaluate=True)),
        },
        error_inputs=(
            *refused("eps", ValueError, "eps must be finite and above 0", 0.0, float("nan")),
            ("mean", torch.zeros(CHANNELS), ValueError, "mean and var must be given together"),
            ("weight", Tensor.double, TypeError, "weight must be float32, got float64"),
            ("features", Tensor.double, TypeError, "weight must be float64, got float32"),
        ),
        kernels=3, backward_kernels=3, plans=("sparse_cpu",),
    ),
    OpInfo("_sparse_batch_norm_backward", norm_backward_call, varying={"grad": 0, "features": 0},
           sample_inputs=norm_samples(norm_backward_call, "grad", "features"), kernels=3,
           plans=("sparse_cpu",)),
    OpInfo(
        "sparse_max_pool", pool_call, varying={"features": 0, "neighbors": 1, "inverse": 1},
        sample_inputs={
            **{name: lambda v=v: pool_call(60) | {"num_valid": v} for name, v in VALID.items()},
            "wild tables": lambda: wild_tables(pool_call(60)),
            "no offsets": lambda: (
                pool_call(40) | dict.fromkeys(TABLES[:2], torch.zeros(0, 40).int())
            ),
            "no channels": lambda: pool_call(40, channels=0),
            **in_dtypes(lambda: pool_call(40), "features"),
        },
        gradients=("features",), gradcheck_inputs={"plain": pool_gradcheck},
        error_inputs=(
            ("inverse", lambda t: t[1:], ValueError, r"inverse must be \[K, C\] with the K of nei"),
            ("neighbors", Tensor.long, TypeError, "neighbors must be int32, got int64"),
        ),
    ),
    OpInfo("_sparse_max_pool_backward", pool_backward_call,
           varying={"grad": 0, "arg": 0, "inverse": 1},
           sample_inputs={"wild tables": lambda: wild_tables(pool_backward_call(60)),
                          **in_dtypes(lambda: pool_backward_call(40), "grad")}),
]  # fmt: skip
