// SPDX-License-Identifier: Apache-2.0
//
// Entry of furthest point sampling, the rule of all its algorithms, and the plan of a launch. On
// the GPU block.cu keeps a cloud in the registers of one block; lazy.cu shares a large one among a
// group of blocks, over tiles (tiles.cuh) of a spatial order; furthest_point_sample.cu launches
// them and has the generic kernel. candidates.cuh takes many samples at a time, device.cuh has
// reductions and the special slots. CPU, and the choice of the plan: furthest_point_sample_cpu.cpp.
#pragma once

#include <limits>
#include <vector>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/spatial/candidates.h"

namespace torchvox {

// Counts, offsets and starts are read where the kernel runs and never trusted.
struct FpsArgs : CandidatePoints {
  // Padded: `samples` slots per cloud, of which `counts` are filled. Packed: `samples` slots in
  // all, of which cloud b owns [out_offsets[b], out_offsets[b + 1]).
  int64_t samples = 0;
  IndexArray counts;  // [clouds], padded only
  IndexArray out_offsets;  // [clouds + 1], packed only
  bool local_index = true;  // packed: indices count from the cloud's first point

  int64_t start = 0;  // used when start_idx is not given
  IndexArray start_idx;  // [clouds, starts]
  int64_t starts = 1;

  bool repeat = false;  // exhausted="repeat", else "distinct"
  bool nonfinite_last = false;  // nonfinite="last", else "skip"
  double init_dist2 = std::numeric_limits<double>::infinity();

  int32_t* idx = nullptr;  // [clouds, samples]; packed: [samples]
  void* dist2 = nullptr;  // as idx; double for double points, else float
};

TORCHVOX_KERNEL(FpsArgs);

// Cloud b of a call: its points and its slots, which are always inside the outputs.
struct FpsCloud : CandidateCloud {
  int64_t slot;  // its first output slot
  int64_t samples;  // slots to fill with samples; the rest, up to `slots`, get idx -1, dist2 0
  int64_t slots;
  int64_t index_base;  // added to the index of a point

