// SPDX-License-Identifier: Apache-2.0
//
// Segment sums of gathers and interpolations on the GPU: the choice of an instance of
// segment_sum.cuh by type, layout and the width of an access.
#include "csrc/kernels/grouping/segment_sum.cuh"

namespace torchvox {
namespace {

// One instance; channel-last rows move in words where alignment allows.
template <class T, int kWidth, bool kWeighted, bool kRowsOnX>
struct Sums {
  using Gradient = SegmentGradient<T, kWidth, kWeighted>;
  static int64_t bytes(const SegmentSumArgs& args) { return partial_sums_bytes<Gradient>(args); }
  static cudaError_t launch(const SegmentSumArgs& args, void* workspace,
                            const CudaContext& context) {
    return launch_sums<Gradient, kRowsOnX>(args, workspace, context);
  }
};

template <class T, bool kWeighted, class Body>
auto with_width(const SegmentSumArgs& args, Body&& body) {
  constexpr int kWidth = kItemsPerWord<T>;
  if (args.channels_first) return body(Sums<T, 1, kWeighted, true>{});
  const bool in_words =
      args.channels % kWidth == 0 && is_aligned(args.grad) && is_aligned(args.out);
  return in_words ? body(Sums<T, kWidth, kWeighted, false>{})
                  : body(Sums<T, 1, kWeighted, false>{});
}

template <class Body>
auto with_sums(const SegmentSumArgs& args, Body&& body) {
  return with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    return args.weight ? with_width<T, true>(args, body) : with_width<T, false>(args, body);
  });
}

}  // namespace

int64_t workspace_bytes_cuda(const SegmentSumArgs& args, const Target&) {
  return with_sums(args, [&](auto sums) { return sums.bytes(args); });
}

cudaError_t launch(const SegmentSumArgs& args, void* workspace, const CudaContext& context) {
  if (args.inverse.clouds * args.inverse.rows * args.channels == 0) return cudaSuccess;
  return with_sums(args, [&](auto sums) { return sums.launch(args, workspace, context); });
}

}  // namespace torchvox
