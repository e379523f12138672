// SPDX-License-Identifier: Apache-2.0
//
// Entry of the segment sum: the gradient of a gather or an interpolation with respect to its
// features, and what one slot adds to it.
#pragma once

#include "csrc/kernels/core/items.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {

// The gradient of a gather or an interpolation with respect to its features: row n of cloud b sums
// the gradients of the slots that read it, in the order of kSumChunk, in fp32 (fp64 for fp64).
// With weights, the slots are those of an interpolation: three share a row of grad, and each adds
// its weight times that row, rounded once.
inline constexpr int kWeightedFan = 3;
struct SegmentSumArgs {
  const void* grad =
      nullptr;  // [clouds, slots / fan, channels], or [clouds, channels, slots / fan]
  DType dtype = DType::kFloat;
  const void* weight = nullptr;  // [clouds, slots] in the type of the sums, or null
  InverseIndex inverse;
  void* out = nullptr;  // [clouds, rows, channels], or [clouds, channels, rows]
  int64_t channels = 0;
  bool channels_first = false;
};

TORCHVOX_KERNEL(SegmentSumArgs);

// A Gradient handles one cloud and one item, a few neighboring channels. load(slot) reads what a
// slot holds, ahead of its use; begin(row) starts a row; term() is what a slot adds to it; store()
// writes the row.
template <class T, int kWidth, bool kWeighted>
struct SegmentGradient {
  using Args = SegmentSumArgs;
  using Number = compute_t<T>;
  using Sum = Channels<Number, kWidth>;
  static constexpr uint32_t kFan = kWeighted ? kWeightedFan : 1;
  const T* grad;
  T* out;
  int64_t grad_stride, out_stride;  // elements from one row to the next
  const Number* weight;

  TORCHVOX_HD SegmentGradient(const SegmentSumArgs& args, int64_t cloud, int64_t item) {
    const InverseIndex& inverse = args.inverse;
    const int64_t samples = inverse.slots / kFan, channel = item * kWidth;
    grad = static_cast<const T*>(args.grad) + cloud * samples * args.channels +
        channel * (args.channels_first ? samples : 1);
    out = static_cast<T*>(args.out) + cloud * inverse.rows * args.channels +
        channel * (args.channels_first ? inverse.rows : 1);
    grad_stride = out_stride = args.channels_first ? 1 : args.channels;
    weight = static_cast<const Number*>(args.weight) + (kWeighted ? cloud * inverse.slots : 0);
  }
  static TORCHVOX_HD int64_t items(const SegmentSumArgs& args) { return args.channels / kWidth; }

  TORCHVOX_HD Sum load(uint32_t slot) const {
    Sum value = load_items<T, kWidth>(grad + slot / kFan * grad_stride);
    if constexpr (kWeighted) value.scale(weight[slot]);
    return value;
  }
  TORCHVOX_HD void begin(int64_t) {}
  TORCHVOX_HD Sum term(const Sum& value) const { return value; }
  TORCHVOX_HD void store(int64_t row, const Sum& sum) const {
    store_items<T, kWidth>(out + row * out_stride, sum);
  }
};

// Sums the slots of a row, one after another.
template <class Gradient>
void sum_list(const typename Gradient::Args& args, int64_t cloud, int64_t row, int64_t item) {
  const InverseIndex& inverse = args.inverse;
  const int32_t* const order = inverse.order + cloud * inverse.slots;
  const int32_t* const range = inverse.offsets + cloud * (inverse.rows + 1) + row;
  Gradient gradient(args, cloud, item);
  gradient.begin(row);
  ChunkedSum<typename Gradient::Sum> sum;
  for (int64_t at = range[0]; at < range[1]; ++at) {
    sum.add(gradient.term(gradient.load(static_cast<uint32_t>(order[at]))));
  }
  gradient.store(row, sum.total());
}

}  // namespace torchvox
