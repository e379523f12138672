# SPDX-License-Identifier: Apache-2.0
import pytest

for module in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(module, reason="the extra onnx is not installed")


@pytest.fixture
def device(device):
    """cpu, and cuda where ONNX Runtime has its provider."""
    from torchvox.onnx import has_cuda

    if device == "cuda" and not has_cuda():
        pytest.skip("onnxruntime has no CUDA provider")
    return device


@pytest.fixture(scope="session")
def detector_onnx(tmp_path_factory):
    """center_world_small as an ONNX file."""
    from torchvox import models
    from torchvox.models import export

    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    model = models.fuse_batch_norms(models.get_model("center_world_small", "default"))
    export.export_model(model, path, "onnx")
    return path
