// SPDX-License-Identifier: Apache-2.0
//
// All of an op's contact with devices: the caller's stream or thread pool, workspace from torch's
// allocator, and the status of a launch turned into an exception.
#pragma once

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#ifdef TORCHVOX_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <optional>

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/target.h"
#include "csrc/ops/core/register.h"

namespace torchvox {

// Threads of torch's pool that a CPU op called here may use, and the ParallelFor of the CPU
// kernels.
int cpu_threads();
void torch_parallel_for(int64_t count, const std::function<void(int64_t, int64_t)>& body);

// A contiguous tensor beside `like`, every element of which the op writes. It goes past the
// dispatcher, which for a small call costs more than the allocation, except where torch wants to
// fill new memory.
inline Tensor empty_beside(c10::SymIntArrayRef shape, at::ScalarType type, const Tensor& like) {
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);
  if (sizes && !at::globalContext().deterministicAlgorithms()) {
#ifdef TORCHVOX_CUDA
    if (like.is_cuda() && c10::cuda::current_device() == like.get_device()) {
      // empty_cuda, less the setting of a device that is set.
      return at::detail::empty_generic(*sizes, c10::cuda::CUDACachingAllocator::get(),
                                       c10::DispatchKeySet(c10::DispatchKey::CUDA), type,
                                       std::nullopt);
    }
    if (like.is_cuda()) return at::detail::empty_cuda(*sizes, type, like.device(), std::nullopt);
#endif
    if (like.is_cpu()) {
      return at::detail::empty_cpu(*sizes, type, /*pin_memory=*/false, std::nullopt);
    }
  }
  return at::empty_symint(shape, like.options().dtype(type).layout(at::kStrided));
}

// An output whose memory the kernel finds in `data`.
template <class T>
Tensor output(T*& data, c10::SymIntArrayRef shape, const Tensor& like) {
  const Tensor out = empty_beside(shape, c10::CppTypeToScalarType<T>::value, like);
  if (!like.is_meta()) data = out.mutable_data_ptr<T>();
  return out;
}
inline Tensor output(void*& data, c10::SymIntArrayRef shape, at::ScalarType type,
                     const Tensor& like) {
  const Tensor out = empty_beside(shape, type, like);
  if (!like.is_meta()) data = out.mutable_data_ptr();
  return out;
}

inline Tensor empty_as(const Tensor& like) {
  return empty_beside(like.sym_sizes(), like.scalar_type(), like);
}

// An output of the shape and dtype of `like`.
inline Tensor output_as(void*& data, const Tensor& like) {
  return output(data, like.sym_sizes(), like.scalar_type(), like);
}

// The gradient of `tensor`; [0] and null where it is not requested.
inline Tensor output_gradient(void*& data, const Tensor& tensor, bool requested) {
  return requested ? output_as(data, tensor) : empty_beside({0}, tensor.scalar_type(), tensor);
}

// Memory beside `on`, whose device is current, for one call. Bypasses at::empty, which would double
// the cost, except where torch fills new memory.
inline c10::DataPtr allocate(int64_t bytes, const Tensor& on) {
  if (bytes == 0) return {};
  if (at::globalContext().deterministicAlgorithms()) {
    return empty_beside({bytes}, at::kByte, on).storage().set_data_ptr({});
  }
#ifdef TORCHVOX_CUDA
  if (on.is_cuda()) {
    return c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<size_t>(bytes));
  }
#endif
  return c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes));
}

#ifdef TORCHVOX_CUDA
inline CudaContext cuda_context(const Tensor& on) {
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(on.get_device());
  CudaContext context;
  context.stream = c10::cuda::getCurrentCUDAStream(on.get_device());
  context.target.cuda = true;
  context.target.multiprocessors = properties->multiProcessorCount;
  context.target.shared_bytes = static_cast<int>(properties->sharedMemPerBlockOptin);
  context.target.compute_capability = 10 * properties->major + properties->minor;
  context.target.cooperative_launch = properties->cooperativeLaunch != 0;
  return context;
}

