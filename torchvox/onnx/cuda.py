# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime on a GPU, tensors in and out, beside torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox._util.extras import require

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, RunOptions

PROVIDER = "CUDAExecutionProvider"
# Types of elements by their numbers in ONNX, as arrays spell them.
TYPES = {1: "<f4", 2: "|u1", 3: "|i1", 6: "<i4", 7: "<i8", 9: "|b1", 10: "<f2", 11: "<f8"}


class CudaSession:
    """An ONNX file on a GPU. Called with tensors in the order of its inputs, it returns its outputs
    on the GPU; nothing goes through the host, and the current stream of torch waits for them, the
    host does not.

    path, options: of `torchvox.onnx.session`. device: a GPU; graph: the first call captures a CUDA
    graph, for which every node must have a kernel on the GPU. Later calls take inputs of the same
    shapes, and each writes over the outputs of the one before; `inputs`, filled in place and given
    again as they are, cost no copy. Without a graph it may be called from several threads.
    Raises as `session`; ValueError for inputs of other shapes or types than those of the graph.
    """

    def __init__(
        self,
        path: str | Path,
        device: str | torch.device = "cuda",
        graph: bool = False,
        **options: str,
    ) -> None:
        from torchvox.onnx import check_providers, session

        runtime = require("onnxruntime", "to run ONNX files")
        check_providers([PROVIDER], runtime.get_available_providers())
        index = torch.device(device).index
        self.device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        # The provider takes the default stream, which is 0, for none.
        self.stream = torch.cuda.Stream(self.device)
        own: dict[str, Any] = {
            "device_id": str(self.device.index),
            "user_compute_stream": str(self.stream.cuda_stream),
            "enable_cuda_graph": str(int(graph)),
            **options,
        }
        self.session: InferenceSession = session(path, providers=[PROVIDER], **own)
        self.graph = graph
        self.inputs: list[Tensor] | None = None  # of the graph
        self._outputs: tuple[Tensor, ...] = ()
        self._binding: IOBinding | None = None
        self._empty = torch.zeros(1, device=self.device)  # where tensors without elements are
        # A first run without a graph gives the shapes of the outputs, a second one captures. Every
        # one names its graph: where none is named, ONNX Runtime takes 80 us to find that out.
        self._first, self._capture, self._options = (runtime.RunOptions() for _ in range(3))
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        for one in (self._first, self._capture, self._options):
            number = "0" if graph and one is not self._first else "-1"
            one.add_run_config_entry("gpu_graph_id", number)
            one.log_severity_level = 4

    @torch.no_grad()
    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.device(self.device):  # ONNX Runtime leaves its device current
            if self.graph:
                outputs = self._replay(tensors)
            else:
                with torch.cuda.stream(self.stream):
                    outputs = self._run(self._contiguous(tensors), self._options)
        current.wait_stream(self.stream)
        for one in outputs:
            one.record_stream(current)
        return outputs

    def _contiguous(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [one.to(self.device, non_blocking=True).contiguous() for one in tensors]

    def _run(self, tensors: Sequence[Tensor], options: "RunOptions") -> tuple[Tensor, ...]:
        binding = self._bound(tensors, None)
        self.session.run_with_iobinding(binding, options)
        return tuple(self._copy_of(value) for value in binding.get_outputs())

    def _replay(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self.inputs is None:
            self.inputs = self._capture_graph(tensors)
        mine, got = ([(one.dtype, *one.shape) for one in some] for some in (self.inputs, tensors))
        expect(mine == got, f"CudaSession: inputs must be {mine} as in the graph", got)
        pairs = zip(self.inputs, tensors, strict=True)
        others = [(own, one) for own, one in pairs if own is not one]
        if others:
            with torch.cuda.stream(self.stream):
                for own, one in others:
                    own.copy_(one, non_blocking=True)
        self.session.run_with_iobinding(self._binding, self._options)
        return self._outputs

    def _capture_graph(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Captures the graph, and returns its inputs."""
        with torch.cuda.stream(self.stream):
            inputs = [one.clone() for one in self._contiguous(tensors)]
            self._outputs = self._run(inputs, self._first)
        self._binding = self._bound(inputs, self._outputs)
        self.session.run_with_iobinding(self._binding, self._capture)
        return inputs

    def _bound(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None) -> "IOBinding":
        """outputs: None: memory of ONNX Runtime."""
        binding = self.session.io_binding()
        for one, tensor in zip(self.session.get_inputs(), inputs, strict=True):
            binding.bind_input(one.name, *self._place(tensor))
        names = [one.name for one in self.session.get_outputs()]
        for i, name in enumerate(names):
            where = (self.device.type, self.device.index)
            binding.bind_output(name, *(where if outputs is None else self._place(outputs[i])))
        return binding

    def _place(self, tensor: Tensor) -> tuple[Any, ...]:
        dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        memory = tensor.data_ptr() or self._empty.data_ptr()
        return self.device.type, self.device.index, dtype, list(tensor.shape), memory

    def _copy_of(self, value: Any) -> Tensor:
        """Memory of ONNX Runtime as a tensor of torch's."""
        dtype, shape = TYPES[value.element_type()], tuple(value.shape())
        view = type("View", (), {})()
        memory = value.data_ptr() if 0 not in shape else self._empty.data_ptr()
        view.__cuda_array_interface__ = {
            **{"shape": shape, "typestr": dtype, "data": (memory, False)},
            **{"strides": None, "version": 2},
        }
        return torch.as_tensor(view, device=self.device).clone()
