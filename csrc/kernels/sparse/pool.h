// SPDX-License-Identifier: Apache-2.0
//
// sparse_max_pool and its gradient, one element at a time.
#pragma once

#include "csrc/kernels/core/items.h"
#include "csrc/kernels/core/map.h"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {

struct SparsePoolArgs {
  SparseTable table;
  const void* features = nullptr;  // [sources, channels]
  DType dtype = DType::kFloat;
  int64_t channels = 0;
  void* out = nullptr;  // [rows, channels]
  int32_t* arg = nullptr;  // [rows, channels]: the row of the largest value, or -1
};

struct SparsePoolBackwardArgs {
  SparseTable table;  // the inverse one: which outputs a row may have won
  const void* grad = nullptr;  // [sources, channels]
  const int32_t* arg = nullptr;  // [sources, channels]
  DType dtype = DType::kFloat;
  int64_t channels = 0;
  void* out = nullptr;  // [rows, channels]
};

// NaN beats every number; of equal values the first one stays.
template <class T>
TORCHVOX_HD void pool_element(const SparsePoolArgs& args, int64_t i) {
  const int64_t row = divide(i, args.channels), channel = i - row * args.channels;
  const int64_t volume = row < args.table.valid() ? args.table.volume : 0;
  compute_t<T> most = 0;
  int32_t arg = -1;
  for (int64_t k = 0; k < volume; ++k) {
    const int32_t source = args.table.at(k, row, args.table.sources);
    if (source < 0) continue;
    const auto x =
        widen_item(static_cast<const T*>(args.features)[source * args.channels + channel]);
    if (arg < 0 || x > most || (is_nan(x) && !is_nan(most))) most = x, arg = source;
  }
  static_cast<T*>(args.out)[i] = narrow_item<T>(most);
  args.arg[i] = arg;
}
TORCHVOX_TYPED_MAP(SparsePoolArgs, with_point_type, args.dtype, pool_element,
                   args.table.rows* args.channels, 1024, 256);

template <class T>
TORCHVOX_HD void pool_gradient(const SparsePoolBackwardArgs& args, int64_t i) {
  const int64_t row = divide(i, args.channels), channel = i - row * args.channels;
  compute_t<T> sum = 0;
  for (int64_t k = 0; k < args.table.volume; ++k) {
    const int32_t output = args.table.at(k, row, args.table.sources);
    if (output < 0) continue;
    const int64_t at = output * args.channels + channel;
    if (args.arg[at] == row) sum += widen_item(static_cast<const T*>(args.grad)[at]);
  }
  static_cast<T*>(args.out)[i] = narrow_item<T>(sum);
}
TORCHVOX_TYPED_MAP(SparsePoolBackwardArgs, with_point_type, args.dtype, pool_gradient,
                   args.table.rows* args.channels, 1024, 256);

}  // namespace torchvox
