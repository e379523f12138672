// SPDX-License-Identifier: Apache-2.0
//
// Sparse rows: batch norm, max pooling, maps of both kinds, convolution and its gradients.
#include <set>

#include "csrc/kernels/sparse/conv.h"
#include "csrc/kernels/sparse/map.h"
#include "csrc/kernels/sparse/norm.h"
#include "csrc/kernels/sparse/pool.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kRows = 5000;

template <class T>
void run_norm(Side& side, DType dtype, int64_t channels, int32_t valid, bool training) {
  using Real = compute_t<T>;
  const auto values = [&](uint64_t s) { return side.put(Random(s).uniforms<Real>(channels)); };
  SparseNormArgs norm;
  norm.features = side.put(Random(1).uniforms<T>(kRows * channels));
  norm.dtype = dtype, norm.rows = kRows, norm.channels = channels;
  norm.num_valid = {side.put<int32_t>({valid}), false};
  norm.weight = values(2), norm.bias = values(3), norm.eps = 1;
  if (!training) norm.mean = values(4), norm.var = values(5);
  norm.out = side.room<T>(kRows * channels);
  side.room<Real>(&norm.first, channels, &norm.second, channels);
  side.run(norm);

  SparseNormArgs backward = norm;
  backward.gradient = true, backward.grad = norm.out;
  backward.mean = norm.first, backward.var = norm.second, backward.training = training;
  backward.out = side.room<T>(kRows * channels);
  side.room<Real>(&backward.first, channels, &backward.second, channels);
  side.run(backward);
}

// Whole packs of channels and others, three levels of the tree.
KERNEL_CASE(sparse_batch_norm, 0x34d796d1f5718c6e, {"sparse_cpu", {0, 1, 2}}) {
  run_norm<float>(side, DType::kFloat, 36, kRows - 1, true);
  run_norm<float>(side, DType::kFloat, 5, 33, false);
  run_norm<Half>(side, DType::kHalf, 40, kRows, true);
  run_norm<BFloat16>(side, DType::kBFloat16, 3, 1025, true);
  run_norm<double>(side, DType::kDouble, 70, -1, true);
}

KERNEL_CASE(sparse_max_pool, 0xa50dd92e47040678) {
  constexpr int64_t kVolume = 9, kChannels = 5;
  SparsePoolArgs pool;
  pool.table.entries = side.put(Random(1).integers(kVolume * kRows, -2, kRows + 2));
  pool.table.volume = kVolume, pool.table.rows = pool.table.sources = kRows;
  pool.table.num_valid = {side.put<int64_t>({kRows - 3}), true};
  pool.features = side.put(Random(2).integers<float>(kRows * kChannels, -3, 3));  // maxima tie
  pool.channels = kChannels;
  side.room(&pool.out, kRows * kChannels, &pool.arg, kRows * kChannels);
  side.run(pool);
  SparsePoolBackwardArgs backward;
  backward.table = pool.table;
  backward.grad = pool.out, backward.arg = pool.arg, backward.channels = kChannels;
  backward.out = side.room<float>(kRows * kChannels);
  side.run(backward);
}

constexpr int32_t kSizes[4] = {2, 4, 5, 70};  // b, z, y, x: cells of a line lie in two segments
constexpr int64_t kMapRows = 700, kVolume = 27;
constexpr int32_t kNone = std::numeric_limits<int32_t>::min();

// Rows of which some are twice, some outside, some any integers; of the last ones none is in use.
SparseMapArgs make_map(Side& side, bool submanifold) {
  Random random(1);
  std::vector<int32_t> indices;
  for (int64_t row = 0; row < kMapRows; ++row) {
    for (const int32_t size : kSizes) {
      indices.push_back(static_cast<int32_t>(random.below(size + (row % 7 == 0))));
    }
    if (row % 11 == 3) indices.back() = row % 2 ? kNone : -1 - kNone;
  }
  SparseMapArgs map;
  map.indices = reinterpret_cast<decltype(map.indices)>(side.put(indices));
  map.rows = kMapRows, map.batches = kSizes[0];
  map.num_valid = {side.put<int64_t>({kMapRows - 50}), true};
  for (int a = 0; a < 3; ++a) {
    const int32_t size = kSizes[a + 1], stride = submanifold ? 1 : 2;
    map.axes[a].size = size, map.axes[a].out_size = (size + stride - 1) / stride;
    map.axes[a].kernel = 3, map.axes[a].padding = 1, map.axes[a].stride = stride;
  }
  map.submanifold = submanifold, map.most_leaves = kMapRows * 8;
  map.out_rows = submanifold ? kMapRows : 400;  // fewer than are found
  side.room(&map.neighbors, kVolume * map.out_rows, &map.counts, (map.batches + 1) * kCountColumns);
  if (!submanifold) {
    side.room(&map.inverse, kVolume * kMapRows, &map.out_indices, map.out_rows);
  }
  return map;
}

// The places where the search for lines of a column begins, in a grid of `width` lines along x.
size_t first_places(uint64_t width) {
  CellTable table;
  table.places = 3001;
  std::set<uint32_t> places;
  for (uint64_t i = 0; i < 1000; ++i) places.insert(table.first(i * width));
  return places.size();
}

KERNEL_CASE(sparse_map, 0xa0c20dcb2c02f787, {"sparse_map", {0, 1}}) {
  for (const uint64_t width : {1, 13, 233, 4181, 121393, 1 << 20}) {  // Fibonacci numbers, and 2^20
    CHECK(first_places(width) > 600);
  }
  for (const bool submanifold : {true, false}) side.run(make_map(side, submanifold));
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
  conv.relu = true, conv.dtype = dtype, conv.in_channels = in, conv.out_channels = out;
  conv.out = side.room<T>(conv.table.rows * out);
  side.run(conv);

  SparseConvWeightArgs gradient;
  gradient.table = conv.table, gradient.features = conv.features, gradient.grad = conv.residual;
  gradient.dtype = dtype, gradient.in_channels = in, gradient.out_channels = out;
  side.room<T>(&gradient.grad_weight, gradient.weights(), &gradient.grad_bias, out);
  side.run(gradient);
}

KERNEL_CASE(sparse_conv, 0x82ce0e3b73ab1078, {"sparse_cpu", {0, 1, 2}}) {
  convolve<float>(side, DType::kFloat, 5, 19);
  convolve<double>(side, DType::kDouble, 9, 7);
}

}  // namespace
