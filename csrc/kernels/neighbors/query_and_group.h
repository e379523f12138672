// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/neighbors/ball_query/ball_query.h"

namespace torchvox {

inline constexpr int kMostGroupedRadii = 8;

// What the coordinates of a row's slots are divided by: balls lie one after another.
struct GroupRadii {
  int count = 0;  // 0: by nothing
  int64_t end[kMostGroupedRadii] = {};  // slot behind the ball
  double radius[kMostGroupedRadii] = {};

  TORCHVOX_HD double of_slot(int64_t slot) const {
    int r = 0;
    while (r < count - 1 && slot >= end[r]) ++r;
    return radius[r];
  }
};

// grouped[row, s] = (p - q, f) of the point p that idx[row, s] names, its features f and the query
// q of the row. An index outside of the cloud's block stands for zeros, coordinates included.
// Differences, and quotients by the radius, are rounded to the dtype of the points.
struct QueryAndGroupArgs {
  const void* points = nullptr;  // [clouds, capacity, dims], unit column stride, as query
  const void* query = nullptr;  // [clouds, queries, dims]
  const void* features = nullptr;  // [clouds, capacity, channels], contiguous
  DType dtype = DType::kFloat;  // of points and query
  DType grouped_dtype = DType::kFloat;  // of features and grouped
  int64_t clouds = 0;
  int64_t capacity = 0;
  int64_t queries = 0;
  int64_t dims = 3;
  int64_t channels = 0;
  int64_t cloud_stride = 0;  // in elements, as all strides
  int64_t point_stride = 0;
  int64_t query_cloud_stride = 0;
  int64_t query_stride = 0;
  const int32_t* idx = nullptr;  // [clouds, queries, slots]
  int64_t slots = 0;
  GroupRadii radii;
  bool use_xyz = true;
  bool features_first = false;
  void* grouped = nullptr;  // [clouds, queries, slots, columns()], aligned to 16 bytes

  TORCHVOX_HD int64_t columns() const { return channels + (use_xyz ? dims : 0); }
  TORCHVOX_HD int64_t first_axis() const { return features_first ? channels : 0; }
  TORCHVOX_HD int64_t first_channel() const { return use_xyz && !features_first ? dims : 0; }
  // Whether a coordinate is a difference of floats and nothing else.
  TORCHVOX_HD bool plain_floats() const {
    return dtype == DType::kFloat && grouped_dtype == DType::kFloat && radii.count == 0;
  }
};

// From the gradient of grouped those of its coordinates, in the dtype of the points, before and
// after the subtraction: of each slot's point, and of the query, the sum over its slots in
// ascending order as chunked_sum.h says.
struct QueryAndGroupBackwardArgs {
  const void* grad = nullptr;  // [rows, slots, columns]
  DType grad_dtype = DType::kFloat;
  DType dtype = DType::kFloat;  // of the outputs
  int64_t rows = 0;
  int64_t slots = 0;
  int64_t columns = 0;
  int64_t first = 0;  // column of the first coordinate
  int64_t dims = 3;
  GroupRadii radii;
  void* grad_slots = nullptr;  // [rows, slots, dims], or null
  void* grad_query = nullptr;  // [rows, dims], or null
};

TORCHVOX_EXPORT int64_t workspace_bytes(const QueryAndGroupArgs& args, const Target& target);
TORCHVOX_EXPORT int64_t workspace_bytes(const QueryAndGroupBackwardArgs& args,
                                        const Target& target);
TORCHVOX_EXPORT void run_cpu(const QueryAndGroupArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
TORCHVOX_EXPORT void run_cpu(const QueryAndGroupBackwardArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const QueryAndGroupArgs& args, void* workspace,
                                   const CudaContext& context);
TORCHVOX_EXPORT cudaError_t launch(const QueryAndGroupBackwardArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
