// SPDX-License-Identifier: Apache-2.0
//
// sparse_subm_map and sparse_conv_map: which rows a kernel reads.
#include "csrc/kernels/sparse/map.h"
#include "csrc/ops/sparse/rows.h"

namespace torchvox {
namespace {

using Axis3 = std::optional<at::IntArrayRef>;

// Three whole numbers from `least`.
void set_axes(const char* op, const char* name, at::IntArrayRef values, int64_t least,
              SparseMapArgs& args, int32_t SparseAxis::*field) {
  bool ok = values.size() == 3;
  for (const int64_t value : values) ok = ok && value >= least && value < kIndexLimit;
  check_value(ok, op, {name, " must be three whole numbers (z, y, x), ", least ? ">= 1" : ">= 0"},
              values);
  for (int a = 0; a < 3; ++a) args.axes[a].*field = static_cast<int32_t>(values[a]);
}

void check_grid(const char* op, const char* name, const SparseMapArgs& args, bool output) {
  int64_t cells = std::max<int64_t>(args.batches, 1), sizes[3];
  for (int a = 0; a < 3; ++a) {
    const int64_t size = sizes[a] = output ? args.axes[a].out_size : args.axes[a].size;
    check_value(size >= 1 && size <= kMostGridAxis, op,
                {name, " must have 1 to 2^24 cells per axis"}, size);
    cells = cells > kMostGridCells / size ? kMostGridCells + 1 : cells * size;
  }
  check_value(cells <= kMostGridCells, op, {name, " must have at most 2^36 cells over all samples"},
              args.batches, " samples of ", at::IntArrayRef(sizes));
}

// Checks what both maps take; returns C.
c10::SymInt parse_map(Inputs& in, const Tensor& indices, at::IntArrayRef spatial_shape,
                      const c10::SymInt& batch_size, at::IntArrayRef kernel_size, Axis3 dilation,
                      const OptionalTensor& num_valid, SparseMapArgs& args) {
  const char* op = in.op();
  in.add("indices", indices, Dtypes::kInt32, "[C, 4]");
  add_row_count(in, num_valid, indices);
  check_size(batch_size.sym_ge(0), op, "batch_size must be in [0, 2^31)", batch_size);
  check_below(batch_size, kIndexLimit, op, "batch_size must be in [0, 2^31)", batch_size);
  args.batches = batch_size.maybe_as_int().value_or(1);  // symbolic only where nothing runs
  set_axes(op, "spatial_shape", spatial_shape, 1, args, &SparseAxis::size);
  set_axes(op, "kernel_size", kernel_size, 1, args, &SparseAxis::kernel);
  check_value(
      std::max({args.axes[0].kernel, args.axes[1].kernel, args.axes[2].kernel}) <= kMostOffsets &&
          args.volume() <= kMostOffsets,
      op, "kernel_size must have at most 125 offsets", kernel_size);
  if (dilation) set_axes(op, "dilation", *dilation, 1, args, &SparseAxis::dilation);
  check_grid(op, "spatial_shape", args, false);
  check_entries(op, "K * C must be below 2^31", in["C"], args.volume());
  return in["C"];
}

void run_map(const char* op, const Tensor& indices, const OptionalTensor& num_valid,
             SparseMapArgs& args) {
  Memory memory;
  Tensor rows = indices.contiguous();
  if (reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % sizeof(SparseIndex)) rows = rows.clone();
  args.indices = reinterpret_cast<const SparseIndex*>(memory.rows(rows).const_data_ptr<int32_t>());
  args.rows = indices.size(0);
  args.num_valid = row_count(num_valid);
  run(op, indices, args);
}

std::tuple<Tensor, Tensor> sparse_subm_map(const Tensor& indices, at::IntArrayRef spatial_shape,
                                           c10::SymInt batch_size, at::IntArrayRef kernel_size,
                                           Axis3 dilation, const OptionalTensor& num_valid) {
  Inputs in("sparse_subm_map");
  SparseMapArgs args;
  args.submanifold = true;
  const c10::SymInt rows =
      parse_map(in, indices, spatial_shape, batch_size, kernel_size, dilation, num_valid, args);
  for (SparseAxis& axis : args.axes) {
    check_value(axis.kernel % 2 == 1, in.op(), "kernel_size must be odd", kernel_size);
    const int64_t padding = int64_t{axis.kernel / 2} * axis.dilation;
    check_value(padding < kIndexLimit, in.op(), "dilation must reach less than 2^31 cells",
                axis.dilation);
    axis.padding = static_cast<int32_t>(padding);
    axis.out_size = axis.size;
  }
  Tensor neighbors = output(args.neighbors, {args.volume(), rows}, indices);
  Tensor counts = output(args.counts, {batch_size + 1, kCountColumns}, indices);
  if (indices.is_meta()) return {neighbors, counts};
  args.out_rows = indices.size(0);
  run_map(in.op(), indices, num_valid, args);
  return {neighbors, counts};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> sparse_conv_map(
    const Tensor& indices, at::IntArrayRef spatial_shape, c10::SymInt batch_size,
    at::IntArrayRef kernel_size, Axis3 stride, Axis3 padding, Axis3 dilation, c10::SymInt max_rows,
    const OptionalTensor& num_valid) {
  Inputs in("sparse_conv_map");
  SparseMapArgs args;
  const c10::SymInt rows =
      parse_map(in, indices, spatial_shape, batch_size, kernel_size, dilation, num_valid, args);
  if (stride) set_axes(in.op(), "stride", *stride, 1, args, &SparseAxis::stride);
  if (padding) set_axes(in.op(), "padding", *padding, 0, args, &SparseAxis::padding);
  for (SparseAxis& axis : args.axes) {
    const int64_t size = axis.outputs();
    check_value(size >= 1 && size <= kMostGridAxis, in.op(),
                "the output must have 1 to 2^24 cells per axis", size);
    axis.out_size = static_cast<int32_t>(size);
  }
  check_grid(in.op(), "the output", args, true);
  check_size(max_rows.sym_ge(-1), in.op(), "max_rows must be >= -1", max_rows);
  const SparseReach reach(args);
  c10::SymInt capacity = max_rows;
  if (max_rows.sym_lt(0).guard_bool(__FILE__, __LINE__)) {
    capacity = (rows * reach.outputs).min(batch_size * args.sample_cells(true));
  }
  check_entries(in.op(),
                "K * max_rows must be below 2^31; by default max_rows is what all rows could reach",
                capacity, args.volume());
  int32_t* cells = nullptr;
  Tensor out_indices = output(cells, {capacity, 4}, indices);
  args.out_indices = reinterpret_cast<SparseIndex*>(cells);
  Tensor neighbors = output(args.neighbors, {args.volume(), capacity}, indices);
  Tensor inverse = output(args.inverse, {args.volume(), rows}, indices);
  Tensor counts = output(args.counts, {batch_size + 1, kCountColumns}, indices);
  if (indices.is_meta()) return {out_indices, neighbors, inverse, counts};
  args.out_rows = neighbors.size(1);
  args.most_leaves = indices.size(0) * reach.segments;
  run_map(in.op(), indices, num_valid, args);
  return {out_indices, neighbors, inverse, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("sparse_subm_map", sparse_subm_map, not_differentiable());
  ops.add("sparse_conv_map", sparse_conv_map, not_differentiable());
}

}  // namespace
}  // namespace torchvox
