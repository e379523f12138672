// SPDX-License-Identifier: Apache-2.0
//
// The entry points of a kernel, overloaded on the struct of its arguments:
//
//   workspace_bytes(args, target)           scratch memory of a call, from shapes alone
//   run_cpu(args, workspace, parallel_for)  on the host, in the caller's threads
//   launch(args, workspace, context)        on the caller's stream; CUDA builds only
//
// The host's file defines run_cpu(), and workspace_bytes_cpu() unless both sides need the same; the
// .cu file launch() and workspace_bytes_cuda(). The choice between them is made here alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

// Carves typed ranges out of one block of bytes. The same carving code runs twice: over a null base
// to learn the size (`bytes()`), then over the block itself. Ranges start on 256-byte boundaries.
class Workspace {
 public:
  explicit Workspace(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* take(int64_t count) {
    T* range = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) & ~int64_t{255};
    return range;
  }
  int64_t bytes() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// The bytes that Work(args.., workspace) takes from a workspace.
template <class Work, class... Args>
int64_t carved_bytes(const Args&... args) {
  Workspace workspace;
  Work(args..., workspace);
  return workspace.bytes();
}
// Work(args.., workspace) over `memory`, which has carved_bytes<Work>(args..).
template <class Work, class... Args>
Work carve(void* memory, const Args&... args) {
  Workspace workspace(memory);
  return Work(args..., workspace);
}

// The caller's thread pool. Calls body(begin, end) on disjoint ranges that cover [0, count), in any
// order and on any thread. Kernels start no threads of their own.
using ParallelFor =
    std::function<void(int64_t count, const std::function<void(int64_t begin, int64_t end)>& body)>;

// Runs everything on the calling thread.
inline void serial_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  if (count > 0) body(0, count);
}

// body(begin, end) for ranges that cover [0, count), in tasks of `per_task` items.
template <class Body>
void for_each_range(const ParallelFor& parallel_for, int64_t count, int64_t per_task,
                    const Body& body) {
  parallel_for((count + per_task - 1) / per_task, [&](int64_t first, int64_t last) {
    body(first * per_task, std::min(last * per_task, count));
  });
}
// body(i) for every i below `count`.
template <class Body>
void for_each_index(const ParallelFor& parallel_for, int64_t count, int64_t per_task,
                    const Body& body) {
  for_each_range(parallel_for, count, per_task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

#ifdef TORCHVOX_CUDA
#define TORCHVOX_LAUNCH(Args) \
  TORCHVOX_EXPORT cudaError_t launch(const Args& args, void* workspace, const CudaContext& context);
#define TORCHVOX_WORKSPACE_CUDA(Args) \
  TORCHVOX_EXPORT int64_t workspace_bytes_cuda(const Args& args, const Target& target);
#else
#define TORCHVOX_LAUNCH(Args)
#define TORCHVOX_WORKSPACE_CUDA(Args) \
  inline int64_t workspace_bytes_cuda(const Args&, const Target&) { return 0; }
#endif

// A kernel whose workspace is the same on both: `bytes` is an expression over `args`.
#define TORCHVOX_KERNEL_WITH_WORKSPACE(Args, bytes)                                  \
  inline int64_t workspace_bytes([[maybe_unused]] const Args& args, const Target&) { \
    return bytes;                                                                    \
  }                                                                                  \
  TORCHVOX_LAUNCH(Args)                                                              \
  TORCHVOX_EXPORT void run_cpu(const Args& args, void* workspace, const ParallelFor& parallel_for)
#define TORCHVOX_KERNEL_WITHOUT_WORKSPACE(Args) TORCHVOX_KERNEL_WITH_WORKSPACE(Args, 0)
// A kernel with a workspace of its own on each.
#define TORCHVOX_KERNEL(Args)                                                            \
  TORCHVOX_EXPORT int64_t workspace_bytes_cpu(const Args& args);                         \
  TORCHVOX_WORKSPACE_CUDA(Args)                                                          \
  inline int64_t workspace_bytes(const Args& args, const Target& target) {               \
    return target.cuda ? workspace_bytes_cuda(args, target) : workspace_bytes_cpu(args); \
  }                                                                                      \
  TORCHVOX_LAUNCH(Args)                                                                  \
  TORCHVOX_EXPORT void run_cpu(const Args& args, void* workspace, const ParallelFor& parallel_for)

}  // namespace torchvox
