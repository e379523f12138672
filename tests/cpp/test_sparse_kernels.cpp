// SPDX-License-Identifier: Apache-2.0
//
// Batch norm and max pooling of sparse rows.
#include "csrc/kernels/sparse/norm.h"
#include "csrc/kernels/sparse/pool.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kRows = 5000;

template <class T>
void run_norm(Side& side, DType dtype, int64_t channels, int32_t valid, bool training) {
  using Real = compute_t<T>;
  const auto values = [&](uint64_t seed) {
    return side.put(Random(seed).uniforms<Real>(channels));
  };
  SparseNormArgs norm;
  norm.features = side.put(Random(1).uniforms<T>(kRows * channels));
  norm.dtype = dtype;
  norm.rows = kRows, norm.channels = channels;
  norm.num_valid = {side.put<int32_t>({valid}), false};
  norm.weight = values(2), norm.bias = values(3), norm.eps = 1;
  if (!training) norm.mean = values(4), norm.var = values(5);
  norm.out = side.room<T>(kRows * channels);
  norm.first = side.room<Real>(channels), norm.second = side.room<Real>(channels);
  side.run(norm);

  SparseNormArgs backward = norm;
  backward.gradient = true, backward.grad = norm.out;
  backward.mean = norm.first, backward.var = norm.second;
  backward.training = training;
  backward.out = side.room<T>(kRows * channels);
  backward.first = side.room<Real>(channels), backward.second = side.room<Real>(channels);
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
  pool.table = {side.put(Random(1).integers(kVolume * kRows, -2, kRows + 2)),
                kVolume,
                kRows,
                {side.put<int64_t>({kRows - 3}), true},
                kRows,
                {}};
  pool.features = side.put(Random(2).integers<float>(kRows * kChannels, -3, 3));  // maxima tie
  pool.channels = kChannels;
  pool.out = side.room<float>(kRows * kChannels);
  pool.arg = side.room<int32_t>(kRows * kChannels);
  side.run(pool);
  SparsePoolBackwardArgs backward;
  backward.table = pool.table;
  backward.grad = pool.out, backward.arg = pool.arg, backward.channels = kChannels;
  backward.out = side.room<float>(kRows * kChannels);
  side.run(backward);
}

}  // namespace
