// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/inputs.h"
#include "csrc/kernels/sparse/conv.h"
#include "csrc/kernels/sparse/map.h"

namespace torchvox::bind {
namespace {

// Sets a field of all three axes from an attribute (z, y, x), where the node has it.
void set_axes(SparseMapArgs& args, const char* op, const Attributes& attributes, const char* name,
              int32_t SparseAxis::*field, int64_t least) {
  if (!attributes.has(name)) return;
  const std::vector<int64_t> values = attributes.integers(name);
  check(values.size() == 3, op, std::string(name) + " must be (z, y, x)", values);
  for (size_t a = 0; a < 3; ++a) {
    check(values[a] >= least && values[a] < kIndexLimit, op,
          std::string(name) + " must be in [" + std::to_string(least) + ", 2^31)", values);
    args.axes[a].*field = static_cast<int32_t>(values[a]);
  }
}

void check_grid(const SparseMapArgs& args, const char* op, bool output) {
  double cells = static_cast<double>(std::max<int64_t>(args.batches, 1));
  for (const SparseAxis& axis : args.axes) {
    const int64_t size = output ? axis.out_size : axis.size;
    check(size >= 1 && size <= kMostGridAxis, op, "grids must have 1 to 2^24 cells per axis", size);
    cells *= static_cast<double>(size);
  }
  check(cells <= static_cast<double>(kMostGridCells), op, "grids must have at most 2^36 cells",
        cells);
}

SparseMapArgs map_args(const char* op, const Attributes& attributes) {
  SparseMapArgs args;
  args.batches = limit(op, attributes, "batch_size", 0);
  for (const char* name : {"spatial_shape", "kernel_size"}) attributes.integers(name);
  set_axes(args, op, attributes, "spatial_shape", &SparseAxis::size, 1);
  set_axes(args, op, attributes, "kernel_size", &SparseAxis::kernel, 1);
  set_axes(args, op, attributes, "dilation", &SparseAxis::dilation, 1);
  int64_t volume = 1;
  for (const SparseAxis& axis : args.axes) volume = std::min(volume * axis.kernel, kIndexLimit);
  check(volume <= kMostOffsets, op, "kernel_size must have at most 125 offsets", volume);
  check_grid(args, op, false);
  return args;
}

// The number of rows in use, the first element of a tensor of any shape.
IndexArray row_count(Inputs& in) {
  const View* const valid = in.find("num_valid");
  if (valid == nullptr) return {};
  const bool empty = std::find(valid->shape.begin(), valid->shape.end(), 0) != valid->shape.end();
  check(!empty, in.op(), "num_valid must have an element", valid->shape);
  return index_array(in.op(), "num_valid", valid);
}

void check_entries(const char* op, int64_t volume, int64_t rows) {
  check(rows < kIndexLimit && volume * rows < kIndexLimit, op, "K * rows must be below 2^31", rows);
}

void add_rows(SparseMapArgs& args, Inputs& in) {
  const auto* const indices = in.data<int32_t>("indices", "[C, 4]");
  check(reinterpret_cast<uintptr_t>(indices) % sizeof(SparseIndex) == 0, in.op(),
        "indices must be aligned to 16 bytes", "others");
  args.indices = reinterpret_cast<const SparseIndex*>(indices);
  args.rows = in['C'];
  args.num_valid = row_count(in);
  check_entries(in.op(), args.volume(), args.rows);
}

Call plan_subm_map(SparseMapArgs args, Inputs& in) {
  add_rows(args, in);
  args.out_rows = args.rows;
  return call(args, {int32({args.volume(), args.rows}), int32({args.batches + 1, kCountColumns})},
              &SparseMapArgs::neighbors, &SparseMapArgs::counts);
}

// out_rows is the cap, or -1: what all rows could reach.
Call plan_conv_map(SparseMapArgs args, Inputs& in) {
  add_rows(args, in);
  const SparseReach reach(args);
  args.most_leaves = args.rows * reach.segments;
  if (args.out_rows < 0) {
    args.out_rows = std::min(args.rows * reach.outputs, args.batches * args.sample_cells(true));
  }
  check_entries(in.op(), args.volume(), args.out_rows);
  return call(args,
              {int32({args.out_rows, 4}), int32({args.volume(), args.out_rows}),
               int32({args.volume(), args.rows}), int32({args.batches + 1, kCountColumns})},
              &SparseMapArgs::out_indices, &SparseMapArgs::neighbors, &SparseMapArgs::inverse,
              &SparseMapArgs::counts);
}

void add_table(SparseTable& table, Inputs& in) {
  table.entries = in.data<int32_t>("neighbors", "[K, R]");
  table.volume = in['K'];
  table.rows = in['R'];
  table.sources = kIndexLimit - 1;
}

Call plan_schedule(SparseScheduleArgs args, Inputs& in) {
  const SparseKernelSize& size = args.kernel_size;
  in.set('K', size.z * size.y * size.x);
  add_table(args.table, in);
  return call(args, {int32({SparseSchedule::length(in['K'], in['R'])})}, &SparseScheduleArgs::out);
}

Call plan_conv(SparseConvArgs args, Inputs& in) {
  const char* const op = in.op();
  args.features = in.floats("features", "[C, I]", &args.dtype);
  args.weight.data = in.floats_of("weight", "[O, Z, Y, X, I]", args.dtype);
  args.kernel_size = {in['Z'], in['Y'], in['X']};
  const double volume = static_cast<double>(in['Z']) * in['Y'] * in['X'];
  check(volume <= kMostOffsets, op, "weight must have at most 125 offsets", volume);
  in.set('K', static_cast<int64_t>(volume));
  add_table(args.table, in);
  in.data<int32_t>("inverse", "[K, C]");
  in.data<int32_t>("inverse_schedule", "[*]");
  args.table.num_valid = row_count(in);
  args.table.sources = in['C'];
  args.bias = in.floats_of("bias", "[O]", args.dtype);
  args.residual = in.floats_of("residual", "[R, O]", args.dtype);
  args.in_channels = in['I'];
  args.out_channels = in['O'];
  args.weight.in_stride = 1;
  args.weight.offset_stride = in['I'];
  args.weight.out_stride = in['K'] * in['I'];
  if (const int32_t* const schedule = in.data<int32_t>("schedule", "[S]")) {
    const bool aligned = reinterpret_cast<uintptr_t>(schedule) % 16 == 0;
    check(aligned && in['S'] == SparseSchedule::length(in['K'], in['R']), op,
          "schedule must be what SparseSchedule gives for neighbors", in['S']);
    args.schedule = const_cast<int32_t*>(schedule);  // which is not written
  }
  return call(args, {{element_of(args.dtype), {in['R'], in['O']}}}, &SparseConvArgs::out);
}

}  // namespace

Planner bind_sparse_subm_map(const Attributes& attributes) {
  const char* op = "SparseSubmMap";
  SparseMapArgs args = map_args(op, attributes);
  args.submanifold = true;
  for (SparseAxis& axis : args.axes) {
    const int64_t padding = int64_t{axis.kernel / 2} * axis.dilation;
    check(axis.kernel % 2 == 1 && padding < kIndexLimit, op,
          "kernel_size must be odd, and dilation reach less than 2^31 cells", axis.kernel);
    axis.padding = static_cast<int32_t>(padding);
    axis.out_size = axis.size;
  }
  return planner(op, attributes, {"indices", "num_valid?"}, args, plan_subm_map);
}

Planner bind_sparse_conv_map(const Attributes& attributes) {
  const char* op = "SparseConvMap";
  SparseMapArgs args = map_args(op, attributes);
  set_axes(args, op, attributes, "stride", &SparseAxis::stride, 1);
  set_axes(args, op, attributes, "padding", &SparseAxis::padding, 0);
  for (SparseAxis& axis : args.axes) {
    axis.out_size = static_cast<int32_t>(std::min(axis.outputs(), kIndexLimit - 1));
  }
  check_grid(args, op, true);
  args.out_rows = limit(op, attributes, "max_rows");
  return planner(op, attributes, {"indices", "num_valid?"}, args, plan_conv_map);
}

Planner bind_sparse_schedule(const Attributes& attributes) {
  const char* op = "SparseSchedule";
  SparseMapArgs sizes;
  attributes.integers("kernel_size");
  set_axes(sizes, op, attributes, "kernel_size", &SparseAxis::kernel, 0);
  SparseScheduleArgs args;
  args.kernel_size = {sizes.axes[0].kernel, sizes.axes[1].kernel, sizes.axes[2].kernel};
  for (const SparseAxis& axis : sizes.axes) {
    check(axis.kernel <= kMostOffsets, op, "kernel_size must have at most 125 offsets",
          axis.kernel);
  }
  check(sizes.volume() <= kMostOffsets, op, "kernel_size must have at most 125 offsets",
        sizes.volume());
  return planner(op, attributes, {"neighbors"}, args, plan_schedule);
}

// inverse, inverse_schedule and submanifold are for gradients.
Planner bind_sparse_conv(const Attributes& attributes) {
  SparseConvArgs args;
  args.relu = attributes.flag("relu");
  return planner("SparseConv", attributes,
                 {"features", "weight", "neighbors", "bias?", "residual?", "inverse?", "schedule?",
                  "inverse_schedule?", "num_valid?"},
                 args, plan_conv);
}

}  // namespace torchvox::bind
