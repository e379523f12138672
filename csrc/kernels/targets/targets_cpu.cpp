// SPDX-License-Identifier: Apache-2.0
//
// The targets of detection heads and anchor_loss on the CPU: tasks of blocks of anchors, of
// samples, and of classes of a sample. Best overlaps are raised and positives added by integer
// atomics, whose order does not matter.
#include <algorithm>
#include <vector>

#include "csrc/kernels/targets/anchor_loss.h"
#include "csrc/kernels/targets/anchor_targets.h"
#include "csrc/kernels/targets/center_targets.h"

namespace torchvox {
namespace {

constexpr int64_t kAnchorsAtOnce = 256;
constexpr int64_t kBoxesPerTask = 1024;
constexpr int64_t kBlocksPerTask = 4;

struct AnchorBlock {
  int64_t begin = 0, size = 0;
  AxisBox box[kAnchorsAtOnce];
  AxisBox bounds = no_bounds();
};

struct Assigner {
  const AnchorTargetsArgs& args;
  const AnchorScratch& scratch;
  const ParallelFor& parallel_for;
  const int64_t rows = args.targets.rows();

  void run() {
    for_each_index(parallel_for, args.targets.batches * rows, kBoxesPerTask, [&](int64_t i) {
      scratch.rect[i] = target_rect(args, i / rows, i % rows);
      scratch.most[i] = 0;
    });
    std::fill(args.num_pos, args.num_pos + args.targets.batches, 0);
    each_block([&](int64_t batch, const AnchorBlock& block, const std::vector<int32_t>& near) {
      find_best(batch, block, near);
    });
    each_block([&](int64_t batch, const AnchorBlock& block, const std::vector<int32_t>& near) {
      assign(batch, block, near);
    });
  }

  const AnchorRule& rule(int64_t anchor) const { return args.rule[anchor % args.per_cell]; }

  // Calls body(batch, block, near) for every block and sample; near are the boxes that reach into
  // the block.
  template <class Body>
  void each_block(const Body& body) const {
    const int64_t anchors = args.num_anchors();
    const int64_t blocks = (anchors + kAnchorsAtOnce - 1) / kAnchorsAtOnce;
    for_each_index(parallel_for, blocks, kBlocksPerTask, [&](int64_t i) {
      AnchorBlock block;
      block.begin = i * kAnchorsAtOnce;
      block.size = std::min(kAnchorsAtOnce, anchors - block.begin);
      for (int64_t k = 0; k < block.size; ++k) {
        block.box[k] = axis_box(args.anchors + (block.begin + k) * kBoxColumns, args.mmdet);
        extend(block.bounds, block.box[k]);
      }
      std::vector<int32_t> near;
      for (int64_t batch = 0; batch < args.targets.batches; ++batch) {
        near.clear();
        for (int64_t g = 0; g < rows; ++g) {
          const TargetRect& target = scratch.rect[batch * rows + g];
          if (target.label >= 0 && reaches(target.box, block.bounds)) {
            near.push_back(static_cast<int32_t>(g));
          }
        }
        body(batch, block, near);
      }
    });
  }

  void find_best(int64_t batch, const AnchorBlock& block, const std::vector<int32_t>& near) const {
    for (const int32_t g : near) {
      const TargetRect& target = scratch.rect[batch * rows + g];
      float most = 0;
      for (int64_t k = 0; k < block.size; ++k) {
        most = std::max(most, overlap_of(rule(block.begin + k), block.box[k], target));
      }
      atomic_raise(&scratch.most[batch * rows + g], float_bits(most));
    }
  }

