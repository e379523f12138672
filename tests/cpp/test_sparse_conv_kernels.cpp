// SPDX-License-Identifier: Apache-2.0
//
// Sparse convolution: maps of both kinds, values, and gradients of weight and bias.
#include "csrc/kernels/sparse/conv.h"
#include "csrc/kernels/sparse/map.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int32_t kSizes[4] = {2, 4, 5, 70};  // b, z, y, x: cells of a line lie in two segments
constexpr int64_t kRows = 700, kVolume = 27;
constexpr int32_t kNone = std::numeric_limits<int32_t>::min();

// Rows of which some are twice, some outside, some any integers; of the last ones none is in use.
SparseMapArgs make_map(Side& side, bool submanifold) {
  Random random(1);
  std::vector<int32_t> indices;
  for (int64_t row = 0; row < kRows; ++row) {
    for (const int32_t size : kSizes) {
      indices.push_back(static_cast<int32_t>(random.below(size + (row % 7 == 0))));
    }
    if (row % 11 == 3) indices.back() = row % 2 ? kNone : -1 - kNone;
  }
  SparseMapArgs map;
  map.indices = reinterpret_cast<decltype(map.indices)>(side.put(indices));
  map.rows = kRows;
  map.num_valid = {side.put(std::vector<int64_t>{kRows - 50}), true};
  map.batches = kSizes[0];
  for (int a = 0; a < 3; ++a) {
    map.axes[a].size = map.axes[a].out_size = kSizes[a + 1];
    map.axes[a].kernel = 3, map.axes[a].padding = 1;
    if (!submanifold) {
      map.axes[a].stride = 2;
      map.axes[a].out_size = (kSizes[a + 1] + 1) / 2;
    }
  }
  map.submanifold = submanifold;
  map.most_leaves = kRows * 8;
  map.out_rows = submanifold ? kRows : 400;  // fewer than are found
  map.neighbors = side.room<int32_t>(kVolume * map.out_rows);
  map.counts = side.room<int32_t>((map.batches + 1) * kCountColumns);
  if (!submanifold) {
    map.inverse = side.room<int32_t>(kVolume * kRows);
    map.out_indices =
        reinterpret_cast<decltype(map.out_indices)>(side.room<int32_t>(4 * map.out_rows));
  }
  return map;
}

KERNEL_CASE(sparse_map, 0xa0c20dcb2c02f787, {"sparse_map", {0, 1}}) {
  for (const bool submanifold : {true, false}) {
    side.run(make_map(side, submanifold));
  }
}

// Any integers; more rows than a segment has, the last ones not in use.
SparseTable make_table(Side& side, int64_t sources) {
  constexpr int64_t kTableRows = 2 * kSparseSegment + 100;
  Random random(2);
  std::vector<int32_t> entries = random.integers(kVolume * kTableRows, -sources, sources + 9);
  for (size_t i = 0; i < entries.size(); i += 13) entries[i] = i % 2 ? kNone : -1 - kNone;
  SparseTable table;
  table.entries = side.put(entries);
  table.volume = kVolume, table.rows = kTableRows, table.sources = sources;
  table.num_valid = {side.put(std::vector<int32_t>{kTableRows - 30}), false};
  return table;
}

// Channels beside the widths of tiles, special values, weights in another order.
template <class T>
void convolve(Side& side, DType dtype, int64_t in, int64_t out) {
  SparseConvArgs conv;
  conv.table = make_table(side, 300);
  std::vector<T> features = Random(3).uniforms<T>(300 * in);
  features[7] = narrow<T>(compute_t<T>(kNan)), features[in] = narrow<T>(compute_t<T>(-0.0f));
  conv.features = side.put(features);
  conv.weight = {side.put(Random(4).uniforms<T>(out * kVolume * in)), 1, in * out, out, true};
  conv.bias = side.put(Random(5).uniforms<T>(out));
  conv.residual = side.put(Random(6).uniforms<T>(conv.table.rows * out));
  conv.relu = true;
  conv.dtype = dtype;
  conv.in_channels = in, conv.out_channels = out;
  conv.out = side.room<T>(conv.table.rows * out);
  side.run(conv);

  SparseConvWeightArgs gradient;
  gradient.table = conv.table;
  gradient.features = conv.features;
  gradient.grad = conv.residual;
  gradient.dtype = dtype;
  gradient.in_channels = in, gradient.out_channels = out;
  gradient.grad_weight = side.room<T>(gradient.weights());
  gradient.grad_bias = side.room<T>(out);
  side.run(gradient);
}

KERNEL_CASE(sparse_conv, 0x82ce0e3b73ab1078, {"sparse_cpu", {0, 1, 2}}) {
  convolve<float>(side, DType::kFloat, 5, 19);
  convolve<double>(side, DType::kDouble, 9, 7);
}

}  // namespace
