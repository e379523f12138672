// SPDX-License-Identifier: Apache-2.0
//
// The launch plan of furthest point sampling, from sizes alone.
#include "csrc/kernels/sampling/fps/plan.h"

#include <algorithm>

#include "csrc/kernels/sampling/fps/cloud.h"

namespace torchvox {
namespace {

using BlockClass = FpsPlan::BlockClass;

// All that block.cu has, by measured time on an H200: more threads win over more points a thread.
constexpr BlockClass kBlockTable[] = {{32, 1},  {64, 1},  {128, 1}, {256, 1}, {256, 2},
                                      {512, 2}, {512, 4}, {512, 8}, {512, 16}};
// A packed call launches each of these over all clouds, so they are few.
constexpr BlockClass kRaggedTable[] = {{128, 1}, {512, 2}, {512, 8}, {512, 16}};

constexpr int64_t kPointsAtOnce = int64_t{1} << 25;
constexpr int64_t kLazyStaticBytes = 48 * 1024;  // shared memory besides the tiles
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

// As many blocks a cloud as give each warp a tile, if all can be resident at once. Otherwise as
// many as can be, of more threads each.
void plan_block_group(const FpsArgs& args, const Target& target, FpsPlan& plan) {
  const int64_t points = fps_points_per_thread_plan.value();
  const int64_t threads = fps_threads_plan.value();
  const int64_t members = fps_members_plan.value();
  const bool forced = fps_kernel_plan.value() == 1;
  if (forced && points != kAutomatic) plan.tile = static_cast<int>(32 * points);
  const int64_t tiles = (args.points.rows + plan.tile - 1) / plan.tile;
  const int64_t resident = target.multiprocessors / std::max<int64_t>(1, plan.clouds_at_once);
  const auto wanted = [&] { return (tiles * 32 + plan.lazy_threads - 1) / plan.lazy_threads + 1; };
  if (forced && threads != kAutomatic) {
    plan.lazy_threads = threads <= 64 ? 64 : (threads <= 512 ? 512 : 1024);
  } else if (wanted() > resident) {
    plan.lazy_threads = 1024;
  }
  plan.members = static_cast<int>(
      std::max<int64_t>(1, std::min(members == kAutomatic ? wanted() : members, resident)));
  const int64_t workers = plan.members < kLargeBlockGroup ? plan.members : plan.members - 1;
  const int64_t needed = ((tiles + workers - 1) / workers + 95) / 32 * 32;
  const int64_t fitting = (target.shared_bytes - kLazyStaticBytes) / kTileBytes / 32 * 32;
  plan.most_tiles = static_cast<int>(std::min(fitting, kMostTiles));
  plan.tile_room = static_cast<int>(std::min<int64_t>(needed, plan.most_tiles));
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
    // A workspace that does not grow with the batch. Many blocks can share a cloud of the lazy
    // kernel; the generic one wants a cloud for every multiprocessor.
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

}  // namespace torchvox
