// SPDX-License-Identifier: Apache-2.0
//
// What kernels are given instead of tensors: dtypes, integer arrays and batches of clouds.
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

TORCHVOX_HD int64_t clamp_index(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : (x > high ? high : x);
}

// a / b of sizes, a >= 0 and b > 0: in 32 bits where they suffice, at a third of the price.
TORCHVOX_HD int64_t divide(int64_t a, int64_t b) {
  if ((static_cast<uint64_t>(a) | static_cast<uint64_t>(b)) >> 32 == 0) {
    return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  }
  return a / b;
}

// Where the points of one cloud lie. Structs that derive from it add what an op knows of a cloud.
struct CloudRows {
  int64_t first;  // position of its first point among all rows
  int64_t base;  // element where that point starts
  uint32_t points;
};

// Clouds of points in one of two layouts:
//   padded  `clouds` blocks of `rows` points each, of which `lengths` say how many exist
//   packed  `rows` points in all; cloud b owns the block [offset(b), offset(b + 1)), of which
//           `lengths` say how many exist; without offsets there is one cloud of all rows
// Lengths and offsets are read where the kernel runs and never trusted: whatever they hold, points
// stay inside the blocks, and blocks inside the rows.
struct CloudBatch {
  const void* data = nullptr;  // unit column stride
  DType dtype = DType::kFloat;
  bool packed = false;
  int64_t clouds = 1;
  int64_t rows = 0;  // below 2^31
  int64_t columns = 0;
  int64_t row_stride = 0;  // in elements
  int64_t cloud_stride = 0;  // in elements; padded only
  IndexArray offsets;  // [clouds + 1]; packed only
  IndexArray lengths;  // [clouds]; not given: all points of a block exist

  TORCHVOX_HD int64_t total_rows() const { return packed ? rows : clouds * rows; }

  TORCHVOX_HD CloudRows cloud(int64_t b) const {
    if (packed) {
      const int64_t first = offset(b);
      const int64_t end = clamp_index(offset(b + 1), first, rows);
      return {first, first * row_stride, existing(b, end - first)};
    }
    return {b * rows, b * cloud_stride, existing(b, rows)};
  }
  // Of any row: the cloud of an existing point, -1 for any other, and the element where it starts.
  struct Place {
    int64_t cloud;
    int64_t element;
  };
  TORCHVOX_HD Place find(int64_t row) const {
    if (packed) return {packed_owner(row), row * row_stride};
    const int64_t b = divide(row, rows), in_cloud = row - b * rows;
    const bool is_point = !lengths.given() || in_cloud < lengths[b];
    return {is_point ? b : -1, b * cloud_stride + in_cloud * row_stride};
  }

  // Packed only: where a block begins, the block of a row or -1, and whether a row of it exists.
  TORCHVOX_HD int64_t offset(int64_t b) const {
    if (!offsets.given()) return b == 0 ? 0 : rows;
    const int64_t o = offsets[b];
    return o < 0 ? 0 : (o > rows ? rows : o);
  }
  TORCHVOX_HD int64_t block_of(int64_t row) const {
    if (!offsets.given()) return 0;
    if (clouds == 0 || row < offset(0) || row >= offset(clouds)) return -1;
    int64_t low = 0, high = clouds;  // offset(low) <= row < offset(high)
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
  TORCHVOX_HD bool exists(int64_t row, int64_t b) const {
    return !lengths.given() || row - offset(b) < lengths[b];
  }
  TORCHVOX_HD int64_t packed_owner(int64_t row) const {
    const int64_t b = block_of(row);
    return b >= 0 && exists(row, b) ? b : -1;
  }

 private:
  TORCHVOX_HD uint32_t existing(int64_t b, int64_t block) const {
    return static_cast<uint32_t>(lengths.given() ? clamp_index(lengths[b], 0, block) : block);
  }
};

}  // namespace torchvox
