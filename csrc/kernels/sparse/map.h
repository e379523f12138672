// SPDX-License-Identifier: Apache-2.0
//
// Entry of sparse_subm_map and sparse_conv_map, and what they do with one row.
#pragma once

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/sparse/rank_tree.h"

namespace torchvox {

inline const PlanOverride sparse_map_plan{"sparse_map"};  // CUDA: 0 one launch, 1 a kernel per step

inline constexpr int kCountColumns = 4;  // kept, found, pairs, skipped

// Along z, y or x. Output cell o reads the input cell o * stride - padding + k * dilation.
struct SparseAxis {
  int32_t size = 1, out_size = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;

  // The input cell that an output cell reads at an offset; false if it is outside.
  TORCHVOX_HD bool input_of(int64_t cell, int offset, int64_t* input) const {
    *input = cell * stride - padding + int64_t{offset} * dilation;
    return *input >= 0 && *input < size;
  }
  // The output cell that reads an input cell at an offset, if there is one.
  TORCHVOX_HD bool output_of(int64_t cell, int offset, int64_t* output) const {
    const int64_t step = cell + padding - int64_t{offset} * dilation;
    if (step < 0) return false;
    *output = divide(step, stride);
    return *output * stride == step && *output < out_size;
  }
};

struct alignas(16) SparseIndex {
  int32_t b, z, y, x;
};

// All inputs of an output write the same index, some of them at once.
TORCHVOX_HD void write_index(SparseIndex* to, const SparseIndex& index) {
#ifdef __CUDA_ARCH__
  *to = index;
#else
  store_relaxed(&to->b, index.b);
  store_relaxed(&to->z, index.z);
  store_relaxed(&to->y, index.y);
  store_relaxed(&to->x, index.x);
#endif
}

struct SparseMapArgs {
  const SparseIndex* indices = nullptr;  // [rows]
  int64_t rows = 0;
  IndexArray num_valid;  // its first element; null: all rows
  int64_t batches = 0;
  SparseAxis axes[3];  // z, y, x
  bool submanifold = false;  // outputs are the rows themselves
  int64_t most_leaves = 0;  // segments that outputs can lie in

  int64_t out_rows = 0;
  int32_t* neighbors = nullptr;  // [volume, out_rows]
  int32_t* counts = nullptr;  // [batches + 1, kCountColumns]
  int32_t* inverse = nullptr;  // [volume, rows], unless submanifold
  SparseIndex* out_indices = nullptr;  // [out_rows], unless submanifold

  TORCHVOX_HD int64_t offset(int kz, int ky, int kx) const {
    return (int64_t{kz} * axes[1].kernel + ky) * axes[2].kernel + kx;
  }
  TORCHVOX_HD int64_t volume() const { return offset(axes[0].kernel, 0, 0); }
  TORCHVOX_HD int64_t valid() const {
    return num_valid.given() ? clamp_index(num_valid[0], 0, rows) : rows;
  }
  TORCHVOX_HD int64_t sample_cells(bool output) const {
    int64_t cells = 1;
    for (const SparseAxis& axis : axes) cells *= output ? axis.out_size : axis.size;
    return cells;
  }
};

TORCHVOX_KERNEL(SparseMapArgs);

// The memory of a call. What must be 0 at first comes first.
struct SparseMapWork {
  RankTree in, out;  // of a submanifold map `out` is empty
  uint32_t* row_of = nullptr;  // [rows]: the complement of the lowest row of each rank

  SparseMapWork(const SparseMapArgs& args, Workspace& workspace)
      : in(args.batches * args.sample_cells(false), args.rows) {
    if (!args.submanifold) {
      out = RankTree(args.batches * args.sample_cells(true), args.most_leaves);
      out.take_segments(workspace);
    }
    in.take_segments(workspace);
    row_of = workspace.take<uint32_t>(args.rows);
    in.take_others(workspace);
    if (!args.submanifold) out.take_others(workspace);
  }
  TORCHVOX_HD int64_t lowest_row(int64_t rank) const { return ~row_of[rank]; }
};

// A row in use.
struct SparseRow {
  int64_t b, at[3];  // z, y, x
  int64_t cell;  // in the input grid, or -1 if it is outside

