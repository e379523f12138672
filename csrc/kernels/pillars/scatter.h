// SPDX-License-Identifier: Apache-2.0
//
// Entry of pillar_scatter and its gradient.
#pragma once

#include "csrc/kernels/pillars/map.h"

namespace torchvox {

// Copies rows of features to their cells, 0 where there is no row. Of several rows with the same
// cell the lowest counts.
struct PillarScatterArgs {
  PillarRows rows;
  const void* feats = nullptr;  // [rows, channels]
  DType dtype = DType::kFloat;
  int64_t channels = 0;
  void* canvas = nullptr;  // [batches, ny, nx, channels]
};

// The gradient of the features from that of the canvas.
struct PillarScatterBackwardArgs {
  PillarRows rows;
  const void* grad = nullptr;  // [batches, channels, ny, nx], any strides
  int64_t grad_strides[4] = {0, 0, 0, 0};  // in elements
  DType dtype = DType::kFloat;
  int64_t channels = 0;
  void* grad_feats = nullptr;  // [rows, channels]
};

// The row of each cell.
TORCHVOX_KERNEL_WITH_WORKSPACE(PillarScatterArgs, args.rows.cells() * 4);
TORCHVOX_KERNEL_WITH_WORKSPACE(PillarScatterBackwardArgs, args.rows.cells() * 4);

}  // namespace torchvox
