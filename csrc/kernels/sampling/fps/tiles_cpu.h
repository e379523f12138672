// SPDX-License-Identifier: Apache-2.0
//
// Exact furthest point sampling on the host, pruned by boxes on two levels: tiles of 64 points,
// groups of 16 tiles. A sample tests the boxes of all groups, of the tiles in the few groups that
// it can change, and updates the few tiles that it can change. The loops are plain and over
// structures of arrays, so that the compiler turns them into the widest vectors of the chosen
// instruction set.
#pragma once

#include <algorithm>
#include <vector>

#include "csrc/kernels/sampling/fps/cloud.h"
#include "csrc/kernels/spatial/order_cpu.h"

namespace torchvox {

inline constexpr uint32_t kUnknownCode = 0xffffffffu;
inline constexpr int32_t kExcludedBits = static_cast<int32_t>(0xbf800000u);  // of -1.0f

struct CpuTiles {
  static constexpr int kTile = kCpuTile;
  static constexpr int kGroup = 16;

  struct Boxes {
    std::vector<float> low_a, low_b, low_c, high_a, high_b, high_c;
    std::vector<int32_t> best;  // bits of the largest distance inside

    void assign(int64_t count) {
      for (auto* low : {&low_a, &low_b, &low_c}) low->assign(count, INFINITY);
      for (auto* high : {&high_a, &high_b, &high_c}) high->assign(count, -INFINITY);
      best.assign(count, kExcludedBits);
    }
    void include(int64_t box, const Point3& low, const Point3& high) {
      low_a[box] = std::min(low_a[box], low.a), high_a[box] = std::max(high_a[box], high.a);
      low_b[box] = std::min(low_b[box], low.b), high_b[box] = std::max(high_b[box], high.b);
      low_c[box] = std::min(low_c[box], low.c), high_c[box] = std::max(high_c[box], high.c);
    }
    // hit[i]: whether a sample at q can lower a distance in box begin + i.
    TORCHVOX_INLINE void test(const Point3& q, int64_t begin, int64_t count, int32_t* hit) const {
      const float *la = low_a.data() + begin, *lb = low_b.data() + begin,
                  *lc = low_c.data() + begin;
      const float *ha = high_a.data() + begin, *hb = high_b.data() + begin,
                  *hc = high_c.data() + begin;
      const int32_t* bits = best.data() + begin;
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        const float bound =
            dist2(gap(la[i], ha[i], q.a), gap(lb[i], hb[i], q.b), gap(lc[i], hc[i], q.c));
        hit[i] = bit_cast<int32_t>(bound) < bits[i];  // bound is not negative: bits order it
      }
    }
  };

  std::vector<float> a, b, c;  // padded to whole groups
  std::vector<int32_t> d;  // bits of the running minimum distance, those of -1 in the padding
  std::vector<uint32_t> code;
  std::vector<uint32_t> tile_code;  // smallest code at the tile's largest distance, or unknown
  Boxes tiles, groups;
  std::vector<int32_t> hit_groups;
  int64_t candidates = 0;

  // Takes `order`, the indices of the candidates in spatial order.
  void load(const FpsArgs& args, const FpsCloud& cloud, const std::vector<uint32_t>& order) {
    candidates = static_cast<int64_t>(order.size());
    const int64_t group_points = kTile * kGroup;
    const int64_t group_count = (candidates + group_points - 1) / group_points;
    const int64_t padded = group_count * group_points;
    for (auto* axis : {&a, &b, &c}) axis->assign(padded, 0.0f);
    d.assign(padded, kExcludedBits);
    code.assign(padded, kUnknownCode);
    tile_code.assign(group_count * kGroup, kUnknownCode);
    tiles.assign(group_count * kGroup);
    groups.assign(group_count);
    hit_groups.assign(group_count, 0);
    const int32_t initial = bit_cast<int32_t>(initial_dist2(args));
    for (int64_t i = 0; i < candidates; ++i) {
      const Point3 p = load_point(args, cloud, order[i]);
      a[i] = p.a, b[i] = p.b, c[i] = p.c;
      d[i] = initial;
      code[i] = cloud.tie.code(order[i]);
      tiles.include(i / kTile, p, p);
      groups.include(i / group_points, p, p);
      tiles.best[i / kTile] = groups.best[i / group_points] = initial;
    }
  }

  TORCHVOX_INLINE void update(const Point3& q) {
    const int64_t group_count = static_cast<int64_t>(groups.best.size());
    groups.test(q, 0, group_count, hit_groups.data());
    for (int64_t g = 0; g < group_count; ++g) {
      if (!hit_groups[g]) continue;
      int32_t hit[kGroup];
      tiles.test(q, g * kGroup, kGroup, hit);
      for (int t = 0; t < kGroup; ++t) {
        if (hit[t]) update_tile(q, g * kGroup + t);
      }
      int32_t best = kExcludedBits;
      const int32_t* of_tiles = tiles.best.data() + g * kGroup;
      for (int t = 0; t < kGroup; ++t) best = std::max(best, of_tiles[t]);
      groups.best[g] = best;
    }
  }

  // The best key among all candidates; false when no distance is above 0.
  TORCHVOX_INLINE bool find_best(float& dist2, uint32_t& best_code) {
    int32_t best = kExcludedBits;
    const int64_t group_count = static_cast<int64_t>(groups.best.size());
    const int32_t* of_groups = groups.best.data();
    for (int64_t g = 0; g < group_count; ++g) best = std::max(best, of_groups[g]);
    if (best <= 0) return false;
    best_code = kUnknownCode;
    for (int64_t g = 0; g < group_count; ++g) {
      if (of_groups[g] != best) continue;
      for (int64_t t = g * kGroup; t < (g + 1) * kGroup; ++t) {
        if (tiles.best[t] != best) continue;
        if (tile_code[t] == kUnknownCode) tile_code[t] = code_in_tile(t, best);
        best_code = std::min(best_code, tile_code[t]);
      }
    }
    dist2 = bit_cast<float>(best);
    return true;
  }

 private:
  TORCHVOX_INLINE void update_tile(const Point3& q, int64_t t) {
    const float *pa = a.data() + t * kTile, *pb = b.data() + t * kTile, *pc = c.data() + t * kTile;
    int32_t* pd = d.data() + t * kTile;
    int32_t best = kExcludedBits;
#pragma GCC ivdep
    for (int i = 0; i < kTile; ++i) {
      const int32_t now = bit_cast<int32_t>(dist2(pa[i] - q.a, pb[i] - q.b, pc[i] - q.c));
      const int32_t lower = now < pd[i] ? now : pd[i];
      pd[i] = lower;
      best = lower > best ? lower : best;
    }
    tiles.best[t] = best;
    tile_code[t] = kUnknownCode;
  }

  TORCHVOX_INLINE uint32_t code_in_tile(int64_t t, int32_t best) const {
    const int32_t* pd = d.data() + t * kTile;
    const uint32_t* pc = code.data() + t * kTile;
    uint32_t lowest = kUnknownCode;
    for (int i = 0; i < kTile; ++i) {
      const uint32_t candidate = pd[i] == best ? pc[i] : kUnknownCode;
      lowest = candidate < lowest ? candidate : lowest;
    }
    return lowest;
  }
};

}  // namespace torchvox
