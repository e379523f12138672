// SPDX-License-Identifier: Apache-2.0
//
// Sums over segments on the CPU, in tasks of rows, segments and entries, several channels at a
// time, so that they vectorize; and the gradients of neighbor distances, element by element.
#include <algorithm>

#include "csrc/kernels/grouping/neighbor_distance.h"
#include "csrc/kernels/grouping/segment_reduce.h"
#include "csrc/kernels/grouping/segment_sum.h"

namespace torchvox {
namespace {

constexpr int64_t kChannelsAtOnce = 64;  // sums of a row that stay in the L1 cache
constexpr int64_t kElementsPerTask = 4096;
constexpr int kReducedAtOnce = 16;  // channels of segment_reduce
constexpr int64_t kItemsPerTask = 1024;

// Channels [first, first + count) of a row in the channel-last layout: slot by slot, so that rows
// of grad are read whole and the channels vectorize.
template <class T, bool kWeighted>
void sum_channels(const SegmentSumArgs& args, int64_t cloud, int64_t row, int64_t first,
                  int64_t count) {
  using Number = compute_t<T>;
  const InverseIndex& inverse = args.inverse;
  const int32_t* const order = inverse.order + cloud * inverse.slots;
  const int32_t* const range = inverse.offsets + cloud * (inverse.rows + 1) + row;
  const SegmentGradient<T, 1, kWeighted> gradient(args, cloud, first);
  Number total[kChannelsAtOnce] = {}, chunk[kChannelsAtOnce] = {};
  for (int64_t at = range[0]; at < range[1]; ++at) {
    const auto slot = static_cast<uint32_t>(order[at]);
    const T* const grad = gradient.grad + slot / gradient.kFan * gradient.grad_stride;
    if constexpr (kWeighted) {
      const Number weight = gradient.weight[slot];
      for (int64_t c = 0; c < count; ++c) chunk[c] += weight * Number(widen(grad[c]));
    } else {
      for (int64_t c = 0; c < count; ++c) chunk[c] += widen(grad[c]);
    }
    if ((at - range[0]) % kSumChunk == kSumChunk - 1) {
      for (int64_t c = 0; c < count; ++c) {
        total[c] += chunk[c];
        chunk[c] = 0;
      }
    }
  }
  T* const out = gradient.out + row * gradient.out_stride;
  for (int64_t c = 0; c < count; ++c) out[c] = narrow<T>(quiet(total[c] + chunk[c]));
}

template <class T, bool kWeighted>
void sum_all(const SegmentSumArgs& args, const ParallelFor& parallel_for) {
  const InverseIndex& inverse = args.inverse;
  if (args.channels_first) {
    const int64_t planes = inverse.clouds * args.channels;
    for_each_index(parallel_for, planes * inverse.rows, kElementsPerTask, [&](int64_t i) {
      const int64_t plane = i / inverse.rows, cloud = plane / args.channels;
      sum_list<SegmentGradient<T, 1, kWeighted>>(args, cloud, i - plane * inverse.rows,
                                                 plane - cloud * args.channels);
    });
    return;
  }
  const int64_t per_task = std::max<int64_t>(kElementsPerTask / (args.channels + 1), 1);
  for_each_index(parallel_for, inverse.clouds * inverse.rows, per_task, [&](int64_t row) {
    for (int64_t first = 0; first < args.channels; first += kChannelsAtOnce) {
      sum_channels<T, kWeighted>(args, row / inverse.rows, row % inverse.rows, first,
                                 std::min(args.channels - first, kChannelsAtOnce));
    }
  });
}

}  // namespace

int64_t workspace_bytes_cpu(const SegmentSumArgs&) { return 0; }

void run_cpu(const SegmentSumArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    args.weight ? sum_all<T, true>(args, parallel_for) : sum_all<T, false>(args, parallel_for);
  });
}

int64_t workspace_bytes_cpu(const SegmentReduceArgs&) { return 0; }

void run_cpu(const SegmentReduceArgs& args, void*, const ParallelFor& parallel_for) {
  with_reducer<kReducedAtOnce>(args, true, [&](auto reducer_type) {
    using Reducer = typename decltype(reducer_type)::type;
    const int64_t items = Reducer::items(args);
    for_each_index(parallel_for, args.segments * items, kItemsPerTask, [&](int64_t i) {
      const int64_t segment = i / items;
      const EntryRange range = entry_range(args.offsets, segment, args.entries);
      const Reducer reducer(args, i - segment * items);
      reducer.store(segment,
                    reduce_entries<typename Reducer::Tree>(reducer, range.begin, range.end));
    });
  });
}

void run_cpu(const SegmentSpreadArgs& args, void*, const ParallelFor& parallel_for) {
  with_width_of<kReducedAtOnce>(args, true, [&](auto type, auto width) {
    const int64_t items = args.channels / width();
    for_each_index(parallel_for, args.entries, kItemsPerTask / (items + 1) + 1, [&](int64_t e) {
      const int64_t segment = segment_of(args, e);
      for (int64_t i = 0; i < items; ++i) spread_item<decltype(type), width()>(args, e, segment, i);
    });
  });
}

int64_t workspace_bytes_cpu(const NeighborDistanceArgs&) { return 0; }

void run_cpu(const NeighborDistanceArgs& args, void*, const ParallelFor& parallel_for) {
  const InverseIndex& inverse = args.inverse;
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.grad_points) {
      for_each_index(parallel_for, inverse.clouds * inverse.rows * args.dims, kElementsPerTask,
                     [&](int64_t i) {
                       const int64_t row = i / args.dims, cloud = row / inverse.rows;
                       sum_list<DistanceGradient<T>>(args, cloud, row - cloud * inverse.rows,
                                                     i - row * args.dims);
                     });
    }
    if (args.grad_query) {
      for_each_index(parallel_for, inverse.clouds * args.queries * args.dims, kElementsPerTask,
                     [&](int64_t i) { query_gradient<T>(args, i); });
    }
  });
}

}  // namespace torchvox
