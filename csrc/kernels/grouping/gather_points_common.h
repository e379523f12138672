// SPDX-License-Identifier: Apache-2.0
//
// One element of a gather, for the host's loops and the device's threads.
#pragma once

#include <cstdint>

#include "csrc/kernels/grouping/gather_points.h"

namespace torchvox {

struct Word16 {
  uint64_t low, high;
};

// Bytes do not care what they mean: elements are moved as words. A channel-last row moves in the
// widest word that divides it and that both buffers are aligned to; channels first, one element.
inline int64_t gather_word_bytes(const GatherPointsArgs& args) {
  if (args.channels_first) return args.element_bytes;
  const auto misaligned = reinterpret_cast<uintptr_t>(args.features) |
      reinterpret_cast<uintptr_t>(args.out) |
      static_cast<uintptr_t>(args.channels * args.element_bytes);
  int64_t word = args.element_bytes;
  while (word < 16 && misaligned % (2 * word) == 0) word *= 2;
  return word;
}

// Calls body(Word{}) with a type of `bytes` bytes.
template <class Body>
auto with_word(int64_t bytes, Body&& body) {
  switch (bytes) {
    case 2: return body(uint16_t{});
    case 8: return body(uint64_t{});
    case 16: return body(Word16{});
    default: return body(uint32_t{});
  }
}

// Word i of the output. `words` is the words of a channel-last row.
template <class Word>
TORCHVOX_HD void gather_word(const GatherPointsArgs& args, int64_t words, int64_t i) {
  int64_t batch, sample, inner, outer_words;
  if (args.channels_first) {
    sample = i % args.samples;
    inner = i / args.samples;  // batch * channels + channel
    batch = inner / args.channels;
    outer_words = 0;
  } else {
    inner = i % words;
    const int64_t row = i / words;
    sample = row % args.samples;
    batch = row / args.samples;
    outer_words = batch * args.points * words;
  }
  const int64_t n = args.idx[batch * args.samples + sample];
  Word value{};
  if (n >= 0 && n < args.points) {
    const Word* features = static_cast<const Word*>(args.features);
    value = args.channels_first ? features[inner * args.points + n]
                                : features[outer_words + n * words + inner];
  }
  static_cast<Word*>(args.out)[i] = value;
}

}  // namespace torchvox
