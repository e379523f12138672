// SPDX-License-Identifier: Apache-2.0
//
// Entry of place_boxes, and its steps, which are the same for a block of threads on the GPU and for
// one thread on the host:
//
//   collect   the boxes of the scene; the candidates by group, then index
//   place     group by group: candidates that overlap nothing are added to the scene
#pragma once

#include "csrc/kernels/boxes/rotated_iou.h"

namespace torchvox {

enum class PlaceMode {
  kBoth,  // if two candidates of a group overlap, neither is placed
  kGreedy  // a candidate that is not placed no longer blocks later ones of its group
};

struct PlaceBoxesArgs {
  BoxArray boxes;  // float [batches, boxes, 7 or more]
  IndexArray lengths;  // [batches]: numbers of boxes; not given: all rows
  const float* candidates = nullptr;  // [batches, count, tries, columns], contiguous
  int64_t batches = 0, count = 0, tries = 0, columns = kBoxColumns;
  IndexArray group;  // [batches, count]; below 0: no candidate
  IndexArray replaces;  // [batches, count]: the box that the candidate replaces, or below 0
  PlaceMode mode = PlaceMode::kBoth;
  int32_t* choice = nullptr;  // [batches, count]: the try, or -1

  TORCHVOX_HD int64_t box_count(int64_t batch) const {
    return lengths.given() ? clamp_index(lengths[batch], 0, boxes.rows) : boxes.rows;
  }
  TORCHVOX_HD BevBox<float> candidate(int64_t batch, int64_t k, int64_t t) const {
    return bev_box(candidates + ((batch * count + k) * tries + t) * columns);
  }
};

struct PlaceScratch {
  BevBox<float>* scene;  // [batches, boxes + count]: boxes, then placed candidates
  BevBox<float>* first;  // [batches, count]: first tries
  int32_t* order;  // [batches, count]: candidates by group, then index
  int32_t* blocked;  // [batches, count]: first tries that do not stay

  PlaceScratch(const PlaceBoxesArgs& args, Workspace& workspace)
      : scene(workspace.take<BevBox<float>>(args.batches * (args.boxes.rows + args.count))),
        first(workspace.take<BevBox<float>>(args.batches * args.count)),
        order(workspace.take<int32_t>(args.batches * args.count)),
        blocked(workspace.take<int32_t>(args.batches * args.count)) {}
};

TORCHVOX_KERNEL_WITH_WORKSPACE(PlaceBoxesArgs, carved_bytes<PlaceScratch>(args));

TORCHVOX_HD bool boxes_meet(const BevBox<float>& a, const BevBox<float>& b) {
  return rotated_iou_bev(a, b) > 0;
}

// This thread among those of a scene: a block on the GPU, one thread on the host. sync(),
// any_thread() and least() are barriers that all threads call; any_lane() is called by all threads
// of a warp.
struct Team {
  int rank = 0, count = 1, lanes = 1;
  int32_t* room = nullptr;  // a word of shared memory

  TORCHVOX_HD int lane() const { return rank % lanes; }
  TORCHVOX_HD int warp() const { return rank / lanes; }
  TORCHVOX_HD int warps() const { return count / lanes; }
  TORCHVOX_HD void sync() const {
#ifdef __CUDA_ARCH__
    __syncthreads();
#endif
  }
  TORCHVOX_HD bool any_lane(bool x) const {
#ifdef __CUDA_ARCH__
    return __any_sync(~0u, x);
#else
    return x;
#endif
  }
  TORCHVOX_HD bool any_thread(bool x) const {
#ifdef __CUDA_ARCH__
    return __syncthreads_or(x);
#else
    return x;
#endif
  }
  TORCHVOX_HD int32_t least(int32_t x) const {
#ifdef __CUDA_ARCH__
    __syncthreads();
    if (rank == 0) *room = INT32_MAX;
    __syncthreads();
    atomicMin(room, x);
    __syncthreads();
    return *room;
#else
    return x;
#endif
  }
};

// Places the candidates of one scene.
class ScenePlacer {
 public:
  TORCHVOX_HD ScenePlacer(const PlaceBoxesArgs& args, const PlaceScratch& scratch, int64_t batch,
                          const Team& team)
      : args_(args),
        team_(team),
        batch_(batch),
        scene_(scratch.scene + batch * (args.boxes.rows + args.count)),
        first_(scratch.first + batch * args.count),
        order_(scratch.order + batch * args.count),
        blocked_(scratch.blocked + batch * args.count),
        boxes_(args.box_count(batch)),
        placed_(boxes_) {}

  TORCHVOX_HD void run() {
    const int64_t candidates = collect();
    for (int64_t begin = 0; begin < candidates;) {
      int64_t end = begin + 1;
      while (end < candidates && group(order_[end]) == group(order_[begin])) ++end;
      if (end - begin == 1) {
        place_one(order_[begin]);
      } else {
        place_group(begin, end);
      }
      begin = end;
    }
  }

