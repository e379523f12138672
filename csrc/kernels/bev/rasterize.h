// SPDX-License-Identifier: Apache-2.0
//
// Entry of bev_rasterize, its gradient, and the cells by which points are grouped for an ordered
// mean: channels, planes, arguments. The tables and values are in rasterize_common.h.
#pragma once

#include "csrc/kernels/bev/grid.h"

namespace torchvox {

enum class BevChannel : int16_t {
  kHeightMax,
  kHeightMin,
  kHeightMean,
  kHeightRange,
  kHeightNorm,
  kIntensityTop,
  kIntensityMean,
  kIntensityMax,
  kCount,
  kDensity,
  kOccupancy,
  kSlices,
};

// One plane of the image. `slice` of `slices` and `table_row` (where its slicing begins in
// BevRasterTables::sliced) matter for kOccupancy and kSlices only.
struct BevPlane {
  BevChannel channel = BevChannel::kHeightMax;
  int16_t slice = 0;
  int16_t slices = 1;
  int16_t table_row = 0;
};

inline constexpr int kBevMaxPlanes = 256;
inline constexpr int kBevMaxDensityBase = 512;

// A column of intensities beside the points.
struct BevIntensity {
  const void* data = nullptr;  // [rows]
  DType dtype = DType::kFloat;
  int64_t stride = 1;  // in elements

  TORCHVOX_HD float operator[](int64_t row) const {
    const float value = load_as<float>(data, dtype, row * stride);
    return dtype == DType::kDouble ? quiet(value) : value;
  }
};

struct BevPlanes {
  int count = 0;
  int sliced_rows = 0;  // rows of the sliced table that all slicings need together
  BevPlane plane[kBevMaxPlanes];
};

// The flat cell of every point, b * cells + cell, or -1: what groups points for an ordered sum.
struct BevCellsArgs {
  CloudBatch points;
  BevGrid grid;
  int32_t* point_cell = nullptr;  // [rows]
};

struct BevRasterizeArgs {
  CloudBatch points;
  BevIntensity intensity;
  BevGrid grid;
  BevPlanes planes;
  float density[kBevMaxDensityBase];  // density of 0 .. density_base - 1 points
  int density_base = 0;
  double height_steps = 1.;  // steps a meter of the integer height sum
  float fill = 0.f;
  const int32_t* cell_offsets = nullptr;  // [batches * cells + 1], for kIntensityMean
  const int32_t* cell_points = nullptr;  // rows of the points, ascending in each cell
  float* image = nullptr;  // [batches, planes, cells]
  int32_t* counts = nullptr;  // [batches + 1, kBevCounts]
};

struct BevRasterizeBackwardArgs {
  CloudBatch points;
  BevGrid grid;
  BevPlanes planes;
  const float* grad_image = nullptr;  // [batches, planes, cells]
  void* grad_points = nullptr;  // [rows, columns] contiguous, dtype of the points
  void* grad_features = nullptr;  // [rows] contiguous; null: intensity is column 3
  DType features_dtype = DType::kFloat;
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(BevCellsArgs);
TORCHVOX_KERNEL(BevRasterizeArgs);
TORCHVOX_KERNEL(BevRasterizeBackwardArgs);

}  // namespace torchvox
