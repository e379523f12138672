// SPDX-License-Identifier: Apache-2.0
//
// Furthest point sampling on the CPU, one task per cloud, pruned by boxes on two levels: tiles of
// 64 points, groups of 16 tiles. A sample tests the boxes of all groups, then those of the tiles in
// the few groups that it can change, and updates the few tiles that it can change, in plain loops
// over structures of arrays that vectorize. More axes and doubles: one pass over the cloud per
// sample.
#include <algorithm>
#include <vector>

#include "csrc/kernels/sampling/fps/furthest_point_sample.h"

namespace torchvox {
namespace {

using BlockClass = FpsPlan::BlockClass;

// All classes of block.cu. On an H200 more threads are faster than more points per thread, and 256
// threads faster than fewer for clouds of any size.
constexpr BlockClass kBlockTable[] = {{256, 1}, {256, 2}, {512, 2}, {512, 4}, {512, 8}, {512, 16}};
// A packed call launches each of these over all clouds, so they are few.
constexpr BlockClass kRaggedTable[] = {{256, 1}, {512, 2}, {512, 8}, {512, 16}};

constexpr int64_t kPointsAtOnce = int64_t{1} << 25;
constexpr int64_t kLazyStaticBytes = 48 * 1024;  // shared memory of a lazy block besides the tiles
constexpr int64_t kTileBytes = 40;
constexpr int64_t kMostTiles = 4096;

void plan_classes(const FpsArgs& args, FpsPlan& plan) {
  const int64_t threads = fps_threads_plan.value();
  const int64_t points = fps_points_per_thread_plan.value();
  // Of a packed call: n points have less than n + T tie codes, however they are split.
  const int64_t most = args.points.packed
      ? args.points.rows +
          std::max<int64_t>(std::min<int64_t>(args.tie_block, args.points.rows), 1) - 1
      : int64_t{TieRule::make(args.points.rows, args.tie_block).space()};
  const BlockClass* const forced =
      std::find_if(std::begin(kBlockTable), std::end(kBlockTable), [&](const BlockClass& block) {
        return block.threads == threads && block.points_per_thread == points;
      });
  if (forced != std::end(kBlockTable)) {
    if (args.points.packed || most <= forced->room()) plan.classes = {*forced};
  } else if (args.points.packed) {
    for (const BlockClass& block : kRaggedTable) {
      if (plan.block_room() >= most) break;
      plan.classes.push_back(block);
    }
  } else {
    for (const BlockClass& block : kBlockTable) {
      if (block.room() < most) continue;
      plan.classes = {block};
      break;
    }
  }
  if (plan.block_room() < most) plan.large = FpsPlan::Large::kLazy;
}

// As many blocks per cloud as give each warp one tile, if all can be resident at once. Otherwise as
// many as can be, with more threads each.
void plan_block_group(const FpsArgs& args, const Target& target, FpsPlan& plan) {
  const int64_t points = fps_points_per_thread_plan.value();
  const int64_t threads = fps_threads_plan.value(), members = fps_members_plan.value();
  const bool forced = fps_kernel_plan.value() == 1;
  if (forced && points != kAutomatic) plan.tile = static_cast<int>(32 * points);
  const int64_t tiles = (args.points.rows + plan.tile - 1) / plan.tile;
  const int64_t resident = target.multiprocessors / std::max<int64_t>(1, plan.clouds_at_once);
  const auto needed_blocks = [&] {
    return (tiles * 32 + plan.lazy_threads - 1) / plan.lazy_threads + 1;
  };
  if (forced && threads != kAutomatic) {
    plan.lazy_threads = threads <= 64 ? 64 : (threads <= 512 ? 512 : 1024);
  } else if (needed_blocks() > resident) {
    plan.lazy_threads = 1024;
  }
  plan.members = static_cast<int>(
      std::max<int64_t>(1, std::min(members == kAutomatic ? needed_blocks() : members, resident)));
  const int64_t workers = plan.members < kLargeBlockGroup ? plan.members : plan.members - 1;
  const int64_t needed = ((tiles + workers - 1) / workers + 95) / 32 * 32;
  const int64_t fitting = (target.shared_bytes - kLazyStaticBytes) / kTileBytes / 32 * 32;
  plan.most_tiles = static_cast<int>(std::min(fitting, kMostTiles));
  plan.tile_room = static_cast<int>(std::min<int64_t>(needed, plan.most_tiles));
}

constexpr uint32_t kUnknownCode = 0xffffffffu;
constexpr int32_t kExcludedBits = static_cast<int32_t>(0xbf800000u);  // of -1.0f

struct CpuTiles {
  static constexpr int kTile = kCpuTile;
  static constexpr int kGroup = 16;

  struct Boxes : CpuBoxes {
    std::vector<int32_t> best;  // bits of the largest distance inside

