// SPDX-License-Identifier: Apache-2.0
//
// Arguments that the pillar ops share, checked and turned into what kernels take.
#pragma once

#include <ATen/ops/empty_strided.h>

#include "csrc/kernels/pillars/map.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/voxel/args.h"

namespace torchvox {

// [V, 4] int32: b, z, y, x.
inline void add_indices(Inputs& in, const Tensor& indices) {
  in.add("indices", indices, Dtypes::kInt32, "[V, 4]");
  check_below(in["V"], kIndexLimit, in.op(), "indices must have V < 2^31 rows", in["V"]);
}

inline void check_batch_size(const char* op, const c10::SymInt& batch_size) {
  check_size(batch_size.sym_ge(0), op, "batch_size must be 0 or more", batch_size);
  check_below(batch_size, kIndexLimit, op, "batch_size must be below 2^31", batch_size);
}

// The grid of pillars: one cell along z.
inline VoxelGrid parse_pillar_grid(const char* op, c10::ArrayRef<double> voxel_size,
                                   c10::ArrayRef<double> range) {
  const VoxelGrid grid = parse_voxel_grid(op, voxel_size, range);
  check_value(grid.cells[2] == 1, op, "voxel_size and point_cloud_range must give one cell along z",
              grid.cells[2]);
  return grid;
}

inline void put_rows(PillarRows& rows, Memory& memory, const Tensor& indices, int64_t batches) {
  rows.indices = memory.of<int32_t>(indices);
  rows.rows = indices.size(0);
  rows.batches = batches;
}

inline void put_points(PillarMap& map, Memory& memory, const Tensor& points_in) {
  const Tensor points = memory.rows(points_in);
  map.points = points.const_data_ptr();
  map.dtype = dtype_of(points.scalar_type());
  map.count = points.size(0);
  map.columns = points.size(1);
  map.row_stride = points.stride(0);
}

// Points and the map of their pillars, as an op gets them.
struct PillarInputs {
  const Tensor& points;
  const Tensor& indices;
  const Tensor& num_points;
  const Tensor& point_voxel;
  const Tensor& point_slot;

  void add_to(Inputs& in) const {
    add_points(in, points);
    add_indices(in, indices);
    in.add("num_points", num_points, Dtypes::kInt32, "[V]");
    in.add("point_voxel", point_voxel, Dtypes::kInt32, "[N]");
    in.add("point_slot", point_slot, Dtypes::kInt32, "[N]");
  }
  void put(PillarMap& map, Memory& memory, int64_t batches) const {
    put_points(map, memory, points);
    put_rows(map.rows, memory, indices, batches);
    map.num_points = memory.of<int32_t>(num_points);
    map.point_voxel = memory.of<int32_t>(point_voxel);
    map.point_slot = memory.of<int32_t>(point_slot);
  }
};

// What the decoration of points depends on.
struct PillarOptions {
  c10::ArrayRef<double> voxel_size;
  c10::ArrayRef<double> range;
  int64_t max_points = -1;
  int64_t center_axes = 3;
  bool legacy = false;
  std::string_view pad_semantics = "reference";

  void put(const char* op, PillarMap& map) const {
    map.grid = parse_pillar_grid(op, voxel_size, range);
    check_value(max_points >= -1, op, "max_points must be -1 (no limit) or more", max_points);
    check_value(center_axes == 2 || center_axes == 3, op, "center_axes must be 2 or 3",
                center_axes);
    map.max_points = max_points;
    map.center_axes = static_cast<int>(center_axes);
    map.legacy = legacy;
    map.padded = !parse_word(op, "pad_semantics", pad_semantics, "reference", "none");
    map.rows.nx = map.grid.cells[0];
    map.rows.ny = map.grid.cells[1];
  }
};

// [B, channels, ny, nx] in the memory format that convolutions of few channels like best: the
// channels of a cell are neighbors.
inline Tensor empty_canvas(const c10::SymInt& batches, const c10::SymInt& channels, int64_t nx,
                           int64_t ny, at::ScalarType type, const Tensor& beside) {
  return at::empty_strided_symint({batches, channels, ny, nx},
                                  {channels * (nx * ny), 1, channels * nx, channels},
                                  beside.options().dtype(type).layout(at::kStrided));
}

inline void put_strides(const Tensor& grad, int64_t (&strides)[4]) {
  for (int64_t d = 0; d < 4; ++d) strides[d] = grad.stride(d);
}

}  // namespace torchvox
