// SPDX-License-Identifier: Apache-2.0
//
// What every algorithm of furthest point sampling shares, on the host and on the device: which
// points a cloud has, which of them are candidates, where a sample is written, where it starts.
#pragma once

#include "csrc/kernels/core/arith.h"
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"

namespace torchvox {

// The order among candidates at equal distance: the smaller code wins. Codes are unique and
// invertible, so every algorithm and every layout of the points selects the same one.
//
// mmcv's tree reduction over a block of T = 2^L threads prefers
//   code(i) = bitrev_L(i mod T) * ceil(N / T) + i div T,
// because its last step compares odd with even slots, so bit 0 of the thread decides first. Every
// power of two from 2^floor(log2 N) up orders N points alike, so T is cut down to that; the codes
// then lie in [0, T * ceil(N / T)), less than 2 N. T = 1 is "lowest index first".
struct TieRule {
  uint32_t log2_block;
  uint32_t columns;  // ceil(N / T)

  static TORCHVOX_HD TieRule make(int64_t points, int tie_block) {
    TieRule rule{0, 0};
    while ((int64_t{2} << rule.log2_block) <= points && (2 << rule.log2_block) <= tie_block) {
      ++rule.log2_block;
    }
    const int64_t block = int64_t{1} << rule.log2_block;
    rule.columns = static_cast<uint32_t>((points + block - 1) >> rule.log2_block);
    return rule;
  }

  // Codes are below this; N < 2^31 and T <= 1024 keep it within 32 bits.
  TORCHVOX_HD uint32_t space() const { return columns << log2_block; }

  TORCHVOX_HD uint32_t code(uint32_t i) const {
    if (log2_block == 0) return i;
    return reversed(i & ((1u << log2_block) - 1)) * columns + (i >> log2_block);
  }
  TORCHVOX_HD uint32_t index(uint32_t code) const {
    if (log2_block == 0) return code;
    return index_of(code, code / columns);
  }
  TORCHVOX_HD uint32_t index_of(uint32_t code, uint32_t quotient) const {
    return ((code - quotient * columns) << log2_block) | reversed(quotient);
  }

 private:
  // The low log2_block bits in reverse order; log2_block is at least 1 here.
  TORCHVOX_HD uint32_t reversed(uint32_t x) const {
#ifdef __CUDA_ARCH__
    return __brev(x) >> (32 - log2_block);
#else
    x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);
    x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);
    x = ((x >> 4) & 0x0f0f0f0fu) | ((x & 0x0f0f0f0fu) << 4);
    x = ((x >> 8) & 0x00ff00ffu) | ((x & 0x00ff00ffu) << 8);
    return ((x >> 16) | (x << 16)) >> (32 - log2_block);
#endif
  }
};

TORCHVOX_HD int64_t clamp_index(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : (x > high ? high : x);
}

// Cloud b of a call. Whatever lengths and offsets hold, its points lie in [0, capacity) of the
// cloud's block (ragged: of all points) and its slots inside the outputs.
struct FpsCloud {
  int64_t number;
  int64_t first;  // position of its first point among all points (batched: number * capacity)
  int64_t base;  // element of `points` where that point starts
  uint32_t points;
  int64_t slot;  // its first output slot
  int64_t samples;  // slots that the rules fill; the rest, up to `slots`, hold idx -1, dist2 0
  int64_t slots;
  int64_t index_base;  // added to the index of a point
  TieRule tie;

