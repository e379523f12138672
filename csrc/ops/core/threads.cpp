// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <pthread.h>

#include "csrc/ops/core/device.h"

namespace torchvox {
namespace {

// The threads of the OpenMP runtime do not survive a fork, and the first parallel region of the
// child would wait for them for ever.
bool forked = false;
[[maybe_unused]] const int registered =
    pthread_atfork(/*prepare=*/nullptr, /*parent=*/nullptr, /*child=*/[] { forked = true; });

}  // namespace

int cpu_threads() {
#ifdef _OPENMP
  return forked || at::in_parallel_region() ? 1 : at::get_num_threads();
#else
  return 1;  // at::parallel_for is serial too
#endif
}

void torch_parallel_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  if (cpu_threads() == 1) return serial_for(count, body);
  at::parallel_for(0, count, 1, body);
}

}  // namespace torchvox
