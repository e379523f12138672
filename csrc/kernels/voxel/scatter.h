// SPDX-License-Identifier: Apache-2.0
//
// Entry of voxel_csr, voxel_scatter and its gradient, and the rule of one element, for the host's
// loops and the device's threads.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/ordered_sum.h"

namespace torchvox {

// Lists the points of each row: row r owns perm[offsets[r] .. offsets[r + 1]), ascending. A point
// whose row is outside [0, rows) is dropped; the tail of perm is -1.
struct VoxelCsrArgs {
  const int32_t* point_voxel = nullptr;  // [points]
  int64_t points = 0, rows = 0;
  int32_t* offsets = nullptr;  // [rows + 1]
  int32_t* perm = nullptr;  // [points]
};

TORCHVOX_KERNEL(VoxelCsrArgs);

enum class ScatterReduce { kMean, kSum, kMax, kMin };

// Reduces the rows that voxel_csr lists. Offsets and perm may come from the caller: whatever they
// hold, no access leaves the buffers.
struct VoxelScatterArgs {
  const void* feats = nullptr;  // [points, channels] contiguous
  DType dtype = DType::kFloat;
  ScatterReduce reduce = ScatterReduce::kMean;
  int64_t points = 0, channels = 0, rows = 0;
  const int32_t* offsets = nullptr;  // [rows + 1]
  const int32_t* perm = nullptr;  // [points]
  void* out = nullptr;  // [rows, channels]
  int32_t* arg = nullptr;  // [rows, channels] for kMax and kMin
};

struct VoxelScatterBackwardArgs {
  const void* grad = nullptr;  // [rows, channels] contiguous
  DType dtype = DType::kFloat;
  ScatterReduce reduce = ScatterReduce::kMean;
  int64_t points = 0, channels = 0, rows = 0;
  const int32_t* point_voxel = nullptr;  // [points]
  const int32_t* offsets = nullptr;  // [rows + 1]
  const int32_t* arg = nullptr;  // [rows, channels] for kMax and kMin
  void* grad_feats = nullptr;  // [points, channels]
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(VoxelScatterArgs);
TORCHVOX_KERNEL_WITHOUT_WORKSPACE(VoxelScatterBackwardArgs);

template <class T>
TORCHVOX_HD void scatter_sum(const VoxelScatterArgs& args, int64_t i, int64_t begin, int64_t end) {
  using Sum = compute_t<T>;
  const T* feats = static_cast<const T*>(args.feats);
  const int64_t channel = i % args.channels;
  CascadeSum<Sum> sum;
  for (int64_t k = begin; k < end; ++k) {
    const int64_t point = args.perm[k];
    if (point >= 0 && point < args.points) sum.add(widen(feats[point * args.channels + channel]));
  }
  Sum value = sum.total();
  if (args.reduce == ScatterReduce::kMean && end > begin) value /= static_cast<Sum>(end - begin);
  static_cast<T*>(args.out)[i] = narrow<T>(quiet(value));
}

// The first NaN wins, else the first of the extreme values; -0 and +0 are equal.
template <class T>
TORCHVOX_HD void scatter_extreme(const VoxelScatterArgs& args, int64_t i, int64_t begin,
                                 int64_t end) {
  const T* feats = static_cast<const T*>(args.feats);
  const int64_t channel = i % args.channels;
  const bool is_max = args.reduce == ScatterReduce::kMax;
  T best = narrow<T>(0.f);
  int32_t arg = -1;
  for (int64_t k = begin; k < end; ++k) {
    const int64_t point = args.perm[k];
    if (point < 0 || point >= args.points) continue;
    const T value = feats[point * args.channels + channel];
    const auto v = widen(value), b = widen(best);
    const bool better = is_nan(v) ? !is_nan(b) : (is_max ? v > b : v < b);
    if (arg < 0 || better) {
      best = value;
      arg = static_cast<int32_t>(point);
    }
  }
  static_cast<T*>(args.out)[i] = narrow<T>(quiet(widen(best)));
  args.arg[i] = arg;
}

// Element i = row * channels + channel of the outputs.
template <class T>
TORCHVOX_HD void scatter_element(const VoxelScatterArgs& args, int64_t i) {
  const int64_t row = i / args.channels;
  const int64_t begin = clamp_index(args.offsets[row], 0, args.points);
  const int64_t end = clamp_index(args.offsets[row + 1], 0, args.points);
  if (args.reduce == ScatterReduce::kMean || args.reduce == ScatterReduce::kSum) {
    scatter_sum<T>(args, i, begin, end);
  } else {
    scatter_extreme<T>(args, i, begin, end);
  }
}

// Element i = point * channels + channel of the gradient.
template <class T>
TORCHVOX_HD void scatter_gradient(const VoxelScatterBackwardArgs& args, int64_t i) {
  using Value = compute_t<T>;
  const int64_t point = i / args.channels, channel = i % args.channels;
  const int64_t row = args.point_voxel[point];
  Value value = 0;
  if (row >= 0 && row < args.rows) {
    const int64_t at = row * args.channels + channel;
    const Value grad = widen(static_cast<const T*>(args.grad)[at]);
    switch (args.reduce) {
      case ScatterReduce::kSum: value = grad; break;
      case ScatterReduce::kMean: {
        const int64_t count = clamp_index(args.offsets[row + 1], 0, args.points) -
            clamp_index(args.offsets[row], 0, args.points);
        value = count > 0 ? grad / static_cast<Value>(count) : grad;
        break;
      }
      case ScatterReduce::kMax:
      case ScatterReduce::kMin: value = args.arg[at] == point ? grad : Value(0); break;
    }
  }
  static_cast<T*>(args.grad_feats)[i] = narrow<T>(quiet(value));
}

}  // namespace torchvox
