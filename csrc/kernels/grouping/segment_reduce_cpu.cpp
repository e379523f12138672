// SPDX-License-Identifier: Apache-2.0
//
// segment_reduce and its gradient on the CPU: tasks of segments and entries, 16 channels at a time,
// so that they vectorize.
#include "csrc/kernels/grouping/segment_reduce.h"

namespace torchvox {

constexpr int kChannelsAtOnce = 16;
constexpr int64_t kItemsPerTask = 1024;

int64_t workspace_bytes_cpu(const SegmentReduceArgs&) { return 0; }

void run_cpu(const SegmentReduceArgs& args, void*, const ParallelFor& parallel_for) {
  with_reducer<kChannelsAtOnce>(args, true, [&](auto reducer_type) {
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
  with_width_of<kChannelsAtOnce>(args, true, [&](auto type, auto width) {
    const int64_t items = args.channels / width();
    for_each_index(parallel_for, args.entries, kItemsPerTask / (items + 1) + 1, [&](int64_t e) {
      const int64_t segment = segment_of(args, e);
      for (int64_t i = 0; i < items; ++i) spread_item<decltype(type), width()>(args, e, segment, i);
    });
  });
}

}  // namespace torchvox
