// SPDX-License-Identifier: Apache-2.0
//
// Entry of furthest point sampling. On the GPU (plan.cpp chooses) block.cu keeps a cloud in the
// registers of one block; lazy.cu shares a large one among a group of blocks, over tiles
// (tiles.cuh) of a spatial order; furthest_point_sample.cu puts them together and has the generic
// kernel. candidates.cuh takes many samples at a time, device.cuh has the argmax and the special
// slots; cloud.h is the rule of all. CPU: furthest_point_sample_cpu.cpp, over tiles_cpu.h.
#pragma once

#include <limits>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/spatial/candidates.h"

namespace torchvox {

// Counts, offsets and starts are read where the kernel runs and never trusted.
struct FpsArgs : CandidatePoints {
  // Padded: `samples` slots a cloud, of which `counts` are wanted. Packed: `samples` slots in all,
  // cloud b owns [out_offsets[b], out_offsets[b + 1]) of them.
  int64_t samples = 0;
  IndexArray counts;  // [clouds], padded only
  IndexArray out_offsets;  // [clouds + 1], packed only
  bool local_index = true;  // packed: indices count from the cloud's first point

  int64_t start = 0;  // used when start_idx is not given
  IndexArray start_idx;  // [clouds, starts]
  int64_t starts = 1;

  bool repeat = false;  // exhausted="repeat", else "distinct"
  bool nonfinite_last = false;  // nonfinite="last", else "skip"
  double init_dist2 = std::numeric_limits<double>::infinity();

  int32_t* idx = nullptr;  // [clouds, samples]; packed: [samples]
  void* dist2 = nullptr;  // as idx; double for double points, else float
};

TORCHVOX_KERNEL(FpsArgs);

}  // namespace torchvox
