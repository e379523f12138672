// SPDX-License-Identifier: Apache-2.0
//
// What kernels are given instead of tensors: dtypes, integer arrays and packed batches of clouds.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/arith.h"

namespace torchvox {

enum class DType { kHalf, kBFloat16, kFloat, kDouble };

// Calls body(T{}) with the storage type of `dtype`.
template <class Body>
auto with_point_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kHalf: return body(Half{});
    case DType::kBFloat16: return body(BFloat16{});
    case DType::kDouble: return body(double{});
    case DType::kFloat: break;
  }
  return body(float{});
}

// int32 or int64 integers in device or host memory; null stands for an argument that was not given.
struct IndexArray {
  const void* data = nullptr;
  bool wide = false;  // int64

  TORCHVOX_HD bool given() const { return data != nullptr; }
  TORCHVOX_HD int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// A packed batch of clouds. Sample b owns the rows [begin(b), end(b)) of `data`; every other row is
// padding. The offsets are never trusted: whatever they hold, rows stay inside [0, rows].
struct PackedPoints {
  const void* data = nullptr;  // [rows, columns], unit column stride
  DType dtype = DType::kFloat;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;  // in elements
  int64_t batches = 1;
  IndexArray offsets;  // [batches + 1]; not given: one sample of all rows
  IndexArray num_valid;  // [batches]; not given: every row of a sample's block

  TORCHVOX_HD int64_t offset(int64_t b) const {
    if (!offsets.given()) return b == 0 ? 0 : rows;
    const int64_t o = offsets[b];
    return o < 0 ? 0 : (o > rows ? rows : o);
  }
  // The sample whose block [offset(b), offset(b + 1)) holds `row`, or -1.
  TORCHVOX_HD int64_t sample_of(int64_t row) const {
    if (!offsets.given()) return 0;
    if (batches == 0 || row < offset(0) || row >= offset(batches)) return -1;
    int64_t low = 0, high = batches;  // offset(low) <= row < offset(high)
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (offset(middle) <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
  // Whether `row` of the block of sample b is a point and not padding.
  TORCHVOX_HD bool is_valid(int64_t row, int64_t b) const {
    return !num_valid.given() || row - offset(b) < num_valid[b];
  }
  // The sample of a valid point, -1 for padding.
  TORCHVOX_HD int64_t valid_sample(int64_t row) const {
    const int64_t b = sample_of(row);
    return b >= 0 && is_valid(row, b) ? b : -1;
  }
};

}  // namespace torchvox