  TORCHVOX_HD SparseRow(const SparseMapArgs& args, int64_t row) {
    const SparseIndex index = args.indices[row];
    b = index.b;
    at[0] = index.z, at[1] = index.y, at[2] = index.x;
    cell = b >= 0 && b < args.batches ? b : -1;
    for (int a = 0; a < 3; ++a) {
      const bool inside = cell >= 0 && at[a] >= 0 && at[a] < args.axes[a].size;
      cell = inside ? cell * args.axes[a].size + at[a] : -1;
    }
  }
};

// Calls body(offset, cell, z, y, x) for the output cells that read an input row at offsets of one
// kz.
template <class Body>
TORCHVOX_HD void for_each_output(const SparseMapArgs& args, const SparseRow& row, int kz,
                                 const Body& body) {
  const SparseAxis *by_z = args.axes, *by_y = args.axes + 1, *by_x = args.axes + 2;
  int64_t z, y, x;
  if (!by_z->output_of(row.at[0], kz, &z)) return;
  for (int ky = 0; ky < by_y->kernel; ++ky) {
    if (!by_y->output_of(row.at[1], ky, &y)) continue;
    const int64_t first = ((row.b * by_z->out_size + z) * by_y->out_size + y) * by_x->out_size;
    for (int kx = 0; kx < by_x->kernel; ++kx) {
      if (by_x->output_of(row.at[2], kx, &x)) body(args.offset(kz, ky, kx), first + x, z, y, x);
    }
  }
}

// Sets the bits of a row, and of the outputs that read it at offsets of one kz: in the upper level,
// or in the leaves.
TORCHVOX_HD void enter_row(const SparseMapArgs& args, const SparseMapWork& work, int64_t row,
                           int kz, bool into_leaves) {
  const SparseRow one(args, row);
  if (one.cell < 0) return;
  const auto enter = [&](const RankTree& tree, int64_t cell) {
    into_leaves ? tree.enter_cell(cell) : tree.enter_segment(cell);
  };
  if (kz == 0) enter(work.in, one.cell);
  if (args.submanifold) return;
  for_each_output(args, one, kz,
                  [&](int64_t, int64_t cell, int64_t, int64_t, int64_t) { enter(work.out, cell); });
}

// The lowest row of a cell stands for it.
TORCHVOX_HD void choose_row(const SparseMapArgs& args, const SparseMapWork& work, int64_t row) {
  const SparseRow one(args, row);
  if (one.cell >= 0) {
    atomic_raise(&work.row_of[work.in.before(one.cell)], ~static_cast<uint32_t>(row));
  }
}

// What a row adds to the counts.
struct RowCounts {
  int64_t sample = -1;  // -1: the row's sample is outside
  uint32_t pairs = 0, skipped = 0;
};

// Writes the neighbors of an active row of a submanifold map at offsets of one kz; returns how many
// there are.
TORCHVOX_HD uint32_t write_neighbors(const SparseMapArgs& args, const SparseMapWork& work,
                                     const SparseRow& one, int64_t row, int kz) {
  const SparseAxis *by_z = args.axes, *by_y = args.axes + 1, *by_x = args.axes + 2;
  uint32_t pairs = 0;
  int64_t z, y, x;
  if (!by_z->input_of(one.at[0], kz, &z)) return pairs;
  for (int ky = 0; ky < by_y->kernel; ++ky) {
    if (!by_y->input_of(one.at[1], ky, &y)) continue;
    const int64_t first = ((one.b * by_z->size + z) * by_y->size + y) * by_x->size;
    RankReader reader{work.in};
    for (int kx = 0; kx < by_x->kernel; ++kx) {
      if (!by_x->input_of(one.at[2], kx, &x)) continue;
      const int64_t rank = reader.rank(first + x);
      if (rank < 0) continue;
      args.neighbors[args.offset(kz, ky, kx) * args.rows + row] =
          static_cast<int32_t>(work.lowest_row(rank));
      ++pairs;
    }
  }
  return pairs;
}

// Writes both tables and the cells of the outputs that read an active row at offsets of one kz;
// returns how many there are.
TORCHVOX_HD uint32_t write_outputs(const SparseMapArgs& args, const SparseMapWork& work,
                                   const SparseRow& one, int64_t row, int kz) {
  uint32_t pairs = 0;
  RankReader reader{work.out};
  for_each_output(args, one, kz, [&](int64_t k, int64_t cell, int64_t z, int64_t y, int64_t x) {
    const int64_t o = reader.rank(cell);
    if (o >= args.out_rows) return;  // beyond the capacity
    args.inverse[k * args.rows + row] = static_cast<int32_t>(o);
    args.neighbors[k * args.out_rows + o] = static_cast<int32_t>(row);
    write_index(&args.out_indices[o],
                {static_cast<int32_t>(one.b), static_cast<int32_t>(z), static_cast<int32_t>(y),
                 static_cast<int32_t>(x)});
    ++pairs;
  });
  return pairs;
}

// Writes the entries of a row at offsets of one kz.
TORCHVOX_HD RowCounts write_row(const SparseMapArgs& args, const SparseMapWork& work, int64_t valid,
                                int64_t row, int kz) {
  RowCounts counts;
  int32_t* own = args.submanifold ? args.neighbors : args.inverse;
  const int64_t first = args.offset(kz, 0, 0), last = args.offset(kz + 1, 0, 0);
  for (int64_t k = first; k < last; ++k) own[k * args.rows + row] = -1;
  if (row >= valid) return counts;
  const SparseRow one(args, row);
  if (one.b >= 0 && one.b < args.batches) counts.sample = one.b;
  if (one.cell < 0 || work.lowest_row(work.in.before(one.cell)) != row) {
    counts.skipped = kz == 0;
    return counts;
  }
  counts.pairs = args.submanifold ? write_neighbors(args, work, one, row, kz)
                                  : write_outputs(args, work, one, row, kz);
  return counts;
}

// Writes the numbers of rows found and kept: of the call for sample -1, else of a sample.
TORCHVOX_HD void write_row_counts(const SparseMapArgs& args, const SparseMapWork& work,
                                  int64_t sample) {
  const RankTree& tree = args.submanifold ? work.in : work.out;
  const int64_t cells = args.sample_cells(!args.submanifold);
  const int64_t first = tree.before(sample < 0 ? 0 : sample * cells);
  const int64_t last = tree.before(sample < 0 ? tree.grid_cells : (sample + 1) * cells);
  const auto kept = [&](int64_t rank) { return rank < args.out_rows ? rank : args.out_rows; };
  int32_t* counts = args.counts + kCountColumns * (sample + 1);
  counts[0] = static_cast<int32_t>(kept(last) - kept(first));
  counts[1] = static_cast<int32_t>(last - first);
}

// Adds what rows of one sample have counted.
TORCHVOX_HD void add_counts(const SparseMapArgs& args, const RowCounts& counts) {
  const uint32_t values[2] = {counts.pairs, counts.skipped};
  for (int column = 0; column < 2; ++column) {
    if (values[column] == 0) continue;
    uint32_t* all = reinterpret_cast<uint32_t*>(args.counts) + 2 + column;
    atomic_add(all, values[column]);
    if (counts.sample >= 0) atomic_add(all + kCountColumns * (counts.sample + 1), values[column]);
  }
}

}  // namespace torchvox
