// SPDX-License-Identifier: Apache-2.0
//
// The launch plan of furthest point sampling on the GPU.
#pragma once

#include <vector>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"

namespace torchvox {

// Plans that tests force.
inline const PlanOverride fps_kernel_plan{
    "fps_kernel"};  // 0 one block in registers, 1 lazy tiles, 2 generic
inline const PlanOverride fps_threads_plan{"fps_threads"};  // of a block class, or lazy
inline const PlanOverride fps_points_per_thread_plan{"fps_points_per_thread"};
inline const PlanOverride fps_members_plan{"fps_members"};  // lazy tiles: blocks that share a cloud
inline const PlanOverride fps_cpu_plan{"fps_cpu"};  // see run_vectorized()

// How a call runs on the GPU, from sizes that the host knows. No plan changes a result. A cloud is
// taken by the first block class whose room holds its tie codes, and by the large kernel when none
// does. A batch has one class at most; a packed call has one for each size that its points allow,
// because only the device knows how they are split.
struct FpsPlan {
  struct BlockClass {  // fps_block: one block of `threads` per cloud, everything in registers
    int threads;
    int points_per_thread;
    int64_t room() const { return int64_t{threads} * points_per_thread; }
  };
  enum class Large { kNone, kLazy, kGeneric };

  std::vector<BlockClass> classes;  // rising room
  Large large = Large::kNone;
  int members = 1;  // lazy: blocks that share a cloud
  int lazy_threads = 512;  // 64, 512 or 1024
  int tile = 64;  // lazy: points of the smallest tile
  int tile_room = 0;  // lazy: tiles that the shared memory of a block holds
  int most_tiles = 0;  // lazy: what it could hold at most, whatever the call
  int64_t clouds_at_once = 0;  // large: clouds that share the workspace

  int64_t block_room() const { return classes.empty() ? -1 : classes.back().room(); }
};

// From so many blocks a cloud on, the first of them has no tiles: it only leads.
inline constexpr int kLargeBlockGroup = 8;

FpsPlan make_fps_plan(const FpsArgs& args, const Target& target);

}  // namespace torchvox