    void reset(int64_t count) {
      CpuBoxes::assign(count);
      best.assign(count, kExcludedBits);
    }
    // hit[i] = whether a sample at q can lower a distance in box begin + i.
    TORCHVOX_INLINE void test(const Point3& q, int64_t begin, int64_t count, int32_t* hit) const {
      const int32_t* bits = best.data() + begin;
      measure(q, begin, count, [=](int64_t i, float bound) {
        hit[i] = bit_cast<int32_t>(bound) < bits[i];  // bound is not negative: bits order it
      });
    }
  };

  std::vector<float> a, b, c;  // padded to whole groups
  std::vector<int32_t> d;  // bits of the running minimum distance, those of -1 in the padding
  std::vector<uint32_t> code;
  std::vector<uint32_t> tile_code;  // smallest code at the tile's largest distance, or unknown
  Boxes tiles, groups;
  std::vector<int32_t> hit_groups;
  int64_t candidates = 0;

  // Loads the candidates, whose indices `order` lists in spatial order.
  void load(const FpsArgs& args, const FpsCloud& cloud, const std::vector<uint32_t>& order) {
    candidates = static_cast<int64_t>(order.size());
    const int64_t group_points = kTile * kGroup;
    const int64_t group_count = (candidates + group_points - 1) / group_points;
    const int64_t padded = group_count * group_points;
    for (auto* axis : {&a, &b, &c}) axis->assign(padded, 0.0f);
    d.assign(padded, kExcludedBits);
    code.assign(padded, kUnknownCode);
    tile_code.assign(group_count * kGroup, kUnknownCode);
    tiles.reset(group_count * kGroup);
    groups.reset(group_count);
    hit_groups.assign(group_count, 0);
    const int32_t initial = bit_cast<int32_t>(initial_dist2(args));
    for (int64_t i = 0; i < candidates; ++i) {
      const Point3 p = load_point(args, cloud, order[i]);
      a[i] = p.a, b[i] = p.b, c[i] = p.c;
      d[i] = initial;
      code[i] = cloud.tie.code(order[i]);
      tiles.include(i / kTile, p);
      groups.include(i / group_points, p);
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

  // The best key among all candidates; false if no distance is above 0.
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

// When no candidate is left at a distance above 0: fills the slots from s on by the rule for
// exhausted clouds.
void finish_exhausted(const FpsArgs& args, const FpsCloud& cloud, int64_t s, int64_t first) {
  if (args.repeat) {
    for (; s < cloud.samples; ++s) write_sample(args, cloud, s, first < 0 ? 0 : first, 0.0f);
    return;
  }
  std::vector<bool> selected(cloud.points, false);
  for (int64_t j = 0; j < s; ++j) {
    const int64_t i = args.idx[cloud.slot + j] - cloud.index_base;
    if (i >= 0 && i < cloud.points) selected[i] = true;
  }
  const uint32_t codes = cloud.tie.space();
  for (uint32_t code = 0; code < codes && s < cloud.samples; ++code) {
    const uint32_t i = cloud.tie.index(code);
    if (i < cloud.points && !selected[i] && classify(args, cloud, i) == PointClass::kCandidate) {
      write_sample(args, cloud, s++, i, 0.0f);
    }
  }
  for (uint32_t i = 0; args.nonfinite_last && i < cloud.points && s < cloud.samples; ++i) {
    if (!selected[i] && classify(args, cloud, i) == PointClass::kNonFinite) {
      write_sample(args, cloud, s++, i, 0.0f);
    }
  }
  for (; s < cloud.samples; ++s) write_sample(args, cloud, s, -1, 0.0f);
}

// Writes start slot s and returns its point, or -1 if there is none to measure from.
int64_t take_start(const FpsArgs& args, const FpsCloud& cloud, int64_t s, int64_t first,
                   uint32_t& cursor) {
  int64_t i = given_start(args, cloud, s);
  if (i < 0) i = first;
  const bool resolved = i >= 0;
  const int64_t written = resolved ? i : start_without_candidates(args, cloud, cursor);
  write_sample(args, cloud, s, written, start_dist2(args, written, resolved));
  return i;
}

TORCHVOX_INLINE void sample_tiles(const FpsArgs& args, const FpsCloud& cloud, CpuTiles& tiles,
                                  int64_t first) {
  uint32_t cursor = 0;
  for (int64_t s = 0; s < cloud.samples; ++s) {
    int64_t chosen;
    if (s < args.starts) {
      chosen = take_start(args, cloud, s, first, cursor);
    } else {
      float dist2;
      uint32_t code;
      if (!tiles.find_best(dist2, code)) {
        finish_exhausted(args, cloud, s, first);
        return;
      }
      chosen = cloud.tie.index(code);
      write_sample(args, cloud, s, chosen, dist2);
    }
    if (chosen >= 0) tiles.update(load_point(args, cloud, static_cast<uint32_t>(chosen)));
  }
}

void sample_cloud(const FpsArgs& args, const FpsCloud& cloud, CpuTiles& tiles) {
  const std::vector<uint32_t> order = spatial_order_cpu(args, cloud);
  tiles.load(args, cloud, order);
  uint32_t first = kUnknownCode;
  for (const uint32_t code : tiles.code) first = std::min(first, code);
  run_vectorized(fps_cpu_plan, [&] {
    sample_tiles(args, cloud, tiles, first == kUnknownCode ? -1 : int64_t{cloud.tie.index(first)});
  });
}

// Any number of axes and doubles: one pass over the cloud per sample.
template <class T>
void sample_cloud_generic(const FpsArgs& args, const FpsCloud& cloud) {
  using C = compute_t<T>;
  const T* const points = static_cast<const T*>(args.points.data) + cloud.base;
  std::vector<C> d(cloud.points, C{-1});
  int64_t first = -1;
  for (uint32_t i = 0; i < cloud.points; ++i) {
    if (!is_candidate_row(args, points + i * args.points.row_stride)) continue;
    d[i] = static_cast<C>(args.init_dist2) + C{0};
    if (first < 0 || cloud.tie.code(i) < cloud.tie.code(static_cast<uint32_t>(first))) first = i;
  }
  uint32_t cursor = 0;
  int64_t chosen = -1;
  for (int64_t s = 0; s < cloud.samples; ++s) {
    if (s < args.starts) {
      chosen = take_start(args, cloud, s, first, cursor);
    } else {
      chosen = -1;
      C best = 0;
      for (uint32_t i = 0; i < cloud.points; ++i) {
        if (d[i] > best ||
            (chosen >= 0 && d[i] == best &&
             cloud.tie.code(i) < cloud.tie.code(static_cast<uint32_t>(chosen)))) {
          best = d[i];
          chosen = i;
        }
      }
      if (chosen < 0) {
        finish_exhausted(args, cloud, s, first);
        return;
      }
      write_sample(args, cloud, s, chosen, best);
    }
    if (chosen < 0) continue;
    for (uint32_t i = 0; i < cloud.points; ++i) {
      if (!(d[i] > C{0})) continue;
      const C now = dist2_rows(args.order, args.points.columns, points + i * args.points.row_stride,
                               points + chosen * args.points.row_stride);
      if (now < d[i]) d[i] = now;
    }
  }
}

}  // namespace

FpsPlan make_fps_plan(const FpsArgs& args, const Target& target) {
  FpsPlan plan;
  const int64_t kernel = fps_kernel_plan.value();
  if (args.points.dtype == DType::kDouble || args.points.columns > 3 || kernel == 2) {
    plan.large = FpsPlan::Large::kGeneric;
  } else if (kernel == 1) {
    plan.large = FpsPlan::Large::kLazy;
  } else {
    plan_classes(args, plan);
  }
  if (plan.large == FpsPlan::Large::kNone) return plan;

  plan.clouds_at_once = args.points.clouds;
  if (!args.points.packed && args.points.rows > 0) {
    // Bounds the workspace for large batches. Many blocks can share a cloud of the lazy kernel; the
    // generic kernel needs at least one cloud per multiprocessor.
    int64_t wave = kPointsAtOnce / args.points.rows;
    if (plan.large == FpsPlan::Large::kGeneric) {
      wave = std::max<int64_t>(wave, target.multiprocessors);
      wave = std::min(wave, ((int64_t{1} << 31) - 1) / args.points.rows);
    }
    plan.clouds_at_once = std::max<int64_t>(1, std::min(args.points.clouds, wave));
  }
  if (plan.large == FpsPlan::Large::kLazy) plan_block_group(args, target, plan);
  return plan;
}

int64_t workspace_bytes_cpu(const FpsArgs&) {
  return 0;  // run_cpu() allocates scratch memory for one cloud at a time
}

void run_cpu(const FpsArgs& args, void*, const ParallelFor& parallel_for) {
  if (args.points.packed) {
    const int64_t begin = clamp_index(args.out_offsets[0], 0, args.samples);
    const int64_t end = clamp_index(args.out_offsets[args.points.clouds], begin, args.samples);
    const FpsCloud nowhere{};
    for (int64_t j = 0; j < begin; ++j) write_sample(args, nowhere, j, -1, 0.0f);
    for (int64_t j = end; j < args.samples; ++j) write_sample(args, nowhere, j, -1, 0.0f);
  }
  const bool generic = args.points.dtype == DType::kDouble || args.points.columns > 3;
  parallel_for(args.points.clouds, [&](int64_t begin, int64_t end) {
    CpuTiles tiles;
    for (int64_t b = begin; b < end; ++b) {
      const FpsCloud cloud = FpsCloud::of(args, b);
      for (int64_t s = cloud.samples; s < cloud.slots; ++s) {
        write_sample(args, cloud, s, -1, 0.0f);
      }
      if (cloud.samples == 0) continue;
      if (generic) {
        with_point_type(args.points.dtype,
                        [&](auto type) { sample_cloud_generic<decltype(type)>(args, cloud); });
      } else {
        sample_cloud(args, cloud, tiles);
      }
    }
  });
}

}  // namespace torchvox
