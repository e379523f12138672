// SPDX-License-Identifier: Apache-2.0
//
// The kernels of maps.h on the CPU: tasks of elements.
#include "csrc/kernels/maps.h"

namespace torchvox {
namespace {

struct Cpu {
  const ParallelFor& parallel_for;

  template <auto kElement, int kThreads, class Args>
  void map(const Args& args, int64_t count, int64_t per_task) const {
    for_each_index(parallel_for, count, per_task, [&](int64_t i) { kElement(args, i); });
  }
};

}  // namespace

#define TORCHVOX_RUN_MAP(Args)                                             \
  void run_cpu(const Args& args, void*, const ParallelFor& parallel_for) { \
    map_elements(args, Cpu{parallel_for});                                 \
  }
TORCHVOX_MAPS(TORCHVOX_RUN_MAP)

}  // namespace torchvox