 private:
  TORCHVOX_HD int64_t group(int64_t k) const { return args_.group[batch_ * args_.count + k]; }
  // The box that candidate k replaces, or -1.
  TORCHVOX_HD int64_t replaced(int64_t k) const {
    if (!args_.replaces.given()) return -1;
    const int64_t box = args_.replaces[batch_ * args_.count + k];
    return box < boxes_ ? box : -1;
  }
  TORCHVOX_HD int32_t& choice(int64_t k) const { return args_.choice[batch_ * args_.count + k]; }

  // Fills scene_, first_ and order_, and returns the number of candidates.
  TORCHVOX_HD int64_t collect() {
    for (int64_t i = team_.rank; i < boxes_; i += team_.count) {
      scene_[i] = bev_box(args_.boxes.row<float>(batch_, i));
    }
    for (int64_t k = team_.rank; k < args_.count; k += team_.count) {
      choice(k) = -1;
      if (args_.tries > 0) first_[k] = args_.candidate(batch_, k, 0);
      const int64_t own = group(k);
      int64_t before = 0;
      for (int64_t j = 0; own >= 0 && j < args_.count; ++j) {
        const int64_t other = group(j);
        before += other >= 0 && (other < own || (other == own && j < k));
      }
      if (own >= 0) order_[before] = static_cast<int32_t>(k);
    }
    team_.sync();
    int64_t candidates = 0;
    for (int64_t k = 0; k < args_.count; ++k) candidates += group(k) >= 0;
    return args_.tries > 0 ? candidates : 0;
  }

  // Whether the box overlaps one of the scene other than box `own`, which it replaces. The lanes of
  // a warp share the scene.
  TORCHVOX_HD bool meets_scene(const BevBox<float>& box, int64_t own) const {
    bool meets = false;
    for (int64_t i = team_.lane(); i < placed_ && !meets; i += team_.lanes) {
      meets = i != own && boxes_meet(box, scene_[i]);
    }
    return team_.any_lane(meets);
  }

  // A group of one candidate: takes its first free try. Warps check one try each at a time.
  TORCHVOX_HD void place_one(int64_t k) {
    const int64_t own = replaced(k);
    for (int64_t begin = 0; begin < args_.tries; begin += team_.warps()) {
      const int64_t t = begin + team_.warp();
      const bool is_free = t < args_.tries && !meets_scene(args_.candidate(batch_, k, t), own);
      const int32_t chosen = team_.least(is_free ? static_cast<int32_t>(t) : INT32_MAX);
      if (chosen == INT32_MAX) continue;
      if (team_.rank == 0) {
        choice(k) = chosen;
        join(k, args_.candidate(batch_, k, chosen));
      }
      ++placed_;
      team_.sync();
      return;
    }
  }

  // A group of several candidates, of which only first tries count. Warps check one candidate each.
  TORCHVOX_HD void place_group(int64_t begin, int64_t end) {
    for (int64_t i = begin + team_.warp(); i < end; i += team_.warps()) {
      const int64_t k = order_[i];
      bool meets = meets_scene(first_[k], replaced(k));
      if (args_.mode == PlaceMode::kBoth && !meets) {
        for (int64_t j = begin + team_.lane(); j < end && !meets; j += team_.lanes) {
          meets = j != i && boxes_meet(first_[k], first_[order_[j]]);
        }
        meets = team_.any_lane(meets);
      }
      if (team_.lane() == 0) blocked_[i] = meets;
    }
    team_.sync();
    if (args_.mode == PlaceMode::kGreedy) thin_out(begin, end);
    for (int64_t i = begin; i < end; ++i) {
      if (blocked_[i]) continue;
      if (team_.rank == 0) {
        choice(order_[i]) = 0;
        join(order_[i], first_[order_[i]]);
      }
      ++placed_;
    }
    team_.sync();
  }
  // Blocks the candidates, in order, that overlap a later one or an earlier one that is not
  // blocked. A later one counts even if it overlaps the scene.
  TORCHVOX_HD void thin_out(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (blocked_[i]) continue;
      bool meets = false;
      for (int64_t j = begin + team_.rank; j < end && !meets; j += team_.count) {
        const bool remains = j > i || !blocked_[j];
        meets = j != i && remains && boxes_meet(first_[order_[i]], first_[order_[j]]);
      }
      meets = team_.any_thread(meets);
      if (team_.rank == 0) blocked_[i] = meets;
      team_.sync();
    }
  }

  // Adds a box to the scene in the place of the one that it replaces. One thread calls.
  TORCHVOX_HD void join(int64_t k, const BevBox<float>& box) {
    scene_[placed_] = box;
    const int64_t gone = replaced(k);
    if (gone >= 0) scene_[gone].x = portable::not_a_number();
  }

  const PlaceBoxesArgs& args_;
  const Team team_;
  int64_t batch_;
  BevBox<float>* scene_;
  BevBox<float>* first_;
  int32_t* order_;
  int32_t* blocked_;
  int64_t boxes_, placed_;
};

}  // namespace torchvox
