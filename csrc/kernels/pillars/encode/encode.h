// SPDX-License-Identifier: Apache-2.0
//
// Entry of pillar_encode and its gradient. On the GPU ../prepare.cu lists the points of each pillar
// and the row of each cell, encode.cu encodes, backward.cu has the gradient; channel.h is the
// arithmetic of one channel. CPU: encode_cpu.cpp.
#pragma once

#include "csrc/kernels/pillars/map.h"

namespace torchvox {

// Who is the maximum of a pillar's channel, where it is not one of its points: an empty slot, or
// nobody whose gradient counts (the ReLU cut it, or the row is unused).
inline constexpr int32_t kPaddingWon = -1;
inline constexpr int32_t kNobodyWon = -2;

// canvas[b, y, x] = max over the pillar's points of relu(weight f + bias), f the decorated point;
// 0 where no pillar is.
struct PillarEncodeArgs {
  PillarMap map;
  const void* weight = nullptr;  // [outputs, map.decorated()]
  const void* bias = nullptr;  // [outputs]
  DType weight_dtype = DType::kFloat;
  int64_t outputs = 0;
  DType out_dtype = DType::kFloat;

  void* canvas = nullptr;  // [batches, ny, nx, outputs]
  int32_t* arg = nullptr;  // [rows, outputs]: the winning point; null: not wanted
  void* mean = nullptr;  // [rows, 3] float, double for wide(); null: not wanted

  // Whether it is computed in double.
  bool wide() const { return map.dtype == DType::kDouble || weight_dtype == DType::kDouble; }
};

// From the gradient of the canvas those of weight and bias.
struct PillarEncodeBackwardArgs {
  PillarMap map;  // without num_points and the rows of points
  const void* grad = nullptr;  // [batches, outputs, ny, nx], any strides
  DType grad_dtype = DType::kFloat;
  int64_t grad_strides[4] = {0, 0, 0, 0};  // in elements
  const int32_t* arg = nullptr;  // [rows, outputs]
  const void* mean = nullptr;  // [rows, 3] float, double for wide
  bool wide = false;
  int64_t outputs = 0;
  DType weight_dtype = DType::kFloat;

  void* grad_weight = nullptr;  // [outputs, map.decorated()]
  void* grad_bias = nullptr;  // [outputs]
};

TORCHVOX_KERNEL(PillarEncodeArgs);
TORCHVOX_KERNEL(PillarEncodeBackwardArgs);

}  // namespace torchvox