  static TORCHVOX_HD FpsCloud of(const FpsArgs& args, int64_t b) {
    FpsCloud cloud{CandidateCloud::of(args, b), 0, 0, 0, 0};
    if (args.points.packed) {
      cloud.slot = clamp_index(args.out_offsets[b], 0, args.samples);
      cloud.slots = clamp_index(args.out_offsets[b + 1], cloud.slot, args.samples) - cloud.slot;
      cloud.samples = cloud.slots;
      cloud.index_base = args.local_index ? 0 : cloud.first;
    } else {
      cloud.slot = b * args.samples;
      cloud.slots = args.samples;
      cloud.samples =
          args.counts.given() ? clamp_index(args.counts[b], 0, args.samples) : args.samples;
    }
    if (cloud.points == 0) cloud.samples = 0;
    return cloud;
  }
};

// is_candidate() for any number of axes and for doubles, straight from memory.
template <class T>
TORCHVOX_HD bool is_candidate_row(const FpsArgs& args, const T* row) {
  if (!is_finite_row(row, args.points.columns)) return false;
  return !args.skip_origin || !near_origin(widen(row[0]), widen(row[1]), widen(row[2]));
}
enum class PointClass { kCandidate, kSkipped, kNonFinite };

// The class of a point of any type; slow, for starts and exhausted clouds.
TORCHVOX_HD PointClass classify(const FpsArgs& args, const FpsCloud& cloud, uint32_t i) {
  if (args.points.dtype == DType::kDouble) {
    const double* row = static_cast<const double*>(args.points.data) + cloud.base +
        int64_t{i} * args.points.row_stride;
    if (!is_finite_row(row, args.points.columns)) return PointClass::kNonFinite;
    return is_candidate_row(args, row) ? PointClass::kCandidate : PointClass::kSkipped;
  }
  const int64_t at = cloud.base + i * args.points.row_stride;
  for (int64_t axis = 0; axis < args.points.columns; ++axis) {
    if (!is_finite(load_coordinate(args.points.data, args.points.dtype, at + axis))) {
      return PointClass::kNonFinite;
    }
  }
  if (!args.skip_origin) return PointClass::kCandidate;
  return is_candidate(args, load_point(args, cloud, i)) ? PointClass::kCandidate
                                                        : PointClass::kSkipped;
}

// Start s of the caller, or -1 if it is not a finite point of the cloud.
TORCHVOX_HD int64_t given_start(const FpsArgs& args, const FpsCloud& cloud, int64_t s) {
  const int64_t i =
      args.start_idx.given() ? args.start_idx[cloud.number * args.starts + s] : args.start;
  if (i < 0 || i >= cloud.points) return -1;
  return classify(args, cloud, static_cast<uint32_t>(i)) == PointClass::kNonFinite ? -1 : i;
}

// The next non-finite point at or after `cursor`, which moves past it; or -1.
TORCHVOX_HD int64_t next_nonfinite(const FpsArgs& args, const FpsCloud& cloud, uint32_t& cursor) {
  while (cursor < cloud.points) {
    const uint32_t i = cursor++;
    if (classify(args, cloud, i) == PointClass::kNonFinite) return i;
  }
  return -1;
}

// The point of a start slot if the caller's start is not valid and there is no candidate.
TORCHVOX_HD int64_t start_without_candidates(const FpsArgs& args, const FpsCloud& cloud,
                                             uint32_t& cursor) {
  if (args.repeat) return 0;
  return args.nonfinite_last ? next_nonfinite(args, cloud, cursor) : -1;
}

template <class C>
TORCHVOX_HD void write_sample(const FpsArgs& args, const FpsCloud& cloud, int64_t s, int64_t i,
                              C dist2) {
  const int64_t at = cloud.slot + s;
  args.idx[at] = static_cast<int32_t>(i < 0 ? -1 : i + cloud.index_base);
  if (args.points.dtype == DType::kDouble) {
    static_cast<double*>(args.dist2)[at] = dist2;
  } else {
    static_cast<float*>(args.dist2)[at] = static_cast<float>(dist2);
  }
}

// dist2 of a start slot that holds point i; `resolved` is false if i came from
// start_without_candidates().
TORCHVOX_HD float start_dist2(const FpsArgs& args, int64_t i, bool resolved) {
  return resolved || (args.repeat && i >= 0) ? bit_cast<float>(0x7f800000u) : 0.0f;
}

TORCHVOX_HD float initial_dist2(const FpsArgs& args) {
  return static_cast<float>(args.init_dist2) + 0.0f;  // never -0, whose bits sort below -1
}

inline const PlanOverride fps_kernel_plan{"fps_kernel"};  // 0 one block, 1 lazy tiles, 2 generic
inline const PlanOverride fps_threads_plan{"fps_threads"};  // of a block class, or of lazy blocks
// Of a block class; for lazy tiles, 1 / 32 of the points of the smallest tile.
inline const PlanOverride fps_points_per_thread_plan{"fps_points_per_thread"};
inline const PlanOverride fps_members_plan{"fps_members"};  // lazy tiles: blocks per cloud
inline const PlanOverride fps_cpu_plan{"fps_cpu"};  // see run_vectorized()

// How a call runs on the GPU, from sizes that the host knows. No plan changes a result. The first
// block class with room for the tie codes of a cloud takes it, or else the large kernel. A padded
// batch has at most one class; a packed call has one for each size that is possible, because only
// the device knows how its points are split.
struct FpsPlan {
  struct BlockClass {  // fps_block: one block of `threads` per cloud, everything in registers
    int threads, points_per_thread;
    int64_t room() const { return int64_t{threads} * points_per_thread; }
  };
  enum class Large { kNone, kLazy, kGeneric };

  std::vector<BlockClass> classes;  // in ascending order of room
  Large large = Large::kNone;
  int members = 1;  // lazy: blocks that share a cloud
  int lazy_threads = 512;  // 64, 512 or 1024
  int tile = 64;  // lazy: points of the smallest tile
  int tile_room = 0;  // lazy: tiles for which a block has shared memory
  int most_tiles = 0;  // lazy: the largest tile_room of any call
  int64_t clouds_at_once = 0;  // large: clouds that share the workspace

  int64_t block_room() const { return classes.empty() ? -1 : classes.back().room(); }
};

// From this many blocks per cloud on, the first of them has no tiles: it only leads.
inline constexpr int kLargeBlockGroup = 8;

FpsPlan make_fps_plan(const FpsArgs& args, const Target& target);

}  // namespace torchvox
