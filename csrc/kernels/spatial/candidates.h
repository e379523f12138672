// SPDX-License-Identifier: Apache-2.0
//
// The points of a batch that an op may choose, the order among those at equal distance, and how
// they are read: for furthest point sampling, knn and the spatial order, on host and device.
#pragma once

#include <algorithm>
#include <vector>

#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

inline constexpr uint32_t kNoCode = 0xffffffffu;  // the code of a point that is not a candidate

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

// Points that may be chosen: the finite ones.
struct CandidatePoints {
  CloudBatch points;
  DistOrder order = DistOrder::kPn2;  // kLoop unless there are 3 columns
  int tie_block = 1;  // T of TieRule: 1 is "lowest", else mmcv's rule
  bool skip_origin = false;  // 3 columns only: points near the origin are not candidates
};

struct CandidateCloud : CloudRows {
  int64_t number;
  TieRule tie;

  static TORCHVOX_HD CandidateCloud of(const CandidatePoints& args, int64_t b) {
    const CloudRows rows = args.points.cloud(b);
    const int64_t size = args.points.packed ? rows.points : args.points.rows;  // the padded one
    return {rows, b, TieRule::make(size, args.tie_block)};
  }
};

// Point i of a cloud for the fast paths: fp32 after widening, at most three axes.
TORCHVOX_HD Point3 load_point(const CandidatePoints& args, const CloudRows& cloud, uint32_t i) {
  // Not by load_axes: nvcc then keeps fewer registers in FPS, and 32 x 1,024 points take 4 %
  // longer.
  const int64_t at = cloud.base + i * args.points.row_stride;
  const float x =
      args.points.columns > 0 ? load_coordinate(args.points.data, args.points.dtype, at) : 0.0f;
  const float y =
      args.points.columns > 1 ? load_coordinate(args.points.data, args.points.dtype, at + 1) : 0.0f;
  const float z =
      args.points.columns > 2 ? load_coordinate(args.points.data, args.points.dtype, at + 2) : 0.0f;
  return args.order == DistOrder::kPn2 ? Point3{y, x, z} : Point3{x, y, z};
}

// Pointnet2_PyTorch compares a float with the double 1e-3; the next float above it is 0.001f.
TORCHVOX_HD bool near_origin(float x, float y, float z) { return dist2(y, x, z) < 0.001f; }
TORCHVOX_HD bool near_origin(double x, double y, double z) {
  return fma_rn(z, z, fma_rn(x, x, y * y)) <= 1e-3;
}

TORCHVOX_HD bool is_candidate(const CandidatePoints& args, const Point3& p) {
  if (!is_finite(p)) return false;
  if (!args.skip_origin) return true;
  return args.order == DistOrder::kPn2 ? !near_origin(p.b, p.a, p.c) : !near_origin(p.a, p.b, p.c);
}

inline constexpr int kCpuTile = 64;  // points of a tile of the spatial order on the host

// Boxes around points, one array per coordinate.
struct CpuBoxes {
  std::vector<float> low_a, low_b, low_c, high_a, high_b, high_c;

  void assign(int64_t count) {
    for (auto* low : {&low_a, &low_b, &low_c}) low->assign(count, INFINITY);
    for (auto* high : {&high_a, &high_b, &high_c}) high->assign(count, -INFINITY);
  }
  void include(int64_t box, const Point3& p) {
    low_a[box] = std::min(low_a[box], p.a), high_a[box] = std::max(high_a[box], p.a);
    low_b[box] = std::min(low_b[box], p.b), high_b[box] = std::max(high_b[box], p.b);
    low_c[box] = std::min(low_c[box], p.c), high_c[box] = std::max(high_c[box], p.c);
  }
  // put(i, bound) for boxes from `begin` on: q is at least `bound` from every point in begin + i.
  template <int kNorm = 2, class Put>
  TORCHVOX_INLINE void measure(const Point3& q, int64_t begin, int64_t count,
                               const Put& put) const {
    const float *la = low_a.data() + begin, *lb = low_b.data() + begin, *lc = low_c.data() + begin;
    const float *ha = high_a.data() + begin, *hb = high_b.data() + begin,
                *hc = high_c.data() + begin;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      put(i,
          norm_of<kNorm>(gap(la[i], ha[i], q.a), gap(lb[i], hb[i], q.b), gap(lc[i], hc[i], q.c)));
    }
  }
};

// The candidates of a cloud in an order that keeps neighbors together.
std::vector<uint32_t> spatial_order_cpu(const CandidatePoints& args, const CandidateCloud& cloud);

}  // namespace torchvox