  void assign(int64_t batch, const AnchorBlock& block, const std::vector<int32_t>& near) const {
    int32_t* const out = args.assigned + batch * args.num_anchors() + block.begin;
    int32_t positives = 0;
    for (int64_t k = 0; k < block.size; ++k) {
      const AnchorRule& own = rule(block.begin + k);
      Assignment assignment;
      for (const int32_t g : near) {
        const TargetRect& target = scratch.rect[batch * rows + g];
        assignment.consider(args, own, overlap_of(own, block.box[k], target), target, g,
                            scratch.most[batch * rows + g]);
      }
      out[k] = assignment.result(args, own);
      positives += out[k] >= 0;
    }
    if (positives > 0) atomic_add(&args.num_pos[batch], positives);
  }
};

// The sum of kTreeValues values, which it overwrites.
double sum_block(double* values) {
  for (int step = kTreeValues / 2; step > 0; step /= 2) {
    for (int k = 0; k < step; ++k) values[k] += values[k + step];
  }
  return values[0];
}

// The sum of the sums of `count` blocks, which it overwrites.
double sum_all(double* sums, int64_t count) {
  for (; count > 1; count = tree_blocks(count)) {
    for (int64_t block = 0; block < tree_blocks(count); ++block) {
      double values[kTreeValues] = {};
      const int64_t begin = block * kTreeValues;
      std::copy(sums + begin, sums + std::min(begin + kTreeValues, count), values);
      sums[block] = sum_block(values);
    }
  }
  return count > 0 ? sums[0] : 0.0;
}

template <class M>
void sum_terms(const AnchorLossArgs& args, const LossScratch& scratch,
               const ParallelFor& parallel_for) {
  const int64_t anchors = args.num_anchors();
  for_each_index(parallel_for, args.batches * scratch.blocks, kBlocksPerTask, [&](int64_t i) {
    const int64_t batch = i / scratch.blocks, block = i % scratch.blocks;
    double values[kLossTerms][kTreeValues] = {};
    const int64_t begin = block * kTreeValues, end = std::min(begin + kTreeValues, anchors);
    for (int64_t anchor = begin; anchor < end; ++anchor) {
      const auto terms = anchor_terms<M>(args, AnchorPlace(args, batch, anchor));
      for (int t = 0; t < kLossTerms; ++t) values[t][anchor - begin] = terms.at[t];
    }
    for (int t = 0; t < kLossTerms; ++t) {
      scratch.sums[(batch * kLossTerms + t) * scratch.blocks + block] = sum_block(values[t]);
    }
  });
  for_each_index(parallel_for, args.batches * kLossTerms, 1, [&](int64_t i) {
    write_loss<M>(args, i, sum_all(scratch.sums + i * scratch.blocks, scratch.blocks));
  });
}

// The slots of all tasks of a sample, and its objects.
void place(const CenterTargetsArgs& args, const CenterScratch& scratch, int64_t batch) {
  const int64_t slots = args.tasks * args.max_objects;
  std::fill_n(args.cell + batch * slots, slots, -1);
  std::fill_n(args.box + batch * slots, slots, -1);
  int32_t* const count = args.count + batch * args.tasks;
  std::fill_n(count, args.tasks, 0);
  for (int64_t g = 0; g < args.targets.rows(); ++g) {
    CenterObject object = center_object(args, batch, g);
    if (object.label >= 0 && !object.ignored) {
      const int32_t task = args.task[object.label];
      if (count[task] < args.max_objects) {
        const int64_t slot = batch * slots + task * args.max_objects + count[task]++;
        args.cell[slot] = static_cast<int32_t>(object.y * args.width + object.x);
        args.box[slot] = static_cast<int32_t>(g);
      } else {
        object.label = -1;
      }
    }
    scratch.object[batch * args.targets.rows() + g] = object;
  }
}

// The heatmap of one class of a sample. Objects come first; then an ignored box sets to -1 the
// cells where its Gaussian is larger than theirs.
void draw(const CenterTargetsArgs& args, const CenterScratch& scratch, int64_t batch,
          int64_t label) {
  float* const plane = args.heatmap + (batch * args.classes + label) * args.height * args.width;
  std::fill_n(plane, args.height * args.width, 0.0f);
  const CenterObject* const objects = scratch.object + batch * args.targets.rows();
  for (const int32_t kind : {0, 1}) {
    for (int64_t g = 0; g < args.targets.rows(); ++g) {
      const CenterObject& object = objects[g];
      if (object.label != label || object.ignored != kind) continue;
      const int64_t reach = object.radius;
      const int64_t end_y = std::min(args.height, object.y + reach + 1);
      const int64_t end_x = std::min(args.width, object.x + reach + 1);
      for (int64_t y = std::max<int64_t>(0, object.y - reach); y < end_y; ++y) {
        for (int64_t x = std::max<int64_t>(0, object.x - reach); x < end_x; ++x) {
          float& cell = plane[y * args.width + x];
          const float value = gaussian(object, x, y);
          if (kind == 0) {
            cell = std::max(cell, value);
          } else if (value > cell && cell >= 0) {
            cell = -1;
          }
        }
      }
    }
  }
}

}  // namespace

void run_cpu(const AnchorTargetsArgs& args, void* memory, const ParallelFor& parallel_for) {
  Assigner{args, carve<AnchorScratch>(memory, args), parallel_for}.run();
}

void run_cpu(const AnchorLossArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto scratch = carve<LossScratch>(memory, args);
  with_point_type(args.dtype,
                  [&](auto type) { sum_terms<decltype(type)>(args, scratch, parallel_for); });
}

void run_cpu(const AnchorLossBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t anchors = args.forward.num_anchors();
  with_point_type(args.forward.dtype, [&](auto type) {
    using M = decltype(type);
    for_each_index(parallel_for, args.forward.batches * anchors, kBlocksPerTask * kTreeValues,
                   [&](int64_t i) {
                     anchor_gradient<M>(args, AnchorPlace(args.forward, i / anchors, i % anchors));
                   });
  });
}

void run_cpu(const CenterTargetsArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto scratch = carve<CenterScratch>(memory, args);
  for_each_index(parallel_for, args.targets.batches, 1,
                 [&](int64_t batch) { place(args, scratch, batch); });
  for_each_index(parallel_for, args.targets.batches * args.classes, 1,
                 [&](int64_t i) { draw(args, scratch, i / args.classes, i % args.classes); });
}

}  // namespace torchvox
