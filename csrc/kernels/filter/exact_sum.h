// SPDX-License-Identifier: Apache-2.0
//
// Sums that do not depend on order: a sum is one or three words that are added as 64-bit integers,
// and a mean is computed from them. Entry of voxel_sum, voxel_mean and voxel_mean_of_sums.
//
//   int32, int64  one word: the sum, modulo 2^64
//   floats        three words: the sum of floor(f); the sum of f - floor(f) in units of 2^-32, each
//                 rounded half to even; the number of finite values, plus 2^32 for each of 2^31 or
//                 more in size, which adds nothing to the first two
#pragma once

#include <type_traits>

#include "csrc/kernels/core/map.h"

namespace torchvox {

enum class ValueType { kHalf, kBFloat16, kFloat, kDouble, kInt, kLong };

// Calls body(T{}) with the storage type.
template <class Body>
auto with_value_type(ValueType type, const Body& body) {
  switch (type) {
    case ValueType::kHalf: return body(Half{});
    case ValueType::kBFloat16: return body(BFloat16{});
    case ValueType::kFloat: return body(float{});
    case ValueType::kDouble: return body(double{});
    case ValueType::kInt: return body(int32_t{});
    case ValueType::kLong: break;
  }
  return body(int64_t{});
}

template <class T>
inline constexpr int kSumWords = std::is_integral_v<T> ? 1 : 3;

// floor(a / b) for b from 1 to 2^32, and the remainder: by a product in fp64 where that is off by
// at most one, since an integer division costs a GPU five times as much.
TORCHVOX_HD int64_t floor_divide(int64_t a, int64_t b, double inverse, int64_t* rest) {
  constexpr double kNear = 1125899906842624.0;  // 2^50
  const double near = static_cast<double>(a) * inverse;
  int64_t quotient = near < kNear && near > -kNear ? static_cast<int64_t>(near) : a / b;
  // Modulo 2^64: the product may reach 2^63.
  *rest = static_cast<int64_t>(static_cast<uint64_t>(a) -
                               static_cast<uint64_t>(quotient) * static_cast<uint64_t>(b));
  const int64_t step = (*rest >= b) - (*rest < 0);
  *rest -= step * b;
  return quotient + step;
}

// value * 2^-32, rounded once.
template <class T>
TORCHVOX_HD T from_fixed(int64_t value) {
  constexpr double kUnit = 1.0 / 4294967296.0;
  if (std::is_same_v<T, double>) return narrow<T>(static_cast<double>(value) * kUnit);
  // Bits beyond those of a double become one sticky bit: set if any of them is.
  uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  double scale = value < 0 ? -kUnit : kUnit;
  if (size >> 53) {
    size = size >> 10 | ((size & 1023) != 0);
    scale *= 1024;
  }
  return narrow<T>(size == 0 ? 0.0 : static_cast<double>(size) * scale);
}

template <class T>
struct ExactSum {
  uint64_t words[kSumWords<T>] = {};

  // Adding one of these rounds a double half to even and leaves it as an integer in the low bits.
  static constexpr double kToEven = 4503599627370496.0, kSigned = 1.5 * kToEven;  // 2^52

  // Whether fixed() represents the float exactly as the two words do: f - floor(f) is exact and
  // does not round to 1.
  static TORCHVOX_HD bool is_near(T value) {
    if constexpr (std::is_integral_v<T> || sizeof(T) > sizeof(float)) {
      return false;
    } else {
      const float f = static_cast<float>(widen(value));
      return (f < 524288.0f) & (f > -524288.0f) & ((f >= 0) | (f <= -0x1p-29f));  // no jumps
    }
  }
  // Such a value in units of 2^-32.
  static TORCHVOX_HD uint64_t fixed(T value) {
#ifdef __CUDA_ARCH__
    return static_cast<uint64_t>(__float2ll_rn(static_cast<float>(widen(value)) * 4294967296.0f));
#else
    return bit_cast<uint64_t>(widen(value) * 4294967296.0 + kSigned) - bit_cast<uint64_t>(kSigned);
#endif
  }
  // Adds the sum of `n` of them, n up to 2^12, so that the sum stays below 2^63.
  TORCHVOX_HD void add_fixed(uint64_t sum, uint64_t n) {
    words[0] += static_cast<uint64_t>(static_cast<int64_t>(sum) >> 32);
    words[1] += sum & 0xffffffffu;
    words[2] += n;
  }

  TORCHVOX_HD void add(T value) {
    if constexpr (std::is_integral_v<T>) {
      words[0] += static_cast<uint64_t>(value);
    } else {
      if (is_near(value)) return add_fixed(fixed(value), 1);
      const double f = widen(value);
      if (!(f < 2147483648.0 && f > -2147483648.0)) {
        if (is_finite(f)) words[2] += (uint64_t{1} << 32) + 1;
        return;
      }
      double whole = f + kSigned - kSigned;
      if (whole > f) whole -= 1;
      const double fraction = (f - whole) * 4294967296.0;
      words[0] += static_cast<uint64_t>(
          int64_t{static_cast<int32_t>(bit_cast<uint64_t>(whole + kSigned) & 0xffffffffu)});
      words[1] += bit_cast<uint64_t>(fraction + kToEven) - bit_cast<uint64_t>(kToEven);
      ++words[2];
    }
  }

