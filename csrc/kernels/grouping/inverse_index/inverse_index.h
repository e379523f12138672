// SPDX-License-Identifier: Apache-2.0
//
// The inverse index (CSR) of a gather. A slot is one entry of the idx of a cloud, [queries, k]: the
// inverse index lists, for each row of the features, the slots that name it. A gradient that walks
// it has one fixed order of addition and needs no atomics (segment_sum.h).
//
// On the GPU inverse_index.cu sorts by counting in shared memory or by radix sort; on the CPU
// grouping_cpu.cpp counts. Before them, NeighborRowsArgs flattens any neighbor list.
#pragma once

#include "csrc/kernels/core/map.h"
#include "csrc/kernels/core/ordered_sum.h"
#include "csrc/kernels/core/plan_override.h"

namespace torchvox {

inline const PlanOverride inverse_index_plan{"inverse_index"};  // CUDA: 0 counting, 1 radix sort

// A task of a long row, one of more than kSumChunk slots: a chunk of them.
struct LongRowTask {
  int32_t cloud, row, chunk;
  int32_t first;  // the task of the row's chunk 0; its others follow
};

// CUDA: the rows that several blocks sum, chunk by chunk, in any order.
struct LongRows {
  int32_t* count = nullptr;  // [1]: tasks
  LongRowTask* tasks = nullptr;  // [most_tasks]
  int32_t* arrived = nullptr;  // [most_tasks]: chunks summed, at a row's first task; 0 between sums
};

// CUDA: rows are summed in groups of about equal work. Row n has the key offsets[n] + n; group g
// has the rows with keys in [32 g, 32 g + 32). A row of more than 32 slots is the last of its
// group.
inline constexpr int kGroupKeys = 32;

// The slots that name row n of cloud b, its segment, are in ascending order order[b, offsets[b, n]]
// to order[b, offsets[b, n + 1] - 1]. A slot whose index is outside [0, rows) is in no segment; the
// end of order[b] is then not written.
struct InverseIndex {
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
  // Places all arrays in one block of memory and returns its size; with null, only the size.
  TORCHVOX_EXPORT int64_t place(void* memory, bool cuda);
};

struct InverseIndexArgs {
  IndexArray idx;  // [clouds, slots]
  InverseIndex inverse;
};

TORCHVOX_KERNEL(InverseIndexArgs);

// Flattens neighbor lists: row[q, j] is the row of the features that slot j of query q names, or -1
// if the slot is past the query's count or its index is outside its cloud.
//
// The batches have no data. Packed: a query names points of its own cloud; padded: every query may
// name all rows of the only cloud.
struct NeighborRowsArgs {
  IndexArray idx;  // [queries, k]
  IndexArray count;  // [queries]; not given: every slot counts
  CloudBatch points, query;
  bool local_index = false;  // packed: indices count from the first row of their cloud
  int64_t k = 1;
  int32_t* row = nullptr;  // [queries, k]
};

// Writes slot i of [queries, k].
TORCHVOX_HD void find_neighbor_row(const NeighborRowsArgs& args, int64_t i) {
  const int64_t query = i / args.k;
  int64_t begin = 0, end = args.points.rows;
  if (args.points.packed) {
    const int64_t b = args.query.packed_owner(query);
    const CloudRows cloud = b < 0 ? CloudRows{} : args.points.cloud(b);
    begin = cloud.first;
    end = cloud.first + cloud.points;
  }
  const int64_t index = args.idx[i];
  const int64_t first = args.local_index ? 0 : begin;  // the index of the cloud's first row
  const bool named = index >= first && index < first + (end - begin) &&
      (!args.count.given() || i - query * args.k < args.count[query]);
  args.row[i] = named ? static_cast<int32_t>(index - first + begin) : -1;
}
TORCHVOX_MAP(NeighborRowsArgs, find_neighbor_row, (args.query.rows * args.k), 16384, 256);

}  // namespace torchvox
