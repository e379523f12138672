// SPDX-License-Identifier: Apache-2.0
//
// The reductions, and reading and writing values of a type known at run time.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/arith.h"
#include "csrc/kernels/core/cascade_sum.h"
#include "csrc/kernels/core/packed_points.h"

namespace torchvox {

enum class VoxelReduce { kNone, kMean, kMax, kMin, kSum };

template <class Real>
TORCHVOX_HD Real load_as(const void* data, DType dtype, int64_t i);
template <>
TORCHVOX_HD double load_as<double>(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kHalf: return widen(static_cast<const Half*>(data)[i]);
    case DType::kBFloat16: return widen(static_cast<const BFloat16*>(data)[i]);
    case DType::kFloat: return static_cast<const float*>(data)[i];
    default: return static_cast<const double*>(data)[i];
  }
}
template <>
TORCHVOX_HD float load_as<float>(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kHalf: return widen(static_cast<const Half*>(data)[i]);
    case DType::kBFloat16: return widen(static_cast<const BFloat16*>(data)[i]);
    case DType::kFloat: return static_cast<const float*>(data)[i];
    default: return static_cast<float>(static_cast<const double*>(data)[i]);
  }
}

// Rounds once, to nearest even.
template <class Real>
TORCHVOX_HD void store_as(void* data, DType dtype, int64_t i, Real value) {
  value = quiet(value);
  switch (dtype) {
    case DType::kHalf: static_cast<Half*>(data)[i] = narrow<Half>(value); break;
    case DType::kBFloat16: static_cast<BFloat16*>(data)[i] = narrow<BFloat16>(value); break;
    case DType::kFloat: static_cast<float*>(data)[i] = narrow<float>(value); break;
    default: static_cast<double*>(data)[i] = narrow<double>(value); break;
  }
}

TORCHVOX_HD int64_t bytes_of(DType dtype) {
  return dtype == DType::kDouble ? 8 : (dtype == DType::kFloat ? 4 : 2);
}

// The largest or smallest value and its point. The first NaN wins, as in torch.amax; of equal
// values
// (-0 equals +0) the first stays.
template <class Real>
struct Best {
  Real value = 0;
  int32_t point = -1;

  TORCHVOX_HD void add(Real x, int32_t index, bool smallest) {
    const bool better = smallest ? x < value : x > value;
    if (point < 0 || (!is_nan(value) && (better || is_nan(x)))) {
      value = x;
      point = index;
    }
  }
};

}  // namespace torchvox