  // Mean over `points` points, rounded half up to a whole number, or to 2^-32 and then to T. NaN if
  // no value is finite or one is too large; 0 if there is no point.
  TORCHVOX_HD T mean(int64_t points) const {
    if (points <= 0) return T{};
    int64_t rest;
    if constexpr (std::is_integral_v<T>) {
      const int64_t sum = static_cast<int64_t>(words[0]);
      const int64_t quotient = floor_divide(sum, points, 1.0 / static_cast<double>(points), &rest);
      return static_cast<T>(quotient + (rest >= points - rest));
    } else {
      const int64_t n = static_cast<int64_t>(words[2] & 0xffffffffu);
      if (n == 0 || words[2] >> 32) return narrow<T>(bit_cast<float>(0x7fc00000u));
      if (n == 1) return from_fixed<T>(static_cast<int64_t>((words[0] << 32) + words[1]));
      const double inverse = 1.0 / static_cast<double>(n);
      const int64_t whole = static_cast<int64_t>(words[0]);
      if (whole < (1 << 28) && whole > -(1 << 28) && words[1] >> 60 == 0) {  // in one word
        const int64_t sum = static_cast<int64_t>((words[0] << 32) + words[1]);
        return from_fixed<T>(floor_divide(sum + n / 2, n, inverse, &rest));
      }
      const int64_t quotient = floor_divide(whole, n, inverse, &rest);
      const uint64_t count = static_cast<uint64_t>(n);
      const uint64_t parts = (static_cast<uint64_t>(rest) << 32) + words[1] + count / 2;
      const uint64_t fraction = parts >> 63
          ? parts / count
          : static_cast<uint64_t>(floor_divide(static_cast<int64_t>(parts), n, inverse, &rest));
      return from_fixed<T>(
          static_cast<int64_t>((static_cast<uint64_t>(quotient) << 32) + fraction));
    }
  }
};

// Sums or means of the rows that voxel_group lists. Offsets and perm may come from the caller:
// whatever they hold, no access leaves the buffers.
struct VoxelSumArgs {
  const void* values = nullptr;  // [points, columns] contiguous
  ValueType type = ValueType::kFloat;
  int64_t points = 0, columns = 0, rows = 0;
  const int32_t* offsets = nullptr;  // [rows + 1]
  const int32_t* perm = nullptr;  // [points]
  int64_t* sums = nullptr;  // [rows, columns * words]; null: write means
  void* means = nullptr;  // [rows, columns]

  TORCHVOX_HD int64_t begin_of(int64_t row) const { return clamp_index(offsets[row], 0, points); }
  TORCHVOX_HD int64_t end_of(int64_t row) const { return clamp_index(offsets[row + 1], 0, points); }
  template <class T>
  TORCHVOX_HD void add(int64_t place, int64_t column, ExactSum<T>* sum) const {
    const int64_t point = perm[place];
    if (point >= 0 && point < points) {
      sum->add(static_cast<const T*>(values)[point * columns + column]);
    }
  }
  template <class T>
  TORCHVOX_HD void store(int64_t row, int64_t column, const ExactSum<T>& sum, int64_t n) const {
    const int64_t at = row * columns + column;
    if (sums == nullptr) {
      static_cast<T*>(means)[at] = sum.mean(n);
      return;
    }
    for (int k = 0; k < kSumWords<T>; ++k) {
      sums[at * kSumWords<T> + k] = static_cast<int64_t>(sum.words[k]);
    }
  }
};

TORCHVOX_KERNEL(VoxelSumArgs);
#ifdef TORCHVOX_CUDA
// The two steps of launch(), of which the first can run early; the second is the next of a chain of
// launches, see launch_after().
cudaError_t clear_sums(const VoxelSumArgs& args, void* memory, const CudaContext& context);
cudaError_t add_sums(const VoxelSumArgs& args, void* memory, const CudaContext& context);
#endif

struct VoxelMeanOfSumsArgs {
  const int64_t* sums = nullptr;  // [rows, columns * words]
  IndexArray num_points;  // [rows]
  ValueType type = ValueType::kFloat;
  int64_t rows = 0, columns = 0;
  void* means = nullptr;  // [rows, columns]
};

template <class T>
TORCHVOX_HD void mean_of_sums(const VoxelMeanOfSumsArgs& args, int64_t at) {
  ExactSum<T> sum;
  for (int k = 0; k < kSumWords<T>; ++k) {
    sum.words[k] = static_cast<uint64_t>(args.sums[at * kSumWords<T> + k]);
  }
  static_cast<T*>(args.means)[at] = sum.mean(args.num_points[at / args.columns]);
}
TORCHVOX_TYPED_MAP(VoxelMeanOfSumsArgs, with_value_type, args.type, mean_of_sums,
                   (args.rows * args.columns), 512, 256);

}  // namespace torchvox
