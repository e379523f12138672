// SPDX-License-Identifier: Apache-2.0
//
// Entry of sparse_subm_map and sparse_conv_map, and what they do with one row.
#pragma once

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/sparse/cell_table.h"
#include "csrc/kernels/sparse/rank_tree.h"

namespace torchvox {

// 1 as for a large grid: both levels of the tree
inline const PlanOverride sparse_map_plan{"sparse_map"};

inline constexpr int kCountColumns = 4;  // kept, found, pairs, skipped

// Along z, y or x. Output cell o reads the input cell o * stride - padding + k * dilation.
struct SparseAxis {
  int32_t size = 1, out_size = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;

  // The input cell that an output cell reads at an offset; false if it is outside.
  TORCHVOX_HD bool input_of(int64_t cell, int offset, int64_t* input) const {
    *input = cell * stride - padding + int64_t{offset} * dilation;
    return *input >= 0 && *input < size;
  }
};

// The output cells that read an input cell, one offset after the other, with one division for all.
struct OutputWalk {
  int64_t output, rest;  // cell + padding - offset * dilation = output * stride + rest
  int64_t back, rest_back, stride, out_size;

  TORCHVOX_HD OutputWalk(const SparseAxis& axis, int64_t cell)
      : output(divide(cell + axis.padding, axis.stride)),
        rest(cell + axis.padding - output * axis.stride),
        back(axis.dilation / axis.stride),
        rest_back(axis.dilation % axis.stride),
        stride(axis.stride),
        out_size(axis.out_size) {}
  TORCHVOX_HD bool reads() const { return rest == 0 && output >= 0 && output < out_size; }
  TORCHVOX_HD void advance() {
    output -= back;
    rest -= rest_back;
    if (rest < 0) rest += stride, --output;
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

// The memory of a call. At first the table is empty; `later` and the bits of `out` are 0.
struct SparseMapWork {
  CellTable table;  // of the rows
  RankTree out;  // of the output cells, unless submanifold
  uint8_t* later = nullptr;  // [rows]: a lower row has the same cell

  SparseMapWork(const SparseMapArgs& args, Workspace& workspace) {
    table = CellTable(args.rows, workspace);
    later = workspace.take<uint8_t>(args.rows);
    if (args.submanifold) return;
    out = RankTree(args.batches * args.sample_cells(true), args.most_leaves,
                   sparse_map_plan.value() == 1);
    out.take_bits(workspace);
    out.take_counts(workspace);
  }
};

// Calls body(offset, cell, z, y, x) for the offsets of kz in [first, last) at which an output cell
// reads a row; with kAll for the others, too, with the cell -1.
template <bool kAll, class Body>
TORCHVOX_HD void for_each_output(const SparseMapArgs& args, const SparseRow& row, int first,
                                 int last, const Body& body) {
  const SparseAxis *by_y = args.axes + 1, *by_x = args.axes + 2;
  OutputWalk z(args.axes[0], row.at[0]);
  const OutputWalk first_y(*by_y, row.at[1]), first_x(*by_x, row.at[2]);
  for (int kz = 0; kz < last; ++kz, z.advance()) {
    if (kz < first || !(kAll || z.reads())) continue;
    OutputWalk y = first_y;
    for (int ky = 0; ky < by_y->kernel; ++ky, y.advance()) {
      const bool any = row.cell >= 0 && z.reads() && y.reads();
      if (!(kAll || any)) continue;
      int64_t k = args.offset(kz, ky, 0);
      const int64_t plane = any ? row.b * z.out_size + z.output : 0;
      const int64_t line = (plane * y.out_size + (any ? y.output : 0)) * by_x->out_size;
      OutputWalk x = first_x;
      for (int kx = 0; kx < by_x->kernel; ++kx, ++k, x.advance()) {
        const bool reads = any && x.reads();
        if (kAll || reads) body(k, reads ? line + x.output : -1, z.output, y.output, x.output);
      }
    }
  }
}

// Enters a row, and the outputs that read it at offsets of kz in [begin, end): their cells, or in a
// large grid first their segments.
TORCHVOX_HD void enter_row(const SparseMapArgs& args, const SparseMapWork& work, int64_t row,
                           int begin, int end, bool first) {
  const SparseRow one(args, row);
  if (one.cell < 0) return;
  if (first && begin == 0) {
    const int64_t later = work.table.enter(one.cell, row);
    if (later >= 0) store_relaxed(&work.later[later], uint8_t{1});
  }
  if (args.submanifold) return;
  const bool segments = first && !work.out.all_leaves;
  for_each_output<false>(args, one, begin, end,
                         [&](int64_t, int64_t cell, int64_t, int64_t, int64_t) {
                           segments ? work.out.enter_segment(cell) : work.out.enter_cell(cell);
                         });
}

// What a row adds to the counts.
struct RowCounts {
  int64_t sample = -1;  // -1: the row's sample is outside
  uint32_t active = 0, pairs = 0, skipped = 0;
};

// Writes the neighbors of a row of a submanifold map at offsets of one kz; returns how many there
// are. Rows that are not active have none.
TORCHVOX_HD uint32_t write_neighbors(const SparseMapArgs& args, const SparseMapWork& work,
                                     const SparseRow& one, bool active, int64_t row, int kz) {
  constexpr int kCells = 3;
  const int each = 2 * args.axes[2].dilation < CellTable::kLine ? kCells : 1;  // of two lines
  const SparseAxis *by_z = args.axes, *by_y = args.axes + 1, *by_x = args.axes + 2;
  uint32_t pairs = 0;
  int64_t z, y, x, cells[kCells];
  int32_t rows[kCells];
  active = active && by_z->input_of(one.at[0], kz, &z);
  for (int ky = 0; ky < by_y->kernel; ++ky) {
    const bool line = active && by_y->input_of(one.at[1], ky, &y);
    const int64_t first = line ? ((one.b * by_z->size + z) * by_y->size + y) * by_x->size : -1;
    for (int kx = 0; kx < by_x->kernel; kx += each) {
      for (int i = 0; i < kCells; ++i) {
        const bool inside =
            line && i < each && kx + i < by_x->kernel && by_x->input_of(one.at[2], kx + i, &x);
        cells[i] = inside ? first + x : -1;
      }
      work.table.find(cells, rows);
      for (int i = 0; i < each && kx + i < by_x->kernel; ++i) {
        args.neighbors[args.offset(kz, ky, kx + i) * args.rows + row] = rows[i];
        pairs += rows[i] >= 0;
      }
    }
  }
  return pairs;
}

// Writes the outputs of a row to both tables, and their cells, at offsets of one kz; returns how
// many there are. Rows that are not active have none.
TORCHVOX_HD uint32_t write_outputs(const SparseMapArgs& args, const SparseMapWork& work,
                                   const SparseRow& one, bool active, int64_t row, int kz) {
  uint32_t pairs = 0;
  for_each_output<true>(args, one, kz, kz + 1,
                        [&](int64_t k, int64_t cell, int64_t z, int64_t y, int64_t x) {
                          int64_t o = active && cell >= 0 ? work.out.before(cell) : args.out_rows;
                          if (o >= args.out_rows) o = -1;  // beyond the capacity
                          args.inverse[k * args.rows + row] = static_cast<int32_t>(o);
                          if (o < 0) return;
                          args.neighbors[k * args.out_rows + o] = static_cast<int32_t>(row);
                          write_index(&args.out_indices[o],
                                      {static_cast<int32_t>(one.b), static_cast<int32_t>(z),
                                       static_cast<int32_t>(y), static_cast<int32_t>(x)});
                          ++pairs;
                        });
  return pairs;
}

// Writes the entries of a row at offsets of one kz.
template <bool kSubmanifold>
TORCHVOX_HD RowCounts write_row(const SparseMapArgs& args, const SparseMapWork& work, int64_t valid,
                                int64_t row, int kz) {
  RowCounts counts;
  const SparseRow one(args, row);
  const bool active = row < valid && one.cell >= 0 && !work.later[row];
  if (row < valid && one.b >= 0 && one.b < args.batches) counts.sample = one.b;
  counts.active = kSubmanifold && kz == 0 && active;
  counts.skipped = kz == 0 && row < valid && !active;
  counts.pairs = kSubmanifold ? write_neighbors(args, work, one, active, row, kz)
                              : write_outputs(args, work, one, active, row, kz);
  return counts;
}

// Writes the numbers of outputs found and kept: of the call for sample -1, else of a sample.
TORCHVOX_HD void write_row_counts(const SparseMapArgs& args, const SparseMapWork& work,
                                  int64_t sample) {
  const int64_t cells = args.sample_cells(true);
  const int64_t first = work.out.before(sample < 0 ? 0 : sample * cells);
  const int64_t last = work.out.before(sample < 0 ? work.out.grid_cells : (sample + 1) * cells);
  const auto kept = [&](int64_t rank) { return rank < args.out_rows ? rank : args.out_rows; };
  int32_t* counts = args.counts + kCountColumns * (sample + 1);
  counts[0] = static_cast<int32_t>(kept(last) - kept(first));
  counts[1] = static_cast<int32_t>(last - first);
}

// Adds what rows of one sample have counted to two rows of counts, at to(0) and to(1 + sample).
template <class To>
TORCHVOX_HD void add_counts(const RowCounts& counts, const To& to) {
  const uint32_t values[kCountColumns] = {counts.active, counts.active, counts.pairs,
                                          counts.skipped};
  for (int column = 0; column < kCountColumns; ++column) {
    if (values[column] == 0) continue;
    atomic_add(to(0) + column, values[column]);
    if (counts.sample >= 0) atomic_add(to(counts.sample + 1) + column, values[column]);
  }
}

}  // namespace torchvox
