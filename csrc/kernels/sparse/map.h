// SPDX-License-Identifier: Apache-2.0
//
// Entry of sparse_subm_map and sparse_conv_map, and what they do with one row.
#pragma once

#include <numeric>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/sparse/cell_table.h"
#include "csrc/kernels/sparse/rank_tree.h"

namespace torchvox {

// 1 as for a large grid: both levels of the tree
inline const PlanOverride sparse_map_plan{"sparse_map"};

inline constexpr int kCountColumns = 4;  // kept, found, pairs, skipped
inline constexpr int64_t kMostGridAxis = int64_t{1} << 24, kMostGridCells = int64_t{1} << 36;

// Along z, y or x. Output cell o reads the input cell o * stride - padding + k * dilation.
struct SparseAxis {
  int32_t size = 1, out_size = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;

  // The cell that a cell of a submanifold map reads at an offset.
  TORCHVOX_HD int64_t neighbor(int32_t cell, int offset) const {
    return cell - int64_t{padding} + int64_t{offset} * dilation;
  }
  TORCHVOX_HD bool holds(int64_t cell) const { return cell >= 0 && cell < size; }

  // Cells of the output of a strided map; 0 where the kernel does not fit.
  int64_t outputs() const {
    const int64_t room = size + 2 * int64_t{padding} - int64_t{dilation} * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
  }
};

// The offsets at which outputs read one input cell are `step` apart, and those outputs `back`.
struct OutputSteps {
  int32_t step = 1, back = 1;
  int32_t most = 1;  // offsets
  int32_t whole = 1, part = 0;  // the dilation, divided by the stride

  OutputSteps() = default;
  explicit OutputSteps(const SparseAxis& axis)
      : step(axis.stride / std::gcd(axis.stride, axis.dilation)),
        back(axis.dilation / std::gcd(axis.stride, axis.dilation)),
        most((axis.kernel - 1) / step + 1),
        whole(axis.dilation / axis.stride),
        part(axis.dilation % axis.stride) {}
};

// The first of them and its output, which may lie outside; an offset beyond the kernel if no output
// reads the cell.
struct FirstOutput {
  int64_t output;
  int32_t offset = 0;

