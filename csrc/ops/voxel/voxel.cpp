// SPDX-License-Identifier: Apache-2.0
//
// voxelize; voxel_csr, which lists the points of each row once; and voxel_scatter, which reduces
// over that list many times.
#include <limits>

#include "csrc/kernels/voxel/csr.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/reduction.h"
#include "csrc/ops/voxel/args.h"

namespace torchvox {
namespace {

// What voxelize, _voxelize_train and voxel_map have in common.
struct Request {
  const char* op;
  const Tensor& points;
  c10::ArrayRef<double> voxel_size;
  c10::ArrayRef<double> range;
  int64_t max_points;
  const c10::SymInt& max_voxels;
  const OptionalTensor& batch_offsets;
  const OptionalTensor& num_valid;
  std::string_view order;
  std::string_view bounds;
  std::string_view finite;
};

struct VoxelReduction {
  std::string_view reduce;
  std::optional<at::ScalarType> out_dtype;
  bool center_relative;
};

struct Outputs {
  Tensor features, indices, num_points, point_voxel, counts, point_slot, arg;
};

// Everything that is known before data is read; the same for the CPU, CUDA and Meta keys.
struct Plan {
  VoxelizeArgs args;
  c10::SymInt batches;
  c10::SymInt capacity;
};

Plan make_plan(const Request& r) {
  Inputs in(r.op);
  add_points(in, r.points);
  Plan plan;
  VoxelizeArgs& args = plan.args;
  args.grid = parse_voxel_grid(r.op, r.voxel_size, r.range);
  args.order = parse_choice<VoxelOrder>(
      r.op, "order", r.order,
      {{"first", VoxelOrder::kFirst}, {"zyx", VoxelOrder::kZyx}, {"xyz", VoxelOrder::kXyz}});
  args.grid.x_major = args.order == VoxelOrder::kXyz;
  args.grid.check_range = parse_word(r.op, "bounds", r.bounds, "grid", "range");
  args.all_finite = parse_word(r.op, "finite", r.finite, "xyz", "all");
  check_value(r.max_points >= -1, r.op, "max_points must be -1 (no limit) or more", r.max_points);
  check_size(r.max_voxels.sym_ge(-1), r.op, "max_voxels must be -1 (no limit) or more",
             r.max_voxels);
  args.max_points = r.max_points;
  plan.batches = add_batch(in, r.batch_offsets, r.num_valid);
  check_keys(r.op, args.grid, plan.batches);
  const bool unlimited = r.max_voxels.sym_lt(0).guard_bool(__FILE__, __LINE__);
  const auto batches = plan.batches.maybe_as_int(), cap = r.max_voxels.maybe_as_int();
  if (batches && cap && *batches > 0) {
    check_value(*cap <= std::numeric_limits<int64_t>::max() / *batches, r.op,
                "max_voxels must keep B * max_voxels below 2^63", *cap, " for ", *batches,
                " samples");
  }
  plan.capacity = unlimited ? r.points.sym_size(0) : plan.batches * r.max_voxels;
  return plan;
}

void add_reduction(const Request& r, const VoxelReduction& reduction, Plan& plan) {
  VoxelizeArgs& args = plan.args;
  args.reduce = parse_reduce(r.op, reduction.reduce);
  check_value(args.reduce != VoxelReduce::kNone || args.max_points >= 0, r.op,
              "max_points must be 0 or more with reduce='none'", args.max_points);
  const at::ScalarType type = reduction.out_dtype.value_or(r.points.scalar_type());
  check_type(is_coordinate_type(type), r.op,
             "out_dtype must be float16, bfloat16, float32 or float64", type);
  args.out_dtype = dtype_of(type);
  args.center_relative = reduction.center_relative;
}

// Makes the outputs; `args` gets their memory. `reduction` is null for a map without features.
Outputs make_outputs(const Request& r, Plan& plan, const VoxelReduction* reduction, bool with_slot,
                     bool with_arg) {
  VoxelizeArgs& args = plan.args;
  const c10::SymInt rows = r.points.sym_size(0), columns = r.points.sym_size(1);
  Outputs out;
  if (reduction != nullptr) {
    c10::SymDimVector shape{plan.capacity, columns};
    if (args.reduce == VoxelReduce::kNone) shape.insert(shape.begin() + 1, args.max_points);
    const at::ScalarType type = reduction->out_dtype.value_or(r.points.scalar_type());
    out.features = output(args.features, shape, type, r.points);
  }
  out.indices = output(args.indices, {plan.capacity, 4}, r.points);
  out.num_points = output(args.num_points, {plan.capacity}, r.points);
  out.point_voxel = output(args.point_voxel, {rows}, r.points);
  out.counts = output(args.counts, {plan.batches + 1, int64_t{kVoxelCounts}}, r.points);
  if (with_slot) out.point_slot = output(args.point_slot, {rows}, r.points);
  if (with_arg && has_arg(args.reduce)) {
    out.arg = output(args.arg, {plan.capacity, columns}, r.points);
  } else if (with_arg) {
    out.arg = empty_beside({0}, at::kInt, r.points);
  }
  return out;
}

Outputs compute(const Request& r, const VoxelReduction* reduction, bool with_slot, bool with_arg) {
  Plan plan = make_plan(r);
  if (reduction != nullptr) add_reduction(r, *reduction, plan);
  Outputs out = make_outputs(r, plan, reduction, with_slot, with_arg);
  if (r.points.is_meta()) return out;
  const Clouds packed(r.points, r.batch_offsets, r.num_valid);
  plan.args.points = packed.view;
  plan.args.max_voxels = r.max_voxels.guard_int(__FILE__, __LINE__);
  plan.args.threads = cpu_threads();
  run(r.op, r.points, plan.args);
  return out;
}

// With kTrain, what the gradient needs is returned too.
template <bool kTrain>
auto voxelize(const Tensor& points, c10::ArrayRef<double> voxel_size, c10::ArrayRef<double> range,
              int64_t max_points, c10::SymInt max_voxels, const OptionalTensor& batch_offsets,
              const OptionalTensor& num_valid, std::string_view reduce, std::string_view order,
              std::string_view bounds, std::optional<at::ScalarType> out_dtype,
              bool center_relative, std::string_view finite) {
  const VoxelReduction reduction{reduce, out_dtype, center_relative};
  const Outputs out = compute({"voxelize", points, voxel_size, range, max_points, max_voxels,
                               batch_offsets, num_valid, order, bounds, finite},
                              &reduction, kTrain, kTrain);
  const auto public_outputs =
      std::make_tuple(out.features, out.indices, out.num_points, out.point_voxel, out.counts);
  if constexpr (kTrain) {
    return std::tuple_cat(public_outputs, std::make_tuple(out.point_slot, out.arg));
  } else {
    return public_outputs;
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> voxel_map(
    const Tensor& points, c10::ArrayRef<double> voxel_size, c10::ArrayRef<double> range,
    int64_t max_points, c10::SymInt max_voxels, const OptionalTensor& batch_offsets,
    const OptionalTensor& num_valid, std::string_view order, std::string_view bounds,
    std::string_view finite) {
  Outputs out = compute({"voxel_map", points, voxel_size, range, max_points, max_voxels,
                         batch_offsets, num_valid, order, bounds, finite},
                        nullptr, true, false);
  return {out.indices, out.num_points, out.point_voxel, out.point_slot, out.counts};
}

std::vector<int64_t> grid_size(c10::ArrayRef<double> voxel_size, c10::ArrayRef<double> range) {
  const VoxelGrid grid = parse_voxel_grid("grid_size", voxel_size, range);
  return {grid.cells[0], grid.cells[1], grid.cells[2]};
}

Tensor voxelize_backward(const Tensor& grad, const Tensor& point_voxel, const Tensor& point_slot,
                         const Tensor& num_points, const Tensor& arg, std::string_view reduce_name,
                         at::ScalarType dtype) {
  const char* op = "_voxelize_backward";
  const VoxelReduce reduce = parse_reduce(op, reduce_name);
  const int64_t dim = reduce == VoxelReduce::kNone ? 3 : 2;
  Inputs in(op);
  in.add("grad", grad, Dtypes::kFloats, dim == 3 ? "[C, P, F]" : "[C, F]");
  in.add("point_voxel", point_voxel, Dtypes::kInt32, "[N]");
  in.add("point_slot", point_slot, Dtypes::kInt32, "[N]");
  in.add("num_points", num_points, Dtypes::kInt32, "[C]");
  in.add("arg", arg, Dtypes::kInt32, has_arg(reduce) ? "[C, F]" : "[0]");
  check_type(is_coordinate_type(dtype), op, "dtype must be float16, bfloat16, float32 or float64",
             dtype);
  VoxelizeBackwardArgs args;
  Tensor grad_points = output(args.grad_input, {in["N"], in["F"]}, dtype, grad);
  if (grad.is_meta()) return grad_points;
  Memory memory;
  args.rows = point_voxel.size(0);
  args.columns = grad.size(dim - 1);
  args.capacity = grad.size(0);
  args.max_points = dim == 3 ? grad.size(1) : -1;
  args.reduce = reduce;
  args.grad_dtype = dtype_of(grad.scalar_type());
  args.dtype = dtype_of(dtype);
  args.grad = memory.of(grad);
  args.point_voxel = memory.of<int32_t>(point_voxel);
  args.point_slot = memory.of<int32_t>(point_slot);
  args.num_points = memory.of<int32_t>(num_points);
  args.arg = memory.of<int32_t>(arg);
  run(op, grad, args);
  return grad_points;
}

void check_rows(const char* op, const Inputs& in) {
  check_below(in["N"], kMostEntries, op, "point_voxel must have N < 2^31 - 1 elements", in["N"]);
  check_below(in["num_rows"], kMostEntries, op, "num_rows must be in [0, 2^31 - 1)",
              in["num_rows"]);
}

void add_rows(const char* op, Inputs& in, const Tensor& point_voxel, const c10::SymInt& num_rows) {
  in.add("point_voxel", point_voxel, Dtypes::kInt32, "[N]");
  in.add_size("num_rows", num_rows);
  check_size(num_rows.sym_ge(0), op, "num_rows must be in [0, 2^31 - 1)", num_rows);
  check_rows(op, in);
}

std::tuple<Tensor, Tensor> voxel_csr(const Tensor& point_voxel, c10::SymInt num_rows) {
  const char* op = "voxel_csr";
  Inputs in(op);
  add_rows(op, in, point_voxel, num_rows);
  VoxelCsrArgs args;
  Tensor offsets = output(args.offsets, {num_rows + 1}, point_voxel);
  Tensor perm = output(args.perm, {in["N"]}, point_voxel);
  if (point_voxel.is_meta()) return {offsets, perm};
  Memory memory;
  args.point_voxel = memory.of<int32_t>(point_voxel);
  args.points = point_voxel.size(0);
  args.rows = offsets.size(0) - 1;
  run(op, point_voxel, args);
  return {offsets, perm};
}

std::tuple<Tensor, Tensor> voxel_scatter(const Tensor& feats, const Tensor& point_voxel,
                                         c10::SymInt num_rows, std::string_view reduce_name,
                                         const OptionalTensor& offsets_in,
                                         const OptionalTensor& perm_in) {
  const char* op = "voxel_scatter";
  const Reduction reduce = parse_reduction(op, reduce_name);
  Inputs in(op);
  add_rows(op, in, point_voxel, num_rows);
  in.add("feats", feats, Dtypes::kFloats, "[N, C]");
  check_value(offsets_in.has_value() == perm_in.has_value(), op,
              "offsets and perm must be given together, from voxel_csr",
              offsets_in ? "offsets alone" : "perm alone");
  in.add("offsets", offsets_in, Dtypes::kInt32, "[num_rows + 1]");
  in.add("perm", perm_in, Dtypes::kInt32, "[N]");
  SegmentReduceArgs args;
  const c10::SymInt channels = feats.sym_size(1);
  Tensor out = output(args.out, {num_rows, channels}, feats.scalar_type(), feats);
  Tensor arg = output_arg(args, reduce, {num_rows, channels}, feats);
  if (feats.is_meta()) return {out, arg};

  Tensor offsets, perm;
  if (!offsets_in) std::tie(offsets, perm) = voxel_csr(point_voxel, num_rows);
  Memory memory;
  args.src = memory.of(feats);
  args.dtype = dtype_of(feats.scalar_type());
  args.reduce = reduce;
  args.rows = args.entries = feats.size(0);
  args.channels = feats.size(1);
  args.segments = out.size(0);
  args.offsets = memory.indices(offsets_in ? *offsets_in : offsets);
  args.index = memory.indices(perm_in ? *perm_in : perm);
  run(op, feats, args);
  return {out, arg};
}

Tensor voxel_scatter_backward(const Tensor& grad, const Tensor& point_voxel, const Tensor& offsets,
                              const Tensor& arg, std::string_view reduce_name) {
  const char* op = "_voxel_scatter_backward";
  const Reduction reduce = parse_reduction(op, reduce_name);
  Inputs in(op);
  in.add("grad", grad, Dtypes::kFloats, "[num_rows, C]");
  in.add("point_voxel", point_voxel, Dtypes::kInt32, "[N]");
  in.add("offsets", offsets, Dtypes::kInt32, "[num_rows + 1]");
  in.add("arg", arg, Dtypes::kInt32, is_extreme(reduce) ? "[num_rows, C]" : "[0]");
  check_rows(op, in);
  SegmentSpreadArgs args;
  Tensor grad_feats = output(args.out, {in["N"], in["C"]}, grad.scalar_type(), grad);
  if (grad.is_meta()) return grad_feats;

  Memory memory;
  args.grad = memory.of(grad);
  args.dtype = dtype_of(grad.scalar_type());
  args.reduce = reduce;
  args.channels = grad.size(1);
  args.segments = grad.size(0);
  args.entries = point_voxel.size(0);
  args.segment = memory.of<int32_t>(point_voxel);
  args.offsets = memory.indices(offsets);
  if (is_extreme(reduce)) args.arg = memory.of<int32_t>(arg);
  run(op, grad, args);
  return grad_feats;
}

// The gradient takes the counts of rows from the list of points that the forward used.
void list_points(const Call& call) {
  if (call.optional("offsets") || call.optional("perm")) return;
  static const auto list =
      typed_op<std::tuple<Tensor, Tensor>(const Tensor&, c10::SymInt)>("torchvox::voxel_csr");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::tie(call["offsets"], call["perm"]) =
      list.call(call.tensor("point_voxel"), call["num_rows"].toSymInt());
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxelize", voxelize<false>);
  // A stored point takes its share of its voxel's gradient, in every column; the choice of the
  // cell has no gradient.
  ops.differentiable("voxelize",
                     {.backward = "_voxelize_backward",
                      .train = "_voxelize_train",
                      .derived = {{"dtype", dtype_of_argument("points")}}});
  ops.add("_voxelize_backward", voxelize_backward, no_second_derivative());
  ops.add("_voxelize_train", voxelize<true>, not_differentiable());
  ops.add("voxel_map", voxel_map, not_differentiable());
  ops.composite("grid_size", grid_size);
  ops.add("voxel_csr", voxel_csr, not_differentiable());
  ops.add("voxel_scatter", voxel_scatter);
  ops.differentiable("voxel_scatter",
                     {.backward = "_voxel_scatter_backward", .prepare = list_points});
  ops.add("_voxel_scatter_backward", voxel_scatter_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
