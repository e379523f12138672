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

class Assigner {
 public:
  Assigner(const AnchorTargetsArgs& args, const AnchorScratch& scratch,
           const ParallelFor& parallel_for)
      : args_(args), scratch_(scratch), rows_(args.targets.rows()), parallel_for_(parallel_for) {}

  void run() {
    for_each_index(parallel_for_, args_.targets.batches * rows_, kBoxesPerTask, [&](int64_t i) {
      scratch_.rect[i] = target_rect(args_, i / rows_, i % rows_);
      scratch_.most[i] = 0;
    });
    std::fill(args_.num_pos, args_.num_pos + args_.targets.batches, 0);
    each_block([&](int64_t batch, const AnchorBlock& block, const std::vector<int32_t>& near) {
      find_best(batch, block, near);
    });
    each_block([&](int64_t batch, const AnchorBlock& block, const std::vector<int32_t>& near) {
      assign(batch, block, near);
    });
  }

 private:
  const AnchorRule& rule(int64_t anchor) const { return args_.rule[anchor % args_.per_cell]; }

  // Calls body(batch, block, near) for every block and sample; near are the boxes that reach into
  // the block.
  template <class Body>
  void each_block(const Body& body) const {
    const int64_t anchors = args_.num_anchors();
    const int64_t blocks = (anchors + kAnchorsAtOnce - 1) / kAnchorsAtOnce;
    for_each_index(parallel_for_, blocks, kBlocksPerTask, [&](int64_t i) {
      AnchorBlock block;
      block.begin = i * kAnchorsAtOnce;
      block.size = std::min(kAnchorsAtOnce, anchors - block.begin);
      for (int64_t k = 0; k < block.size; ++k) {
        block.box[k] = axis_box(args_.anchors + (block.begin + k) * kBoxColumns, args_.mmdet);
        extend(block.bounds, block.box[k]);
      }
      std::vector<int32_t> near;
      for (int64_t batch = 0; batch < args_.targets.batches; ++batch) {
        near.clear();
        for (int64_t g = 0; g < rows_; ++g) {
          const TargetRect& target = scratch_.rect[batch * rows_ + g];
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
      const TargetRect& target = scratch_.rect[batch * rows_ + g];
      float most = 0;
      for (int64_t k = 0; k < block.size; ++k) {
        most = std::max(most, overlap_of(rule(block.begin + k), block.box[k], target));
      }
      atomic_raise(&scratch_.most[batch * rows_ + g], float_bits(most));
    }
  }

  void assign(int64_t batch, const AnchorBlock& block, const std::vector<int32_t>& near) const {
    int32_t* const out = args_.assigned + batch * args_.num_anchors() + block.begin;
    int32_t positives = 0;
    for (int64_t k = 0; k < block.size; ++k) {
      const AnchorRule& own = rule(block.begin + k);
      Assignment assignment;
      for (const int32_t g : near) {
        const TargetRect& target = scratch_.rect[batch * rows_ + g];
        assignment.consider(args_, own, overlap_of(own, block.box[k], target), target, g,
                            scratch_.most[batch * rows_ + g]);
      }
      out[k] = assignment.result(args_, own);
      positives += out[k] >= 0;
    }
    if (positives > 0) atomic_add(&args_.num_pos[batch], positives);
  }

  const AnchorTargetsArgs& args_;
  const AnchorScratch& scratch_;
  const int64_t rows_;
  const ParallelFor& parallel_for_;
};

}  // namespace

void run_cpu(const AnchorTargetsArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  Assigner(args, AnchorScratch(args, workspace), parallel_for).run();
}

}  // namespace torchvox
