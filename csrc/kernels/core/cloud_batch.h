// SPDX-License-Identifier: Apache-2.0
//
// What kernels take in place of tensors: dtypes, integer arrays and batches of clouds.
#pragma once

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

// Calls body with a value of the type in which a dtype is computed: double for kDouble, else float.
template <class Body>
auto with_compute_type(DType dtype, Body&& body) {
  return dtype == DType::kDouble ? body(double{}) : body(float{});
}

TORCHVOX_HD int64_t bytes_of(DType dtype) {
  return dtype == DType::kDouble ? 8 : (dtype == DType::kFloat ? 4 : 2);
}

// Calls body(Word{}) with an unsigned integer of 8, 4 or 2 bytes.
template <class Body>
auto with_word(int64_t bytes, Body&& body) {
  switch (bytes) {
    case 8: return body(uint64_t{});
    case 4: return body(uint32_t{});
    default: return body(uint16_t{});
  }
}

// Loads element i of an array whose dtype is known at run time; stores one, rounded once.
template <class Real>
TORCHVOX_HD Real load_as(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kHalf: return widen(static_cast<const Half*>(data)[i]);
    case DType::kBFloat16: return widen(static_cast<const BFloat16*>(data)[i]);
    case DType::kDouble: return static_cast<Real>(static_cast<const double*>(data)[i]);
    case DType::kFloat: break;
  }
  return static_cast<const float*>(data)[i];
}
template <class Real>
TORCHVOX_HD void store_as(void* data, DType dtype, int64_t i, Real value) {
  switch (dtype) {
    case DType::kHalf: static_cast<Half*>(data)[i] = narrow<Half>(value); break;
    case DType::kBFloat16: static_cast<BFloat16*>(data)[i] = narrow<BFloat16>(value); break;
    case DType::kDouble: static_cast<double*>(data)[i] = value; break;
    case DType::kFloat: static_cast<float*>(data)[i] = narrow<float>(value); break;
  }
}

// int32 or int64 integers in device or host memory; null: the argument was not given.
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

// Binary search for the first i in [low, high) for which holds(i); it must hold for all later ones,
// too. `high` if there is none.
template <class Index, class Holds>
TORCHVOX_HD Index first_where(Index low, Index high, const Holds& holds) {
  while (low < high) {
    const Index middle = (low + high) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}
// Binary search for the last i for which holds(i); it must hold for all earlier ones, too. At least
// `low`.
template <class Index, class Holds>
TORCHVOX_HD Index last_where(Index low, Index high, const Holds& holds) {
  while (high - low > 1) {
    const Index middle = (low + high) / 2;
    if (holds(middle)) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// a / b for a >= 0 and b > 0, in 32 bits where both fit: a third of the cost on a GPU.
TORCHVOX_HD int64_t divide(int64_t a, int64_t b) {
  if ((static_cast<uint64_t>(a) | static_cast<uint64_t>(b)) >> 32 == 0) {
    return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  }
  return a / b;
}

// Where the points of one cloud are. Ops derive from it and add what else they know of a cloud.
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
  // The cloud of a row, -1 if the row is not an existing point; and the element where it starts.
  struct Place {
    int64_t cloud, element;
  };
  TORCHVOX_HD Place find(int64_t row) const {
    if (packed) return {packed_owner(row), row * row_stride};
    const int64_t b = divide(row, rows);
    return place(b, row - b * rows);
  }
  // The same for row i of cloud b; padded only.
  TORCHVOX_HD Place place(int64_t b, int64_t i) const {
    const bool is_point = !lengths.given() || i < lengths[b];
    return {is_point ? b : -1, b * cloud_stride + i * row_stride};
  }

  // Packed only: the row where the block of cloud b begins; the block of a row, or -1; whether a
  // row of block b is an existing point; the cloud of an existing point, or -1.
  TORCHVOX_HD int64_t offset(int64_t b) const {
    if (!offsets.given()) return b == 0 ? 0 : rows;
    const int64_t o = offsets[b];
    return o < 0 ? 0 : (o > rows ? rows : o);
  }
  TORCHVOX_HD int64_t block_of(int64_t row) const {
    if (!offsets.given()) return 0;
    if (clouds == 0 || row < offset(0) || row >= offset(clouds)) return -1;
    return last_where(int64_t{0}, clouds, [&](int64_t b) { return offset(b) <= row; });
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
