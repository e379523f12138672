// SPDX-License-Identifier: Apache-2.0
//
// The entry points of a kernel, which is known by the struct of its arguments:
//
//   workspace_bytes(args, target)           scratch memory of a call, from shapes alone
//   run_cpu(args, workspace, parallel_for)  on the host, in the caller's threads
//   launch(args, workspace, context)        on the caller's stream; CUDA builds only
//
// The host's file defines run_cpu() and workspace_bytes_cpu(), the .cu file launch() and
// workspace_bytes_cuda(); which one a call enters is said here alone.
#pragma once

#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

#define TORCHVOX_RUN_CPU(Args) \
  TORCHVOX_EXPORT void run_cpu(const Args& args, void* workspace, const ParallelFor& parallel_for)

#ifdef TORCHVOX_CUDA
#define TORCHVOX_LAUNCH(Args) \
  ;                           \
  TORCHVOX_EXPORT cudaError_t launch(const Args& args, void* workspace, const CudaContext& context)
#define TORCHVOX_WORKSPACE_CUDA(Args) \
  TORCHVOX_EXPORT int64_t workspace_bytes_cuda(const Args& args, const Target& target)
#else
#define TORCHVOX_LAUNCH(Args)
#define TORCHVOX_WORKSPACE_CUDA(Args) \
  inline int64_t workspace_bytes_cuda(const Args&, const Target&) { return 0; }
#endif

#define TORCHVOX_KERNEL(Args)                                                            \
  TORCHVOX_EXPORT int64_t workspace_bytes_cpu(const Args& args);                         \
  TORCHVOX_WORKSPACE_CUDA(Args);                                                         \
  inline int64_t workspace_bytes(const Args& args, const Target& target) {               \
    return target.cuda ? workspace_bytes_cuda(args, target) : workspace_bytes_cpu(args); \
  }                                                                                      \
  TORCHVOX_RUN_CPU(Args) TORCHVOX_LAUNCH(Args)

#define TORCHVOX_KERNEL_WITHOUT_WORKSPACE(Args)                            \
  inline int64_t workspace_bytes(const Args&, const Target&) { return 0; } \
  TORCHVOX_RUN_CPU(Args) TORCHVOX_LAUNCH(Args)
