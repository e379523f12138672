// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace torchvox {

// Threads of torch's pool that a CPU op called here may use.
int cpu_threads();

// The ParallelFor of the CPU kernels.
void torch_parallel_for(int64_t count, const std::function<void(int64_t, int64_t)>& body);

}  // namespace torchvox
