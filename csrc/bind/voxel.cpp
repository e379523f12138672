// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/reduction.h"
#include "csrc/kernels/voxel/csr.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox::bind {
namespace {

// The attributes that voxelize and voxel_map share.
VoxelizeArgs voxelize_args(const char* op, const Attributes& attributes) {
  VoxelizeArgs args;
  args.grid = voxel_grid(op, attributes);
  args.order = choice<VoxelOrder>(
      op, attributes, "order",
      {{"first", VoxelOrder::kFirst}, {"zyx", VoxelOrder::kZyx}, {"xyz", VoxelOrder::kXyz}});
  args.grid.x_major = args.order == VoxelOrder::kXyz;
  args.grid.check_range = choice<bool>(op, attributes, "bounds", {{"grid", 0}, {"range", 1}});
  args.all_finite = choice<bool>(op, attributes, "finite", {{"xyz", 0}, {"all", 1}});
  args.max_points = limit(op, attributes, "max_points");
  args.max_voxels = limit(op, attributes, "max_voxels");
  return args;
}

void add_points(VoxelizeArgs& args, Inputs& in) {
  args.points = in.packed("points", "[N, C >= 3]", "batch_offsets", "num_valid");
  const int64_t batches = args.points.clouds;
  check_keys(in.op(), args.grid, batches);
  check(args.max_voxels < 0 || batches < kIndexLimit / std::max<int64_t>(1, args.max_voxels),
        in.op(), "B * max_voxels must be below 2^31", batches);
}

Call plan_voxel_map(VoxelizeArgs args, Inputs& in) {
  using A = VoxelizeArgs;
  add_points(args, in);
  const int64_t capacity = args.capacity(), rows = in['N'];
  return call(args,
              {int32({capacity, 4}), int32({capacity}), int32({rows}), int32({rows}),
               int32({in['B'] + 1, kVoxelCounts})},
              &A::indices, &A::num_points, &A::point_voxel, &A::point_slot, &A::counts);
}

// The features are float32; another type of the op's is a Cast behind the node.
Call plan_voxelize(VoxelizeArgs args, Inputs& in) {
  using A = VoxelizeArgs;
  add_points(args, in);
  const int64_t capacity = args.capacity();
  Shape shape{capacity, in['C']};
  if (args.reduce == VoxelReduce::kNone) shape.insert(shape.begin() + 1, args.max_points);
  return call(args,
              {{Element::kFloat, shape},
               int32({capacity, 4}),
               int32({capacity}),
               int32({in['N']}),
               int32({in['B'] + 1, kVoxelCounts})},
              &A::features, &A::indices, &A::num_points, &A::point_voxel, &A::counts);
}

struct ScatterArgs {
  VoxelCsrArgs csr;
  SegmentReduceArgs reduce;
};

void add_rows(VoxelCsrArgs& args, Inputs& in) {
  args.point_voxel = in.data<int32_t>("point_voxel", "[N]");
  args.points = in['N'];
  const int64_t most = std::max(args.points, args.rows);
  check(most < kIndexLimit - 1, in.op(), "num_rows and N must be below 2^31 - 1", most);
  in.set('R', args.rows);
}

Call plan_voxel_csr(VoxelCsrArgs args, Inputs& in) {
  add_rows(args, in);
  return call(args, {int32({args.rows + 1}), int32({args.points})}, &VoxelCsrArgs::offsets,
              &VoxelCsrArgs::perm);
}

Call plan_voxel_scatter(ScatterArgs args, Inputs& in) {
  add_rows(args.csr, in);
  SegmentReduceArgs& reduce = args.reduce;
  reduce.src = in.floats("feats", "[N, C]", &reduce.dtype);
  reduce.rows = reduce.entries = in['N'];
  reduce.channels = in['C'];
  reduce.segments = args.csr.rows;
  reduce.offsets = {in.data<int32_t>("offsets", "[R + 1]")};
  reduce.index = {in.data<int32_t>("perm", "[N]")};
  check(reduce.offsets.given() == reduce.index.given(), in.op(),
        "offsets and perm must be given together", "one of them");
  return {reduction_outputs(reduce), [args](std::span<void* const> out, const Host& host) {
            VoxelCsrArgs csr = args.csr;
            SegmentReduceArgs own = args.reduce;
            const bool given = own.offsets.given();
            const Memory offsets = host.allocate(given ? 0 : 4 * (csr.rows + 1));
            const Memory perm = host.allocate(given ? 0 : 4 * csr.points);
            if (!given) {
              csr.offsets = static_cast<int32_t*>(offsets.get());
              csr.perm = static_cast<int32_t*>(perm.get());
              run(csr, host);
              own.offsets = {csr.offsets};
              own.index = {csr.perm};
            }
            run_reduction(own, out, host);
          }};
}

}  // namespace

Planner bind_voxel_map(const Attributes& attributes) {
  const char* op = "VoxelMap";
  return planner(op, attributes, {"points", "batch_offsets?", "num_valid?"},
                 voxelize_args(op, attributes), plan_voxel_map);
}

Planner bind_voxelize(const Attributes& attributes) {
  const char* op = "Voxelize";
  VoxelizeArgs args = voxelize_args(op, attributes);
  args.reduce = choice<VoxelReduce>(op, attributes, "reduce",
                                    {{"none", VoxelReduce::kNone},
                                     {"mean", VoxelReduce::kMean},
                                     {"max", VoxelReduce::kMax},
                                     {"min", VoxelReduce::kMin},
                                     {"sum", VoxelReduce::kSum}});
  check(args.reduce != VoxelReduce::kNone || args.max_points >= 0, op,
        "max_points must be 0 or more with reduce='none'", args.max_points);
  args.center_relative = attributes.flag("center_relative");
  return planner(op, attributes, {"points", "batch_offsets?", "num_valid?"}, args, plan_voxelize);
}

Planner bind_voxel_csr(const Attributes& attributes) {
  VoxelCsrArgs args;
  args.rows = limit("VoxelCsr", attributes, "num_rows", 0);
  return planner("VoxelCsr", attributes, {"point_voxel"}, args, plan_voxel_csr);
}

Planner bind_voxel_scatter(const Attributes& attributes) {
  const char* op = "VoxelScatter";
  ScatterArgs args;
  args.csr.rows = limit(op, attributes, "num_rows", 0);
  args.reduce.reduce = reduction(op, attributes);
  return planner(op, attributes, {"feats", "point_voxel", "offsets?", "perm?"}, args,
                 plan_voxel_scatter);
}

}  // namespace torchvox::bind
