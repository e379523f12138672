// SPDX-License-Identifier: Apache-2.0
//
// Gathers, interpolations and their gradients on the CPU. The gather is a memcpy a row, or for
// channels first a loop over samples of one channel; interpolation takes tasks of 512 queries or
// slots; sums over segments take rows, segments or entries. Loops run over several channels at a
// time, so that they vectorize. Inverse indices are one counting sort per cloud.
#include <algorithm>
#include <cstring>

#include "csrc/kernels/grouping/gather_points.h"
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/kernels/grouping/neighbor_distance.h"
#include "csrc/kernels/grouping/segment_reduce.h"
#include "csrc/kernels/grouping/segment_sum.h"

namespace torchvox {
namespace {

constexpr int64_t kBytesPerTask = 1 << 16;

// Row i of all clouds, channel-last.
void gather_row(const GatherPointsArgs& args, int64_t row_bytes, int64_t i) {
  const int64_t n = args.idx[i];
  char* const out = static_cast<char*>(args.out) + i * row_bytes;
  if (n < 0 || n >= args.points) {
    std::memset(out, 0, static_cast<size_t>(row_bytes));
    return;
  }
  const int64_t row = i / args.samples * args.points + n;
  std::memcpy(out, static_cast<const char*>(args.features) + row * row_bytes,
              static_cast<size_t>(row_bytes));
}

// The samples [begin, end) of one channel of one cloud.
template <class Word>
void gather_plane(const GatherPointsArgs& args, int64_t plane, int64_t begin, int64_t end) {
  const Word* const features = static_cast<const Word*>(args.features) + plane * args.points;
  Word* const out = static_cast<Word*>(args.out) + plane * args.samples;
  const int64_t first = plane / args.channels * args.samples;
  for (int64_t s = begin; s < end; ++s) {
    const int64_t n = args.idx[first + s];
    out[s] = n >= 0 && n < args.points ? features[n] : Word{};
  }
}

constexpr int64_t kQueriesPerTask = 512;

// The one sum that is left of many, the upper half added to the lower again and again.
template <class Sum>
Sum halved(Sum* sums) {
  for (int half = kWeightSums / 2; half > 0; half /= 2) {
    for (int c = 0; c < half; ++c) sums[c] += sums[c + half];
  }
  return sums[0];
}

// The channels of queries [begin, end), channel-last, so that they vectorize.
template <class T>
void interpolate_rows(const InterpolateArgs& args, int64_t begin, int64_t end) {
  using Sum = compute_t<T>;
  const T* const features = static_cast<const T*>(args.features);
  for (int64_t query = begin; query < end; ++query) {
    const Nearest<Sum> nearest(args, query);
    const Sum w0 = nearest.weight[0], w1 = nearest.weight[1], w2 = nearest.weight[2];
    if (nearest.row[0] < 0 || nearest.row[1] < 0 || nearest.row[2] < 0) {
      for (int64_t c = 0; c < args.channels; ++c) interpolate_element<T>(args, nearest, query, c);
      continue;
    }
    const T* const f0 = features + nearest.row[0] * args.channels;
    const T* const f1 = features + nearest.row[1] * args.channels;
    const T* const f2 = features + nearest.row[2] * args.channels;
    T* const out = static_cast<T*>(args.out) + query * args.channels;
    for (int64_t c = 0; c < args.channels; ++c) {
      const Sum sum =
          fma_rn(w2, Sum(widen(f2[c])), fma_rn(w0, Sum(widen(f0[c])), w1 * Sum(widen(f1[c]))));
      out[c] = narrow<T>(quiet(sum));
    }
  }
}

// The gradients of the weights of slots [begin, end), channel-last: the 32 sums side by side.
template <class T>
void weight_gradients(const InterpolateWeightGradArgs& args, int64_t begin, int64_t end) {
  using Sum = compute_t<T>;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t query = i / kNearest, index = args.idx[i];
    const bool inside = index >= 0 && index < args.rows;
    const int64_t row = query / args.queries * args.rows + (inside ? index : 0);
    const T* const grad = static_cast<const T*>(args.grad) + query * args.channels;
    const T* const feature = static_cast<const T*>(args.features) + row * args.channels;
    Sum sums[kWeightSums] = {};
    int64_t c = 0;
    for (; inside && c + kWeightSums <= args.channels; c += kWeightSums) {
      for (int lane = 0; lane < kWeightSums; ++lane) {
        sums[lane] = fma_rn(Sum(widen(grad[c + lane])), Sum(widen(feature[c + lane])), sums[lane]);
      }
    }
    for (int lane = 0; inside && c + lane < args.channels; ++lane) {
      sums[lane] = fma_rn(Sum(widen(grad[c + lane])), Sum(widen(feature[c + lane])), sums[lane]);
    }
    store_as(args.grad_weight, args.weight_dtype, i, quiet(halved(sums)));
  }
}

// rows(T{}, begin, end) of all ranges of queries or slots.
template <class Rows>
void run_ranges(DType dtype, int64_t count, const ParallelFor& parallel_for, const Rows& rows) {
  for_each_range(parallel_for, count, kQueriesPerTask, [&](int64_t begin, int64_t end) {
    with_point_type(dtype, [&](auto type) {
      run_vectorized(interpolate_cpu_plan, [&] { rows(type, begin, end); });
    });
  });
}

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

// The second walk goes backwards, so that segments ascend and each offset ends as the beginning of
// its segment.
void invert_cloud(const InverseIndexArgs& args, int64_t cloud) {
  const InverseIndex& inverse = args.inverse;
  int32_t* const offsets = inverse.offsets + cloud * (inverse.rows + 1);
  int32_t* const order = inverse.order + cloud * inverse.slots;
  const int64_t first = cloud * inverse.slots;
  std::fill_n(offsets, inverse.rows + 1, 0);
  for (int64_t s = 0; s < inverse.slots; ++s) {
    const int64_t row = args.idx[first + s];
    if (row >= 0 && row < inverse.rows) ++offsets[row];
  }
  int32_t sum = 0;
  for (int64_t row = 0; row <= inverse.rows; ++row) offsets[row] = sum += offsets[row];
  for (int64_t s = inverse.slots - 1; s >= 0; --s) {
    const int64_t row = args.idx[first + s];
    if (row >= 0 && row < inverse.rows) order[--offsets[row]] = static_cast<int32_t>(s);
  }
}

}  // namespace

