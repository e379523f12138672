// SPDX-License-Identifier: Apache-2.0
//
// What one slot adds to one element of a sum, for the host's loops and the device's threads.
#pragma once

#include "csrc/kernels/grouping/chunked_sum.h"
#include "csrc/kernels/grouping/slot_sum.h"

namespace torchvox {

// Weights are few: their type is told apart at run time.
template <class Sum>
TORCHVOX_HD Sum load_weight(const void* weights, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kHalf: return widen(static_cast<const Half*>(weights)[at]);
    case DType::kBFloat16: return widen(static_cast<const BFloat16*>(weights)[at]);
    case DType::kDouble: return static_cast<Sum>(static_cast<const double*>(weights)[at]);
    case DType::kFloat: break;
  }
  return static_cast<const float*>(weights)[at];
}

// The slots of one cloud and channel.
template <class T>
struct SlotGradient {
  using Args = SlotSumArgs;
  using Sum = compute_t<T>;
  const T* grad;
  int64_t stride;  // elements from one row of grad to the next
  const void* weight;
  DType weight_dtype;
  int64_t first_weight;
  uint32_t fan;
  T* out;

  TORCHVOX_HD SlotGradient(const SlotSumArgs& args, int64_t cloud, int64_t row, int64_t channel) {
    const SlotLists& lists = args.lists;
    fan = static_cast<uint32_t>(args.fan);
    const int64_t samples = lists.slots / fan;
    grad = static_cast<const T*>(args.grad) + cloud * samples * args.channels;
    out = static_cast<T*>(args.out) + cloud * lists.rows * args.channels;
    if (args.channels_first) {
      grad += channel * samples;
      out += channel * lists.rows + row;
      stride = 1;
    } else {
      grad += channel;
      out += row * args.channels + channel;
      stride = args.channels;
    }
    weight = args.weight;
    weight_dtype = args.weight_dtype;
    first_weight = cloud * lists.slots;
  }
  static TORCHVOX_HD int64_t channels(const SlotSumArgs& args) { return args.channels; }
  TORCHVOX_HD Sum operator()(uint32_t slot) const {
    const uint32_t sample = fan == 1 ? slot : slot / fan;
    const Sum value = widen(grad[sample * stride]);
    return weight ? load_weight<Sum>(weight, weight_dtype, first_weight + slot) * value : value;
  }
  TORCHVOX_HD void store(Sum sum) const { *out = narrow<T>(quiet(sum)); }
};

// Sums the list of a row in one go.
template <class Gradient>
TORCHVOX_HD void sum_list(const typename Gradient::Args& args, int64_t cloud, int64_t row,
                          int64_t channel) {
  const SlotLists& lists = args.lists;
  const int32_t* const order = lists.order + cloud * lists.slots;
  const int32_t* const range = lists.offsets + cloud * (lists.rows + 1) + row;
  const Gradient gradient(args, cloud, row, channel);
  ChunkedSum<typename Gradient::Sum> sum;
  for (int64_t at = range[0]; at < range[1]; ++at) {
    sum.add(gradient(static_cast<uint32_t>(order[at])));
  }
  gradient.store(sum.total());
}

}  // namespace torchvox
