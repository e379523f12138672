// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/inputs.h"
#include "csrc/kernels/cells/unique_cells.h"
#include "csrc/kernels/filter/voxel_group.h"

namespace torchvox::bind {
namespace {

struct UniqueArgs {
  CellMatrix cells;
  int bits = 31;  // of a column
  bool sorted = false;
};

// Groups rows by their first columns, more and more of them, of which ranks stand for those so far.
// A rank and a column of int32 fit one key.
void run_unique(const UniqueArgs& args, std::span<void* const> out, const Host& host) {
  const int64_t n = args.cells.rows;
  const Memory all_keys = host.allocate(8 * n), row_keys = host.allocate(8 * n);
  const Memory all_ranks = host.allocate(4 * n);
  auto* const ranks = static_cast<int32_t*>(all_ranks.get());
  CellKeysArgs keys;
  keys.cells = args.cells;
  keys.bits = args.bits;
  keys.keys = static_cast<int64_t*>(all_keys.get());
  VoxelGroupArgs group;
  group.keys = keys.keys;
  group.points = n;
  group.by_key = args.sorted;
  group.threads = host.target().threads;
  group.row_keys = static_cast<int64_t*>(row_keys.get());
  group.offsets = static_cast<int32_t*>(out[3]);
  group.perm = static_cast<int32_t*>(out[4]);
  group.counts = static_cast<int32_t*>(out[5]);
  for (keys.first = 0; keys.first < args.cells.columns; keys.first = keys.last) {
    const int taken = keys.first > 0 ? kRankBits : 0;
    keys.before = keys.first > 0 ? ranks : nullptr;
    keys.last = std::min(args.cells.columns, keys.first + (63 - taken) / args.bits);
    run(keys, host);
    group.key_bits = taken + args.bits * (keys.last - keys.first);
    group.point_voxel = keys.last < args.cells.columns ? ranks : static_cast<int32_t*>(out[2]);
    run(group, host);
  }
  CellRowsArgs rows;
  rows.cells = args.cells;
  rows.offsets = group.offsets;
  rows.perm = group.perm;
  rows.indices = out[0];
  rows.num_points = static_cast<int32_t*>(out[1]);
  run(rows, host);
}

Call plan_unique_cells(UniqueArgs args, Inputs& in) {
  args.cells.data = {in.data<int32_t>("cells", "[N, K >= 1]")};
  const int64_t n = in['N'], columns = in['K'];
  check(columns <= 4, in.op(), "cells must be [N, K] with K 1 to 4", columns);
  args.cells.rows = n;
  args.cells.columns = static_cast<int>(columns);
  args.cells.row_stride = columns;
  args.cells.column_stride = 1;
  return {{int32({n, columns}), int32({n}), int32({n}), int32({n + 1}), int32({n}), int32({2})},
          [args](std::span<void* const> out, const Host& host) { run_unique(args, out, host); }};
}

}  // namespace

Planner bind_unique_cells(const Attributes& attributes) {
  const char* op = "UniqueCells";
  UniqueArgs args;
  const int64_t bits = attributes.integer("bits");
  check(bits == -1 || (bits >= 1 && bits <= 63), op, "bits must be 1 to 63", bits);
  if (bits >= 0) args.bits = static_cast<int>(std::min<int64_t>(bits, 31));
  args.sorted = choice<bool>(op, attributes, "order", {{"first", false}, {"sorted", true}});
  return planner(op, attributes, {"cells"}, args, plan_unique_cells);
}

}  // namespace torchvox::bind
