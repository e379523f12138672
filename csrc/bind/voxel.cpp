// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/checks.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox::bind {
namespace {

constexpr const char* kOp = "VoxelMap";

Call plan_voxel_map(VoxelizeArgs args, const Tensors& tensors, std::span<const View> inputs) {
  tensors.check_count(inputs);
  const View& points = *tensors.find(inputs, "points");
  const View* const offsets = tensors.find(inputs, "batch_offsets");
  const View* const valid = tensors.find(inputs, "num_valid");
  check(points.shape.size() == 2 && points.size(1) >= 3 && points.size(0) < kIndexLimit, kOp,
        "points must be [N, C] with C >= 3", points.shape);
  if (offsets != nullptr) {
    check(offsets->shape.size() == 1 && offsets->size(0) >= 1, kOp, "batch_offsets must be [B + 1]",
          offsets->shape);
  }
  const int64_t batches = offsets != nullptr ? offsets->size(0) - 1 : 1;
  if (valid != nullptr && !(valid->shape.empty() && batches == 1)) {
    check_shape(kOp, "num_valid", *valid, {batches}, "[B]");
  }
  CloudBatch& cloud = args.points;
  cloud.data = points.data;
  cloud.dtype = float_type(kOp, "points", points);
  cloud.packed = true;
  cloud.clouds = batches;
  cloud.rows = points.size(0);
  cloud.columns = cloud.row_stride = points.size(1);
  cloud.offsets = index_array(kOp, "batch_offsets", offsets);
  cloud.lengths = index_array(kOp, "num_valid", valid);
  const double keys = static_cast<double>(args.grid.cells[0]) * args.grid.cells[1] *
      args.grid.cells[2] * static_cast<double>(batches);
  check(keys < 0x1p62, kOp, "B * nx * ny * nz must be below 2^62", keys);
  check(args.max_voxels < 0 || batches < kIndexLimit / std::max<int64_t>(1, args.max_voxels), kOp,
        "B * max_voxels must be below 2^31", batches);
  const int64_t capacity = args.capacity(), rows = cloud.rows;
  const auto int32 = [](Shape shape) { return Output{Element::kInt32, std::move(shape)}; };
  return {{int32({capacity, 4}), int32({capacity}), int32({rows}), int32({rows}),
           int32({batches + 1, kVoxelCounts})},
          [args](std::span<void* const> out, const Host& host) {
            VoxelizeArgs own = args;
            own.indices = static_cast<int32_t*>(out[0]);
            own.num_points = static_cast<int32_t*>(out[1]);
            own.point_voxel = static_cast<int32_t*>(out[2]);
            own.point_slot = static_cast<int32_t*>(out[3]);
            own.counts = static_cast<int32_t*>(out[4]);
            own.threads = host.target().threads;
            run(own, host);
          }};
}

}  // namespace

Planner bind_voxel_map(const Attributes& attributes) {
  VoxelizeArgs args;
  args.grid = voxel_grid(kOp, attributes);
  args.order = choice<VoxelOrder>(
      kOp, attributes, "order",
      {{"first", VoxelOrder::kFirst}, {"zyx", VoxelOrder::kZyx}, {"xyz", VoxelOrder::kXyz}});
  args.grid.x_major = args.order == VoxelOrder::kXyz;
  args.grid.check_range = choice<bool>(kOp, attributes, "bounds", {{"grid", 0}, {"range", 1}});
  args.all_finite = choice<bool>(kOp, attributes, "finite", {{"xyz", 0}, {"all", 1}});
  args.max_points = limit(kOp, attributes, "max_points");
  args.max_voxels = limit(kOp, attributes, "max_voxels");
  const Tensors tensors(kOp, attributes, {"points", "batch_offsets?", "num_valid?"});
  return [args, tensors](std::span<const View> inputs) {
    return plan_voxel_map(args, tensors, inputs);
  };
}

}  // namespace torchvox::bind