  TORCHVOX_HD FirstOutput(const SparseAxis& axis, const OutputSteps& steps, int32_t cell) {
    const int64_t at = int64_t{cell} + axis.padding;
    output = divide(at, axis.stride);
    auto rest = static_cast<int32_t>(at - output * axis.stride);
    for (; rest != 0 && offset < axis.kernel; ++offset) {
      output -= steps.whole;
      rest -= steps.part;
      if (rest < 0) rest += axis.stride, --output;
    }
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

  TORCHVOX_HD int64_t offset(int64_t kz, int64_t ky, int64_t kx) const {
    return (kz * axes[1].kernel + ky) * axes[2].kernel + kx;
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

// Outputs that one input of a strided map can reach, and 64-cell segments that they can lie in.
struct SparseReach {
  int64_t outputs = 1, segments = 1;

  explicit SparseReach(const SparseMapArgs& args) {
    for (const SparseAxis& axis : args.axes) {
      const int64_t common = std::gcd(axis.dilation, axis.stride);
      const int64_t most =
          std::min<int64_t>(axis.kernel, (axis.kernel * common + axis.stride - 1) / axis.stride);
      const int64_t span = int64_t{axis.kernel - 1} * axis.dilation / axis.stride;
      segments *= &axis == &args.axes[2] ? std::min(most, span / 64 + 2) : most;
      outputs *= most;
    }
  }
};

// A row in use.
struct SparseRow {
  int32_t b, at[3];  // z, y, x
  bool inside;  // the input grid

  TORCHVOX_HD SparseRow(const SparseMapArgs& args, int64_t row) {
    const SparseIndex index = args.indices[row];
    b = index.b;
    at[0] = index.z, at[1] = index.y, at[2] = index.x;
    inside = in_sample(args);
    for (int a = 0; a < 3; ++a) inside = inside && args.axes[a].holds(at[a]);
  }
  TORCHVOX_HD bool in_sample(const SparseMapArgs& args) const { return b >= 0 && b < args.batches; }
  // The first cell of a line along x of the row's sample.
  TORCHVOX_HD int64_t line(const SparseMapArgs& args, int64_t z, int64_t y) const {
    return ((b * int64_t{args.axes[0].size} + z) * args.axes[1].size + y) * args.axes[2].size;
  }
};

// The memory of a call. At first the table is empty; `later` and the bits of `out` are 0.
struct SparseMapWork {
  CellTable table;  // of the rows
  RankTree out;  // of the output cells, unless submanifold
  OutputSteps steps[3];
  int planes;  // tasks of a row: offsets along z, or those that outputs may read it at
  uint8_t* later = nullptr;  // [rows]: a lower row has the same cell

  SparseMapWork(const SparseMapArgs& args, Workspace& workspace) : planes(args.axes[0].kernel) {
    table = CellTable(args.rows, workspace);
    later = workspace.take<uint8_t>(args.rows);
    if (args.submanifold) return;
    out = RankTree(args.batches * args.sample_cells(true), args.most_leaves,
                   sparse_map_plan.value() == 1);
    out.take_bits(workspace);
    out.take_counts(workspace);
    for (int a = 0; a < 3; ++a) steps[a] = OutputSteps(args.axes[a]);
    planes = steps[0].most;
  }
};

// Calls body(offset, cell, z, y, x) for the outputs that read a row, of planes [begin, end).
template <class Body>
TORCHVOX_HD void for_each_output(const SparseMapArgs& args, const SparseMapWork& work,
                                 const SparseRow& row, int begin, int end, const Body& body) {
  const SparseAxis *by_z = args.axes, *by_y = args.axes + 1, *by_x = args.axes + 2;
  const OutputSteps *steps_z = work.steps, *steps_y = work.steps + 1, *steps_x = work.steps + 2;
  const FirstOutput first_z(*by_z, *steps_z, row.at[0]), first_y(*by_y, *steps_y, row.at[1]),
      first_x(*by_x, *steps_x, row.at[2]);
  for (int plane = begin; plane < end; ++plane) {
    const int64_t kz = first_z.offset + int64_t{plane} * steps_z->step;
    const int64_t z = first_z.output - int64_t{plane} * steps_z->back;
    if (kz >= by_z->kernel || z < 0 || z >= by_z->out_size) continue;
    int64_t y = first_y.output;
    for (int64_t ky = first_y.offset; ky < by_y->kernel; ky += steps_y->step, y -= steps_y->back) {
      if (y < 0 || y >= by_y->out_size) continue;
      const int64_t k = args.offset(kz, ky, 0);
      const int64_t line =
          ((row.b * int64_t{by_z->out_size} + z) * by_y->out_size + y) * by_x->out_size;
      int64_t x = first_x.output;
      for (int64_t kx = first_x.offset; kx < by_x->kernel;
           kx += steps_x->step, x -= steps_x->back) {
        if (x >= 0 && x < by_x->out_size) body(k + kx, line + x, z, y, x);
      }
    }
  }
}

// Enters a row, and the outputs that read it in planes [begin, end): their cells, or in a large
// grid first their segments.
TORCHVOX_HD void enter_row(const SparseMapArgs& args, const SparseMapWork& work, int64_t row,
                           int begin, int end, bool first) {
  const SparseRow one(args, row);
  if (!one.inside) return;
  if (first && begin == 0) {
    const int64_t cell = one.line(args, one.at[0], one.at[1]) + one.at[2];
    const int64_t later = work.table.enter(cell, row);
    if (later >= 0) store_relaxed(&work.later[later], uint8_t{1});
  }
  if (args.submanifold) return;
  const bool segments = first && !work.out.all_leaves;
  for_each_output(args, work, one, begin, end,
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
  constexpr int kMost = CellTable::kMost;
  const SparseAxis *by_z = args.axes, *by_y = args.axes + 1, *by_x = args.axes + 2;
  const int each = (kMost - 1) * int64_t{by_x->dilation} < CellTable::kLine ? kMost : 1;
  uint32_t pairs = 0;
  const int64_t z = by_z->neighbor(one.at[0], kz);
  active = active && by_z->holds(z);
  int32_t* to = args.neighbors + args.offset(kz, 0, 0) * args.rows + row;
  for (int ky = 0; ky < by_y->kernel; ++ky) {
    const int64_t y = by_y->neighbor(one.at[1], ky);
    const bool inside = active && by_y->holds(y);
    const int64_t line = inside ? one.line(args, z, y) : 0;
    for (int kx = 0; kx < by_x->kernel; kx += each) {
      const int64_t x = by_x->neighbor(one.at[2], kx);
      bool wanted[kMost];
      int32_t rows[kMost];
      for (int i = 0; i < kMost; ++i) {
        wanted[i] = inside && i < each && kx + i < by_x->kernel &&
            by_x->holds(x + int64_t{i} * by_x->dilation);
      }
      work.table.find(line + x, by_x->dilation, wanted, rows);
      for (int i = 0; i < kMost && i < each && kx + i < by_x->kernel; ++i, to += args.rows) {
        *to = rows[i];
        pairs += rows[i] >= 0;
      }
    }
  }
  return pairs;
}

// Writes the outputs of a row to both tables, and their cells, of one plane; returns how many there
// are. Rows that are not active have none.
TORCHVOX_HD uint32_t write_outputs(const SparseMapArgs& args, const SparseMapWork& work,
                                   const SparseRow& one, bool active, int64_t row, int plane) {
  uint32_t pairs = 0;
  if (!active) return 0;
  for_each_output(args, work, one, plane, plane + 1,
                  [&](int64_t k, int64_t cell, int64_t z, int64_t y, int64_t x) {
                    const int64_t o = work.out.before(cell);
                    if (o >= args.out_rows) return;  // beyond the capacity
                    args.inverse[k * args.rows + row] = static_cast<int32_t>(o);
                    args.neighbors[k * args.out_rows + o] = static_cast<int32_t>(row);
                    write_index(&args.out_indices[o],
                                {one.b, static_cast<int32_t>(z), static_cast<int32_t>(y),
                                 static_cast<int32_t>(x)});
                    ++pairs;
                  });
  return pairs;
}

// Writes the entries of a row in one plane.
template <bool kSubmanifold>
TORCHVOX_HD RowCounts write_row(const SparseMapArgs& args, const SparseMapWork& work, int64_t valid,
                                int64_t row, int plane) {
  RowCounts counts;
  const SparseRow one(args, row);
  const bool active = row < valid && one.inside && !work.later[row];
  if (row < valid && one.in_sample(args)) counts.sample = one.b;
  counts.active = kSubmanifold && plane == 0 && active;
  counts.skipped = plane == 0 && row < valid && !active;
  counts.pairs = kSubmanifold ? write_neighbors(args, work, one, active, row, plane)
                              : write_outputs(args, work, one, active, row, plane);
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
