// SPDX-License-Identifier: Apache-2.0
//
// Entry of group_mlp_max: the gather, a shared MLP and the maximum over each ball in one pass. On
// the GPU 16-bit layers run on tensor cores: prepare.cu packs the layers and computes the features'
// part of the first one, mma.cu all else, on tiles of mma_tiles.cuh. portable.cu takes the rest.
// plan.cpp chooses; rule.h says what a layer reads and gives. CPU: group_mlp_max_cpu.cpp.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/neighbors/ball_query/ball_query.h"

namespace torchvox {

inline constexpr int kMostMlpLayers = 8;

// One layer: max(weight x + bias, 0), both contiguous in the dtype of the output.
struct MlpLayer {
  const void* weight = nullptr;  // [out, in]
  const void* bias = nullptr;  // [out]
  int64_t in = 0;
  int64_t out = 0;
};

// out[row] = maximum over the slots of a row of its balls of the layers' result for
// (p - q, f): the point p that idx[row, slot] names, its features f and the query q of the row.
// Only the first count[row] slots are read, of a row without hits its first one. An index outside
// of the cloud's block stands for zeros, coordinates included.
struct GroupMlpArgs {
  CloudBatch points, query;  // padded, of one dtype and number of columns
  const void* features = nullptr;  // [clouds, points, channels], contiguous
  DType mlp_dtype = DType::kFloat;  // of features, layers and out
  int64_t channels = 0;
  const int32_t* idx = nullptr;  // [clouds * queries, slots], rows idx_stride apart
  int64_t slots = 0;
  int64_t idx_stride = 0;
  const int32_t* count = nullptr;  // [clouds * queries], count_stride apart
  int64_t count_stride = 1;
  bool use_xyz = true;
  bool features_first = false;
  double divisor = 0;  // of the relative coordinates; 0: none
  int layers = 0;
  MlpLayer layer[kMostMlpLayers];
  void* out = nullptr;  // [clouds * queries, layer[layers - 1].out]

  TORCHVOX_HD int64_t rows() const { return query.total_rows(); }
};

TORCHVOX_KERNEL(GroupMlpArgs);

}  // namespace torchvox
