// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/packed_points.h"

namespace torchvox {

// The one order in which a row adds up the gradients of its slots: ascending, in chunks of 256 from
// +0 whose sums are added in order. Chunks may be summed apart, so a row that every slot reads is
// no serial chain.
inline constexpr int kSumChunk = 256;

// One chunk of a row of more than kSumChunk slots.
struct SlotTask {
  int32_t cloud;
  int32_t row;
  int32_t chunk;
  int32_t first;  // the task of the row's chunk 0; its others follow
};

// CUDA: the rows that are summed chunk by chunk, by several blocks each, in any order.
struct LongRows {
  int32_t* count = nullptr;  // [1]: tasks
  SlotTask* tasks = nullptr;  // [most_tasks]
  int32_t* arrived =
      nullptr;  // [most_tasks]: 0 where a row's first task is; for who sums, who leaves it 0
};

// CUDA: rows are summed in groups of about as much work. Row n has the key offsets[n] + n; group g
// has the rows whose keys lie in [32 g, 32 g + 32). A row of more than 32 slots is its last one.
inline constexpr int kGroupKeys = 32;

// The inverse of a gather: which slots of cloud b read its row n. They are, ascending,
// order[b, offsets[b, n]] to order[b, offsets[b, n + 1] - 1]. A slot whose index is outside
// [0, rows) is in no list; the end of order[b] is then left as it is.
//
// A gradient that walks these lists has one fixed order of addition and needs no atomics.
struct SlotLists {
  int64_t clouds = 0;
  int64_t rows = 0;  // of each cloud, below 2^31
  int64_t slots = 0;  // of each cloud, below 2^31
  int32_t* offsets = nullptr;  // [clouds, rows + 1]
  int32_t* order = nullptr;  // [clouds, slots]
  int32_t* group_rows = nullptr;  // CUDA: [clouds, groups() + 1], the first row of each group
  LongRows long_rows;

  TORCHVOX_HD int64_t groups() const { return (rows + slots) / kGroupKeys + 1; }  // of each cloud
  // A row of n > 256 slots has at most n / 128 chunks.
  TORCHVOX_HD int64_t most_tasks() const { return clouds * slots / (kSumChunk / 2); }
  // Everything in one block of memory: null to learn its size, which is returned.
  TORCHVOX_EXPORT int64_t place(void* memory, bool cuda);
};

struct SlotListsArgs {
  IndexArray idx;  // [clouds, slots]
  SlotLists lists;
};

TORCHVOX_KERNEL(SlotListsArgs);

}  // namespace torchvox
