// SPDX-License-Identifier: Apache-2.0
//
// A device allocator for torch.cuda.memory.CUDAPluggableAllocator that counts the blocks in use and
// fails on request, as torch's own allocator does on a full GPU.
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <atomic>

namespace {
std::atomic<int64_t> in_use{0}, asked{0}, fail_at{0};
}

extern "C" {
void* allocate(ssize_t size, int device, cudaStream_t stream) {
  if (size == 0) return nullptr;  // which torch does not give back
  TORCH_CHECK_WITH(OutOfMemoryError, ++asked != fail_at, "CUDA out of memory, as planned");
  void* data = nullptr;
  TORCH_CHECK(cudaMalloc(&data, size) == cudaSuccess, "cudaMalloc failed");
  ++in_use;
  return data;
}

void release(void* data, ssize_t size, int device, cudaStream_t stream) {
  if (data == nullptr) return;
  cudaFree(data);
  --in_use;
}

int64_t blocks_in_use() { return in_use; }
int64_t blocks_asked_for() { return asked; }
// The n-th block from now on is refused; 0: none.
void refuse(int64_t n) { fail_at = n ? asked + n : 0; }
}
