// SPDX-License-Identifier: Apache-2.0
//
// The operators on boxes on the CPU. points_in_boxes takes blocks of 1,024 points, coordinate by
// coordinate, so that the test of one box against many points vectorizes; box_query then reads the
// bits of a box. rotated_iou prepares the boxes of b once for all rows of the matrix; gradients are
// summed in 32 partial sums and a tree, as by a warp.
#include <algorithm>
#include <vector>

#include "csrc/kernels/boxes/box_query.h"
#include "csrc/kernels/boxes/place_boxes.h"
#include "csrc/kernels/boxes/points_in_boxes.h"
#include "csrc/kernels/boxes/rotated_iou.h"

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

template <class T>
void walk_box(const BoxQueryArgs& args, const void* bits, int64_t row) {
  const BoxWalk walk(args, bits, row);
  std::fill(walk.count, walk.count + args.cells(), 0);
  if (walk.words > 0) {
    const CellBox<T> box(args, args.inside.boxes.row<T>(walk.batch, row % args.inside.boxes.rows));
    for (int64_t w = 0; w < walk.words; ++w) {
      for (uint32_t left = walk.bits[w]; left != 0; left &= left - 1) {
        const int64_t i = w * 32 + __builtin_ctz(left);
        const int64_t cell = box.cell(args.inside.points.row<T>(walk.batch, i));
        const int64_t slot = walk.count[cell]++;
        if (slot < args.slots) walk.index[cell * args.slots + slot] = static_cast<int32_t>(i);
      }
    }
  }
  for (int64_t cell = 0; cell < args.cells(); ++cell) {
    int32_t* const slots = walk.index + cell * args.slots;
    std::fill(slots + std::min<int64_t>(walk.count[cell], args.slots), slots + args.slots, -1);
  }
}

constexpr int64_t kPairsPerTask = 1024;
constexpr int64_t kGradientRowsPerTask = 8;

int64_t rows_per_task(int64_t pairs_per_row) {
  return pairs_per_row > 0 && pairs_per_row < kPairsPerTask ? kPairsPerTask / pairs_per_row : 1;
}

// Room for the prepared boxes of b.
template <class T>
Box3<T>* take_boxes(const RotatedIouArgs& args, Workspace& workspace) {
  return workspace.take<Box3<T>>(args.is_paired ? 0 : args.batches * args.b.rows);
}

template <class T>
void measure_matrix(const RotatedIouArgs& args, Box3<T>* boxes, const ParallelFor& parallel_for) {
  const int64_t columns = args.b.rows;
  for_each_index(parallel_for, args.batches * columns, kPairsPerTask, [&](int64_t j) {
    boxes[j] = load_box<T>(args, args.b, j / columns, j % columns);
  });
  const int64_t rows = args.batches * args.a.rows;
  for_each_index(parallel_for, rows, rows_per_task(columns), [&](int64_t i) {
    const int64_t batch = i / args.a.rows;
    const Box3<T> a = load_box<T>(args, args.a, batch, i % args.a.rows);
    const Box3<T>* const b = boxes + batch * columns;
    T* const out = static_cast<T*>(args.iou) + i * columns;
    for (int64_t j = 0; j < columns; ++j) {
      out[j] = pair_overlap(a, b[j], args.is_volume, args.metric);
    }
  });
}

template <class T>
void sum_row(const GradientRow<T>& row) {
  const Box3<T> mine = load_box<T>(row.args.forward, row.own(), row.batch, row.row);
  BoxGradient<T> sums[kPartialSums] = {};
  for (int64_t k = 0; k < row.others().rows; ++k) row.add(mine, k, sums[k % kPartialSums]);
  for (int step = kPartialSums / 2; step > 0; step /= 2) {
    for (int part = 0; part < step; ++part) {
      for (int c = 0; c < kBoxColumns; ++c) sums[part].at[c] += sums[part + step].at[c];
    }
  }
  row.write(sums[0]);
}

template <class T>
void sum_side(const RotatedIouBackwardArgs& args, bool of_a, const ParallelFor& parallel_for) {
  const int64_t rows = of_a ? args.forward.a.rows : args.forward.b.rows;
  for_each_index(parallel_for, args.forward.batches * rows, kGradientRowsPerTask,
                 [&](int64_t i) { sum_row(GradientRow<T>{args, of_a, i / rows, i % rows}); });
}

}  // namespace

int64_t workspace_bytes_cpu(const PointsInBoxesArgs&) { return 0; }

void run_cpu(const PointsInBoxesArgs& args, void*, const ParallelFor& parallel_for) {
  with_compute_type(args.dtype,
                    [&](auto type) { Holder<decltype(type)>{args, parallel_for}.run(); });
}

void run_cpu(const BoxQueryArgs& args, void* memory, const ParallelFor& parallel_for) {
  const PointsInBoxesArgs bits = bits_of(args, memory);
  run_cpu(bits, nullptr, parallel_for);
  with_compute_type(args.inside.dtype, [&](auto type) {
    for_each_index(parallel_for, args.rows(), 1,
                   [&](int64_t row) { walk_box<decltype(type)>(args, bits.out, row); });
  });
}

void run_cpu(const PlaceBoxesArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto scratch = carve<PlaceScratch>(memory, args);
  for_each_index(parallel_for, args.batches, 1,
                 [&](int64_t batch) { ScenePlacer(args, scratch, batch, Team()).run(); });
}

int64_t workspace_bytes_cpu(const RotatedIouArgs& args) {
  Workspace workspace;
  with_compute_type(args.dtype, [&](auto type) { take_boxes<decltype(type)>(args, workspace); });
  return workspace.bytes();
}

void run_cpu(const RotatedIouArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  with_compute_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.is_paired) {
      for_each_index(parallel_for, args.batches * args.a.rows, kPairsPerTask,
                     [&](int64_t i) { pair_element<T>(args, i); });
    } else {
      measure_matrix<T>(args, take_boxes<T>(args, workspace), parallel_for);
    }
  });
}

void run_cpu(const RotatedIouBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  const RotatedIouArgs& forward = args.forward;
  with_compute_type(forward.dtype, [&](auto type) {
    using T = decltype(type);
    if (forward.is_paired) {
      return for_each_index(parallel_for, forward.batches * forward.a.rows, kPairsPerTask,
                            [&](int64_t i) { pair_gradient_element<T>(args, i); });
    }
    if (args.grad_a) sum_side<T>(args, true, parallel_for);
    if (args.grad_b) sum_side<T>(args, false, parallel_for);
  });
}

}  // namespace torchvox
