// SPDX-License-Identifier: Apache-2.0
//
// anchor_targets on the CPU: tasks of blocks of anchors, whose rectangles are calculated once for
// all samples. Best overlaps are raised and positives added by integer atomics, whose order does
// not matter.
#include <algorithm>
#include <vector>

#include "csrc/kernels/targets/anchor_targets.h"

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

}  // namespace

void run_cpu(const AnchorTargetsArgs& args, void* memory, const ParallelFor& parallel_for) {
  Assigner{args, carve<AnchorScratch>(memory, args), parallel_for}.run();
}

}  // namespace torchvox
