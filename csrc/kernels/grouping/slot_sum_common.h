// SPDX-License-Identifier: Apache-2.0
//
// What one slot adds to a sum, for the host's loops and the device's threads. A Gradient is made
// for one cloud and one item, a few channels side by side. load(slot) reads what the slot holds,
// ahead of its turn; begin(row) turns to a row; term() is what the slot adds to it; store() ends
// the row.
#pragma once

#include "csrc/kernels/grouping/chunked_sum.h"
#include "csrc/kernels/grouping/items.h"
#include "csrc/kernels/grouping/slot_sum.h"

namespace torchvox {

// Weights are few: their type is told apart at run time.
template <class Sum>
TORCHVOX_HD Sum load_weight(const void* weights, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kHalf: return widen_item(static_cast<const Half*>(weights)[at]);
    case DType::kBFloat16: return widen_item(static_cast<const BFloat16*>(weights)[at]);
    case DType::kDouble: return static_cast<Sum>(static_cast<const double*>(weights)[at]);
    case DType::kFloat: break;
  }
  return static_cast<const float*>(weights)[at];
}

template <class T, int kWidth>
struct SlotGradient {
  using Args = SlotSumArgs;
  using Sum = Lanes<compute_t<T>, kWidth>;
  const T* grad;
  T* out;
  int64_t grad_stride, out_stride;  // elements from one row to the next
  const void* weight;
  DType weight_dtype;
  int64_t first_weight;
  uint32_t fan;

  TORCHVOX_HD SlotGradient(const SlotSumArgs& args, int64_t cloud, int64_t item) {
    const SlotLists& lists = args.lists;
    fan = static_cast<uint32_t>(args.fan);
    const int64_t samples = lists.slots / fan, channel = item * kWidth;
    grad = static_cast<const T*>(args.grad) + cloud * samples * args.channels +
        channel * (args.channels_first ? samples : 1);
    out = static_cast<T*>(args.out) + cloud * lists.rows * args.channels +
        channel * (args.channels_first ? lists.rows : 1);
    grad_stride = out_stride = args.channels_first ? 1 : args.channels;
    weight = args.weight;
    weight_dtype = args.weight_dtype;
    first_weight = cloud * lists.slots;
  }
  static TORCHVOX_HD int64_t items(const SlotSumArgs& args) { return args.channels / kWidth; }

  TORCHVOX_HD Sum load(uint32_t slot) const {
    const uint32_t sample = fan == 1 ? slot : slot / fan;
    Sum value = load_items<T, kWidth>(grad + sample * grad_stride);
    if (weight) value.scale(load_weight<compute_t<T>>(weight, weight_dtype, first_weight + slot));
    return value;
  }
  TORCHVOX_HD void begin(int64_t) {}
  TORCHVOX_HD const Sum& term(const Sum& value) const { return value; }
  TORCHVOX_HD void store(int64_t row, const Sum& sum) const {
    store_items<T, kWidth>(out + row * out_stride, sum);
  }
};

// Sums the list of a row in one go.
template <class Gradient>
void sum_list(const typename Gradient::Args& args, int64_t cloud, int64_t row, int64_t item) {
  const SlotLists& lists = args.lists;
  const int32_t* const order = lists.order + cloud * lists.slots;
  const int32_t* const range = lists.offsets + cloud * (lists.rows + 1) + row;
  Gradient gradient(args, cloud, item);
  gradient.begin(row);
  ChunkedSum<typename Gradient::Sum> sum;
  for (int64_t at = range[0]; at < range[1]; ++at) {
    sum.add(gradient.term(gradient.load(static_cast<uint32_t>(order[at]))));
  }
  gradient.store(row, sum.total());
}

}  // namespace torchvox
