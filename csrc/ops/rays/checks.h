// SPDX-License-Identifier: Apache-2.0
//
// Rays as arguments of ops, checked and turned into what kernels take.
#pragma once

#include "csrc/kernels/rays/input.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

// Points [N, C] and origins [O, 3] of rays, of B samples.
inline void add_rays(Inputs& in, const Tensor& points, const Tensor& origins,
                     const OptionalTensor& origin_index, const OptionalTensor& batch_offsets,
                     const OptionalTensor& num_valid, const OptionalTensor& ray_flags) {
  add_points(in, points);
  add_batch(in, batch_offsets, num_valid);
  in.add("origins", origins, Dtypes::kFloats, "[O, 3]");
  in.add("origin_index", origin_index, Dtypes::kIndices, "[N]");
  in.add("ray_flags", ray_flags, Dtypes::kUInt8, "[N]");
  if (!origin_index) {
    check_size(in["O"].sym_eq(in["B"]), in.op(),
               "origins must have one row per sample where origin_index is None",
               origins.sym_sizes());
  }
}

// Puts the rays of a call into `rays`. The points come from Clouds, which keep them.
inline void put_rays(RayInput& rays, Memory& memory, const Clouds& packed, const Tensor& origins_in,
                     const OptionalTensor& origin_index, const OptionalTensor& ray_flags) {
  const Tensor origins = memory.rows(origins_in);
  rays.points = packed.view;
  rays.origins = origins.const_data_ptr();
  rays.origin_type = dtype_of(origins.scalar_type());
  rays.origin_rows = origins.size(0);
  rays.origin_stride = origins.stride(0);
  rays.origin_index = memory.indices(origin_index);
  rays.flags = memory.of<uint8_t>(ray_flags);
}

// The options of rays in a map's frame.
inline MapRays parse_map_rays(const char* op, double voxel_size, c10::ArrayRef<double> map_origin,
                              const std::optional<c10::ArrayRef<double>>& range = {},
                              double min_range = 0, double max_range = -1,
                              std::string_view long_rays = "truncate") {
  check_value(std::isfinite(voxel_size) && voxel_size > 0, op,
              "voxel_size must be finite and above 0", voxel_size);
  check_value(map_origin.size() == 3, op, "map_origin must be (x, y, z)", map_origin);
  MapRays rays;
  rays.voxel_size = voxel_size;
  for (int axis = 0; axis < 3; ++axis) {
    rays.map_origin[axis] = map_origin[axis];
    check_value(std::isfinite(map_origin[axis]), op, "map_origin must be finite", map_origin);
  }
  check_value(std::isfinite(min_range) && min_range >= 0, op, "min_range must be finite and >= 0",
              min_range);
  check_value(!std::isnan(max_range), op, "max_range must be a number, below 0 for none",
              max_range);
  rays.min_range = min_range;
  rays.max_range = max_range;
  rays.drop_long = parse_word(op, "long_rays", long_rays, "truncate", "drop");
  rays.clips = range.has_value();
  if (!range) return rays;
  check_range<double>(op, *range);
  for (int axis = 0; axis < 3; ++axis) {
    // No voxel lies beyond kVoxelReach, so that it may stand for all that is farther.
    const auto bound = [](double voxel) {
      const auto reach = static_cast<double>(kVoxelReach);
      return static_cast<int64_t>(std::fmin(std::fmax(voxel, -reach), reach));
    };
    rays.box.lower[axis] = bound(std::floor(((*range)[axis] - map_origin[axis]) / voxel_size));
    rays.box.upper[axis] = bound(std::ceil(((*range)[axis + 3] - map_origin[axis]) / voxel_size));
  }
  return rays;
}

}  // namespace torchvox