  static TORCHVOX_HD FpsCloud of(const FpsArgs& args, int64_t b) {
    FpsCloud cloud;
    cloud.number = b;
    if (args.ragged) {
      cloud.first = clamp_index(args.ptr[b], 0, args.capacity);
      const int64_t end = clamp_index(args.ptr[b + 1], cloud.first, args.capacity);
      cloud.points = static_cast<uint32_t>(end - cloud.first);
      cloud.base = cloud.first * args.point_stride;
      cloud.slot = clamp_index(args.out_ptr[b], 0, args.samples);
      cloud.slots = clamp_index(args.out_ptr[b + 1], cloud.slot, args.samples) - cloud.slot;
      cloud.samples = cloud.slots;
      cloud.index_base = args.local_index ? 0 : cloud.first;
      cloud.tie = TieRule::make(cloud.points, args.tie_block);
    } else {
      cloud.first = b * args.capacity;
      cloud.points = static_cast<uint32_t>(
          args.lengths.given() ? clamp_index(args.lengths[b], 0, args.capacity) : args.capacity);
      cloud.base = b * args.cloud_stride;
      cloud.slot = b * args.samples;
      cloud.slots = args.samples;
      cloud.samples =
          args.counts.given() ? clamp_index(args.counts[b], 0, args.samples) : args.samples;
      cloud.index_base = 0;
      cloud.tie = TieRule::make(args.capacity, args.tie_block);  // of the padded size
    }
    if (cloud.points == 0) cloud.samples = 0;
    return cloud;
  }
};

TORCHVOX_HD float load_coordinate(const void* points, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kHalf: return widen(static_cast<const Half*>(points)[at]);
    case DType::kBFloat16: return widen(static_cast<const BFloat16*>(points)[at]);
    default: return static_cast<const float*>(points)[at];
  }
}

// Point i of the cloud as the fast paths see it: fp32 after widening, at most three axes.
TORCHVOX_HD Point3 load_point(const FpsArgs& args, const FpsCloud& cloud, uint32_t i) {
  const int64_t at = cloud.base + i * args.point_stride;
  const float x = args.dims > 0 ? load_coordinate(args.points, args.dtype, at) : 0.0f;
  const float y = args.dims > 1 ? load_coordinate(args.points, args.dtype, at + 1) : 0.0f;
  const float z = args.dims > 2 ? load_coordinate(args.points, args.dtype, at + 2) : 0.0f;
  return args.order == DistOrder::kPn2 ? Point3{y, x, z} : Point3{x, y, z};
}

TORCHVOX_HD bool is_finite(const Point3& p) {
  return is_finite(p.a) && is_finite(p.b) && is_finite(p.c);
}

// Pointnet2_PyTorch compares a float with the double 1e-3; the next float above it is 0.001f.
TORCHVOX_HD bool near_origin(float x, float y, float z) { return dist2(y, x, z) < 0.001f; }
TORCHVOX_HD bool near_origin(double x, double y, double z) {
  return fma_rn(z, z, fma_rn(x, x, y * y)) <= 1e-3;
}

TORCHVOX_HD bool is_candidate(const FpsArgs& args, const Point3& p) {
  if (!is_finite(p)) return false;
  if (!args.skip_origin) return true;
  return args.order == DistOrder::kPn2 ? !near_origin(p.b, p.a, p.c) : !near_origin(p.a, p.b, p.c);
}

// The same tests for any number of axes and for doubles, straight from memory.
template <class T>
TORCHVOX_HD bool is_finite_row(const FpsArgs& args, const T* row) {
  for (int64_t axis = 0; axis < args.dims; ++axis) {
    if (!is_finite(widen(row[axis]))) return false;
  }
  return true;
}
template <class T>
TORCHVOX_HD bool is_candidate_row(const FpsArgs& args, const T* row) {
  if (!is_finite_row(args, row)) return false;
  return !args.skip_origin || !near_origin(widen(row[0]), widen(row[1]), widen(row[2]));
}
template <class T>
TORCHVOX_HD compute_t<T> dist2_rows(const FpsArgs& args, const T* p, const T* q) {
  using C = compute_t<T>;
  if (args.order == DistOrder::kPn2) {
    const C dx = widen(p[0]) - widen(q[0]), dy = widen(p[1]) - widen(q[1]),
            dz = widen(p[2]) - widen(q[2]);
    return fma_rn(dz, dz, fma_rn(dx, dx, dy * dy));
  }
  C sum = 0;
  for (int64_t axis = 0; axis < args.dims; ++axis) {
    const C d = widen(p[axis]) - widen(q[axis]);
    sum = fma_rn(d, d, sum);
  }
  return sum;
}

