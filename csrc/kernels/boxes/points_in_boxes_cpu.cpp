// SPDX-License-Identifier: Apache-2.0
//
// points_in_boxes on the CPU: blocks of 1,024 points, coordinate by coordinate, so that the test of
// one box against many points vectorizes.
#include <algorithm>
#include <vector>

#include "csrc/kernels/boxes/points_in_boxes.h"

namespace torchvox {
namespace {

constexpr int64_t kPointsAtOnce = 1024;
constexpr int64_t kBlocksPerTask = 4;

template <class T>
struct PointBlock {
  int64_t begin, size;
  T x[kPointsAtOnce], y[kPointsAtOnce], z[kPointsAtOnce];

  // body(k, whether the box holds it) for every point k of the block.
  template <class Body>
  void test(const PointBox<T>& box, const Body& body) const {
    for (int64_t k = 0; k < size; ++k) body(k, box.holds(x[k], y[k], z[k]));
  }
};

template <class T>
struct Holder {
  const PointsInBoxesArgs& args;
  const ParallelFor& parallel_for;
  std::vector<PointBox<T>> boxes = {};

  void run() {
    for (int64_t batch = 0; batch < args.batches; ++batch) {
      load(batch);
      switch (args.mode) {
        case PointsInBoxesMode::kIndex: write_index(batch); break;
        case PointsInBoxesMode::kMask: write_mask(batch); break;
        case PointsInBoxesMode::kCount: write_count(batch); break;
        case PointsInBoxesMode::kBits: write_bits(batch); break;
      }
    }
  }

  void load(int64_t batch) {
    boxes.resize(args.box_count(batch));
    for (size_t g = 0; g < boxes.size(); ++g) {
      const T* const row = args.boxes.row<T>(batch, static_cast<int64_t>(g));
      boxes[g] = point_box(row, static_cast<T>(args.margin));
    }
  }

  int64_t blocks() const { return (args.points.rows + kPointsAtOnce - 1) / kPointsAtOnce; }

  // body(index, block) for every block of the batch's points.
  template <class Body>
  void each_block(int64_t batch, const Body& body) const {
    const int64_t points = args.point_count(batch);
    for_each_index(parallel_for, blocks(), kBlocksPerTask, [&](int64_t i) {
      PointBlock<T> block;
      block.begin = i * kPointsAtOnce;
      block.size = std::min(kPointsAtOnce, std::max(points - block.begin, int64_t{0}));
      for (int64_t k = 0; k < block.size; ++k) {
        const T* const p = args.points.row<T>(batch, block.begin + k);
        block.x[k] = p[0];
        block.y[k] = p[1];
        block.z[k] = p[2];
      }
      body(i, block);
    });
  }
  // Entries of the output for the block, including those of points that do not exist.
  int64_t places(const PointBlock<T>& block) const {
    return std::min(kPointsAtOnce, args.points.rows - block.begin);
  }

  void write_index(int64_t batch) {
    each_block(batch, [&](int64_t, const PointBlock<T>& block) {
      int32_t* const out = static_cast<int32_t*>(args.out) + batch * args.points.rows + block.begin;
      std::fill(out, out + places(block), -1);
      for (size_t g = boxes.size(); g-- > 0;) {  // backwards: the first box overwrites later ones
        block.test(boxes[g], [&](int64_t k, bool inside) {
          out[k] = inside ? static_cast<int32_t>(g) : out[k];
        });
      }
    });
  }
  void write_mask(int64_t batch) {
    each_block(batch, [&](int64_t, const PointBlock<T>& block) {
      for (int64_t g = 0; g < args.boxes.rows; ++g) {
        bool* const out = static_cast<bool*>(args.out) +
            (batch * args.boxes.rows + g) * args.points.rows + block.begin;
        int64_t written = 0;
        if (g < static_cast<int64_t>(boxes.size())) {
          block.test(boxes[g], [&](int64_t k, bool inside) { out[k] = inside; });
          written = block.size;
        }
        std::fill(out + written, out + places(block), false);
      }
    });
  }
  void write_bits(int64_t batch) {
    each_block(batch, [&](int64_t, const PointBlock<T>& block) {
      for (size_t g = 0; g < boxes.size(); ++g) {
        bool mask[kPointsAtOnce] = {};
        block.test(boxes[g], [&](int64_t k, bool inside) { mask[k] = inside; });
        uint32_t* const out = static_cast<uint32_t*>(args.out) +
            (batch * args.boxes.rows + static_cast<int64_t>(g)) * args.words() + block.begin / 32;
        for (int64_t k = 0; k < places(block); k += 32) {
          uint32_t word = 0;
          for (int bit = 0; bit < 32; ++bit) word |= uint32_t{mask[k + bit]} << bit;
          out[k / 32] = word;
        }
      }
    });
  }
  void write_count(int64_t batch) {
    const int64_t existing = static_cast<int64_t>(boxes.size());
    std::vector<int32_t> counts(blocks() * existing);
    each_block(batch, [&](int64_t i, const PointBlock<T>& block) {
      for (int64_t g = 0; g < existing; ++g) {
        int32_t count = 0;
        block.test(boxes[g], [&](int64_t, bool inside) { count += inside; });
        counts[i * existing + g] = count;
      }
    });
    int32_t* const out = static_cast<int32_t*>(args.out) + batch * args.boxes.rows;
    std::fill(out, out + args.boxes.rows, 0);
    for (int64_t i = 0; i < blocks(); ++i) {
      for (int64_t g = 0; g < existing; ++g) out[g] += counts[i * existing + g];
    }
  }
};

}  // namespace

int64_t workspace_bytes_cpu(const PointsInBoxesArgs&) { return 0; }

void run_cpu(const PointsInBoxesArgs& args, void*, const ParallelFor& parallel_for) {
  with_compute_type(args.dtype,
                    [&](auto type) { Holder<decltype(type)>{args, parallel_for}.run(); });
}

}  // namespace torchvox
