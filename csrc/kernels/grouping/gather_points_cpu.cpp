// SPDX-License-Identifier: Apache-2.0
//
// The gather on the CPU: a memcpy a row, or for channels first a loop over samples of one channel.
#include <algorithm>
#include <cstring>

#include "csrc/kernels/grouping/gather_points.h"

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

}  // namespace torchvox