inline void check_status(const char* op, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed launch must not be reported again by somebody else's check
  TORCH_CHECK_WITH(OutOfMemoryError, status != cudaErrorMemoryAllocation, op,
                   ": out of memory on the GPU");
  TORCH_CHECK(false, op, ": the CUDA launch failed: ", cudaGetErrorString(status));
}
#endif

// Runs the kernels behind `args` where `on` lives. An op's arguments are a struct for which the
// kernel layer has workspace_bytes(), run_cpu() and, in a CUDA build, launch().
template <class Args>
void run(const char* op, const Tensor& on, const Args& args) {
#ifdef TORCHVOX_CUDA
  if (on.is_cuda()) {
    const c10::cuda::CUDAGuard guard(on.device());
    const CudaContext context = cuda_context(on);
    const c10::DataPtr workspace = allocate(workspace_bytes(args, context.target), on);
    check_status(op, launch(args, workspace.get(), context));
    return;
  }
#endif
  TORCH_CHECK(on.is_cpu(), op, ": tensors must be on the CPU or on a CUDA device, got ",
              on.device());
  Target target;
  target.threads = cpu_threads();
  const c10::DataPtr workspace = allocate(workspace_bytes(args, target), on);
  run_cpu(args, workspace.get(), torch_parallel_for);
}

inline DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return DType::kHalf;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kDouble: return DType::kDouble;
    default: return DType::kFloat;
  }
}

// Integers for a kernel; the tensor must be contiguous and outlive the call.
inline IndexArray index_array(const OptionalTensor& tensor) {
  if (!tensor) return {};
  return {tensor->const_data_ptr(), tensor->scalar_type() == at::kLong};
}

// The rows of a tensor with unit column stride, any other strides as they are.
inline Tensor readable(const Tensor& rows) {
  return rows.stride(-1) == 1 || rows.size(-1) == 1 ? rows : rows.contiguous();
}

// Contiguous memory for a kernel; copies live as long as this does.
class Memory {
 public:
  // readable(), kept as well.
  Tensor rows(const Tensor& tensor) { return kept_.emplace_back(readable(tensor)); }
  const void* of(const Tensor& tensor) { return keep(tensor).const_data_ptr(); }
  template <class T>
  const T* of(const Tensor& tensor) {
    return keep(tensor).const_data_ptr<T>();
  }
  IndexArray indices(const Tensor& tensor) {
    return {of(tensor), tensor.scalar_type() == at::kLong};
  }
  // Null for None.
  const void* of(const OptionalTensor& tensor) { return tensor ? of(*tensor) : nullptr; }
  template <class T>
  const T* of(const OptionalTensor& tensor) {
    return tensor ? of<T>(*tensor) : nullptr;
  }
  IndexArray indices(const OptionalTensor& tensor) {
    return tensor ? indices(*tensor) : IndexArray();
  }

 private:
  const Tensor& keep(const Tensor& tensor) {
    return tensor.is_contiguous() ? tensor : kept_.emplace_back(tensor.contiguous());
  }
  c10::SmallVector<Tensor, 4> kept_;
};

// Points as kernels see them, with the tensors that keep their memory alive: [B, N, D] padded, or
// [N, D] packed. Any row stride is read in place; only another column stride than one costs a copy.
struct Clouds {
  Tensor points;
  CloudBatch view;

  Clouds(const Tensor& points_in, const OptionalTensor& batch_offsets,
         const OptionalTensor& lengths)
      : points(readable(points_in)) {
    view.data = points.const_data_ptr();
    view.dtype = dtype_of(points.scalar_type());
    view.packed = points.dim() == 2;
    view.rows = points.size(-2);
    view.columns = points.size(-1);
    view.row_stride = points.stride(-2);
    if (!view.packed) {
      view.clouds = points.size(0);
      view.cloud_stride = points.stride(0);
    } else if (batch_offsets) {
      view.clouds = batch_offsets->size(0) - 1;
    }
    view.offsets = memory_.indices(batch_offsets);
    view.lengths = memory_.indices(lengths);
  }

 private:
  Memory memory_;
};

}  // namespace torchvox
