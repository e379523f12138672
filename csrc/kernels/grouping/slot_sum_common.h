// SPDX-License-Identifier: Apache-2.0
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

// Element i of the sums.
template <class T>
TORCHVOX_HD void slot_sum(const SlotSumArgs& args, int64_t i) {
  using Sum = compute_t<T>;
  int64_t row, channel;  // row: cloud * rows + row
  if (args.channels_first) {
    const int64_t plane = i / args.rows;
    channel = plane % args.channels;
    row = plane / args.channels * args.rows + i % args.rows;
  } else {
    channel = i % args.channels;
    row = i / args.channels;
  }
  const int64_t cloud = row / args.rows, samples = args.slots / args.fan;
  const T* const grad = static_cast<const T*>(args.grad) + cloud * samples * args.channels;
  const int32_t* const order = args.order + cloud * args.slots;
  const int32_t* const range = args.offsets + row + cloud;  // rows + 1 offsets a cloud
  ChunkedSum<Sum> sum;
  for (int64_t at = range[0]; at < range[1]; ++at) {
    const int64_t slot = order[at], sample = slot / args.fan;
    const int64_t element =
        args.channels_first ? channel * samples + sample : sample * args.channels + channel;
    Sum value = widen(grad[element]);
    if (args.weight) {
      value = load_weight<Sum>(args.weight, args.weight_dtype, cloud * args.slots + slot) * value;
    }
    sum.add(value);
  }
  static_cast<T*>(args.out)[i] = narrow<T>(quiet(sum.total()));
}

}  // namespace torchvox