void run_cpu(const GatherPointsArgs& args, void*, const ParallelFor& parallel_for) {
  if (!args.channels_first) {
    const int64_t row_bytes = args.channels * args.element_bytes;
    if (row_bytes == 0) return;
    for_each_index(parallel_for, args.batches * args.samples,
                   std::max<int64_t>(kBytesPerTask / row_bytes, 1),
                   [&](int64_t i) { gather_row(args, row_bytes, i); });
    return;
  }
  constexpr int64_t kSamples = 4096;
  const int64_t tasks = (args.samples + kSamples - 1) / kSamples;
  for_each_index(parallel_for, args.batches * args.channels * tasks, 4, [&](int64_t i) {
    const int64_t plane = i / tasks, begin = (i - plane * tasks) * kSamples;
    const int64_t end = std::min(begin + kSamples, args.samples);
    with_word(args.element_bytes,
              [&](auto word) { gather_plane<decltype(word)>(args, plane, begin, end); });
  });
}

void run_cpu(const InterpolateArgs& args, void*, const ParallelFor& parallel_for) {
  if (!args.channels_first) {
    return run_ranges(args.dtype, args.clouds * args.queries, parallel_for,
                      [&](auto type, int64_t begin, int64_t end) {
                        interpolate_rows<decltype(type)>(args, begin, end);
                      });
  }
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, args.clouds * args.queries, kQueriesPerTask, [&](int64_t query) {
      const Nearest<compute_t<T>> nearest(args, query);
      for (int64_t c = 0; c < args.channels; ++c) interpolate_element<T>(args, nearest, query, c);
    });
  });
}

void run_cpu(const InterpolateWeightGradArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t slots = args.clouds * args.queries * kNearest;
  if (!args.channels_first) {
    return run_ranges(args.dtype, slots, parallel_for, [&](auto type, int64_t begin, int64_t end) {
      weight_gradients<decltype(type)>(args, begin, end);
    });
  }
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, slots, kQueriesPerTask, [&](int64_t i) {
      compute_t<T> sums[kWeightSums];
      for (int64_t c = 0; c < kWeightSums; ++c) sums[c] = weight_partial<T>(args, i, c);
      store_as(args.grad_weight, args.weight_dtype, i, quiet(halved(sums)));
    });
  });
}

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

int64_t InverseIndex::place(void* memory, bool cuda) {
  Workspace workspace(memory);
  offsets = workspace.take<int32_t>(clouds * (rows + 1));
  order = workspace.take<int32_t>(clouds * slots);
  if (cuda) {
    group_rows = workspace.take<int32_t>(clouds * (groups() + 1));
    long_rows.count = workspace.take<int32_t>(1);
    long_rows.tasks = workspace.take<LongRowTask>(most_tasks());
    long_rows.arrived = workspace.take<int32_t>(most_tasks());
  }
  return workspace.bytes();
}

int64_t workspace_bytes_cpu(const InverseIndexArgs&) { return 0; }

void run_cpu(const InverseIndexArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.inverse.clouds, 1,
                 [&](int64_t cloud) { invert_cloud(args, cloud); });
}

}  // namespace torchvox
