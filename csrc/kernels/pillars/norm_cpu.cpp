// SPDX-License-Identifier: Apache-2.0
//
// The fused batch norm and its gradient on the CPU, in tasks of outputs.
#include "csrc/kernels/pillars/norm.h"

namespace torchvox {
namespace {

constexpr int64_t kOutputsPerTask = 64;

}  // namespace

void run_cpu(const PillarNormArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.outputs, kOutputsPerTask,
                 [&](int64_t output) { norm_output(args, output); });
}

void run_cpu(const PillarNormBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.norm.outputs, kOutputsPerTask,
                 [&](int64_t output) { norm_gradient(args, output); });
}

}  // namespace torchvox
