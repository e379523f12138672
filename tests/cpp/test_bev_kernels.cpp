// SPDX-License-Identifier: Apache-2.0
//
// Bird's-eye-view rasters.
#include "csrc/kernels/bev/max_height.h"
#include "csrc/kernels/bev/rasterize.h"
#include "csrc/kernels/voxel/csr.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kRows = 4000, kColumns = 4, kBatches = 4;
constexpr int64_t kNx = 64, kNy = 48, kImage = kBatches * kNx * kNy;

BevGrid raster_grid(BevOrientation orientation) {
  BevGrid grid{{-5, -4, -3}, {5, 4, 3}, {10.f / kNx, 8.f / kNy}};
  grid.nx = kNx, grid.ny = kNy, grid.orientation = orientation;
  return grid;
}

// Four samples, two of them empty, and points behind the last.
CloudBatch raster_points(Side& side) {
  return packed(side, make_points(kRows, kColumns, 5.5f, 1), kColumns, {0, 0, 1500, 1500, 3900});
}

KERNEL_CASE(bev_max_height, 0x03e2c98ce1e88ccd, {"bev_table", {0, 1, 2, 3}}) {
  BevMaxHeightArgs args;
  args.points = raster_points(side), args.grid = raster_grid(BevOrientation::kImage);
  args.code.fill = -7.5f;
  side.room(&args.height, kImage, &args.top_index, kImage, &args.counts,
            (kBatches + 1) * kBevCounts);
  side.run(args);

  BevMaxHeightBackwardArgs backward;
  backward.points = args.points, backward.grid = args.grid, backward.top_index = args.top_index;
  backward.grad_height = side.put(Random(2).uniforms(kImage));
  backward.grad_points = side.room<float>(kRows * kColumns);
  side.run(backward);
}

KERNEL_CASE(bev_rasterize, 0xe8485dc0fc54a688) {
  BevRasterizeArgs args;
  args.points = raster_points(side), args.grid = raster_grid(BevOrientation::kNorthUp);
  args.intensity = {side.put(Random(3).uniforms(kRows)), DType::kFloat, 1};
  for (int channel = 0; channel <= static_cast<int>(BevChannel::kOccupancy); ++channel) {
    args.planes.plane[args.planes.count++].channel = static_cast<BevChannel>(channel);
  }
  args.planes.sliced_rows = 1, args.height_steps = 1 << 20, args.density_base = 4;
  for (int n = 0; n < args.density_base; ++n) args.density[n] = static_cast<float>(n) / 4;

  BevCellsArgs cells;
  cells.points = args.points, cells.grid = args.grid;
  cells.point_cell = side.room<int32_t>(kRows);
  side.run(cells);
  VoxelCsrArgs csr;
  csr.point_voxel = cells.point_cell, csr.points = kRows, csr.rows = kImage;
  side.room(&csr.offsets, kImage + 1, &csr.perm, kRows);
  side.run(csr);

  args.cell_offsets = csr.offsets, args.cell_points = csr.perm;
  side.room(&args.image, args.planes.count * kImage, &args.counts, (kBatches + 1) * kBevCounts);
  side.run(args);

  BevRasterizeBackwardArgs backward;
  backward.points = args.points, backward.grid = args.grid, backward.planes = args.planes;
  backward.grad_image = side.put(Random(4).uniforms(args.planes.count * kImage));
  side.room(&backward.grad_points, kRows * kColumns, &backward.grad_features, kRows);
  side.run(backward);
}

}  // namespace
