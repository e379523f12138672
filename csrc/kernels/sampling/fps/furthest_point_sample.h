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
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

// Batched: `clouds` blocks of `capacity` points each. Ragged: `capacity` packed points in all,
// cloud b owns [ptr[b], ptr[b + 1]) of them and the output slots [out_ptr[b], out_ptr[b + 1]).
// Lengths, counts, offsets and starts are read on the device and never trusted.
struct FpsArgs {
  const void* points = nullptr;  // unit column stride
  DType dtype = DType::kFloat;
  bool ragged = false;
  int64_t clouds = 0;
  int64_t capacity = 0;  // below 2^31
  int64_t dims = 3;
  int64_t cloud_stride = 0;  // in elements; batched only
  int64_t point_stride = 0;  // in elements
  int64_t samples = 0;  // slots per cloud; ragged: slots in all

  IndexArray lengths;  // [clouds], batched only
  IndexArray counts;  // [clouds], batched only
  IndexArray ptr;  // [clouds + 1], ragged only
  IndexArray out_ptr;  // [clouds + 1], ragged only
  bool local_index = true;  // ragged: indices count from the cloud's first point

  int64_t start = 0;  // used when start_idx is not given
  IndexArray start_idx;  // [clouds, starts]
  int64_t starts = 1;

  int tie_block = 1;  // T of TieRule: 1 is "lowest", else mmcv's rule
  DistOrder order = DistOrder::kPn2;  // kLoop unless dims == 3
  bool repeat = false;  // exhausted="repeat", else "distinct"
  bool nonfinite_last = false;  // nonfinite="last", else "skip"
  bool skip_origin = false;  // dims == 3 only
  double init_dist2 = std::numeric_limits<double>::infinity();

  int32_t* idx = nullptr;  // [clouds, samples]; ragged: [samples]
  void* dist2 = nullptr;  // as idx; double for double points, else float
};

TORCHVOX_KERNEL(FpsArgs);

}  // namespace torchvox
