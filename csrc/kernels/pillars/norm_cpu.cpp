// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/pillars/norm.h"

namespace torchvox {
namespace {

constexpr int64_t kOutputsPerTask = 64;

}  // namespace

int64_t workspace_bytes(const PillarNormArgs&, const Target&) { return 0; }
int64_t workspace_bytes(const PillarNormBackwardArgs&, const Target&) { return 0; }

void run_cpu(const PillarNormArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.outputs, kOutputsPerTask,
                 [&](int64_t output) { norm_output(args, output); });
}

void run_cpu(const PillarNormBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.norm.outputs, kOutputsPerTask,
                 [&](int64_t output) { norm_gradient(args, output); });
}

}  // namespace torchvox