enum class PointClass { kCandidate, kSkipped, kNonFinite };

// Of any point of any type; the slow way, for starts and exhausted clouds.
TORCHVOX_HD PointClass classify(const FpsArgs& args, const FpsCloud& cloud, uint32_t i) {
  if (args.dtype == DType::kDouble) {
    const double* row =
        static_cast<const double*>(args.points) + cloud.base + int64_t{i} * args.point_stride;
    if (!is_finite_row(args, row)) return PointClass::kNonFinite;
    return is_candidate_row(args, row) ? PointClass::kCandidate : PointClass::kSkipped;
  }
  const int64_t at = cloud.base + i * args.point_stride;
  for (int64_t axis = 0; axis < args.dims; ++axis) {
    if (!is_finite(load_coordinate(args.points, args.dtype, at + axis))) {
      return PointClass::kNonFinite;
    }
  }
  if (!args.skip_origin) return PointClass::kCandidate;
  return is_candidate(args, load_point(args, cloud, i)) ? PointClass::kCandidate
                                                        : PointClass::kSkipped;
}

// Start s as the caller gave it, -1 unless it is a finite point of the cloud.
TORCHVOX_HD int64_t given_start(const FpsArgs& args, const FpsCloud& cloud, int64_t s) {
  const int64_t i =
      args.start_idx.given() ? args.start_idx[cloud.number * args.starts + s] : args.start;
  if (i < 0 || i >= cloud.points) return -1;
  return classify(args, cloud, static_cast<uint32_t>(i)) == PointClass::kNonFinite ? -1 : i;
}

// The next non-finite point at or after `cursor`, which moves past it; -1 when there is none.
TORCHVOX_HD int64_t next_nonfinite(const FpsArgs& args, const FpsCloud& cloud, uint32_t& cursor) {
  while (cursor < cloud.points) {
    const uint32_t i = cursor++;
    if (classify(args, cloud, i) == PointClass::kNonFinite) return i;
  }
  return -1;
}

// What a start slot holds when the given start is no valid point and no candidate can stand in.
TORCHVOX_HD int64_t start_without_candidates(const FpsArgs& args, const FpsCloud& cloud,
                                             uint32_t& cursor) {
  if (args.repeat) return 0;
  return args.nonfinite_last ? next_nonfinite(args, cloud, cursor) : -1;
}

TORCHVOX_HD void write_sample(const FpsArgs& args, const FpsCloud& cloud, int64_t s, int64_t i,
                              double dist2) {
  const int64_t at = cloud.slot + s;
  args.idx[at] = static_cast<int32_t>(i < 0 ? -1 : i + cloud.index_base);
  if (args.dtype == DType::kDouble) {
    static_cast<double*>(args.dist2)[at] = dist2;
  } else {
    static_cast<float*>(args.dist2)[at] = static_cast<float>(dist2);
  }
}
TORCHVOX_HD void write_sample(const FpsArgs& args, const FpsCloud& cloud, int64_t s, int64_t i,
                              float dist2) {
  const int64_t at = cloud.slot + s;
  args.idx[at] = static_cast<int32_t>(i < 0 ? -1 : i + cloud.index_base);
  if (args.dtype == DType::kDouble) {
    static_cast<double*>(args.dist2)[at] = dist2;
  } else {
    static_cast<float*>(args.dist2)[at] = dist2;
  }
}

// dist2 of a start slot that holds point i, found by the rule above when `resolved` is false.
TORCHVOX_HD float start_dist2(const FpsArgs& args, int64_t i, bool resolved) {
  return resolved || (args.repeat && i >= 0) ? bit_cast<float>(0x7f800000u) : 0.0f;
}

TORCHVOX_HD float initial_dist2(const FpsArgs& args) {
  return static_cast<float>(args.init_dist2) + 0.0f;  // never -0, whose bits sort below -1
}

}  // namespace torchvox
