// SPDX-License-Identifier: Apache-2.0
//
// Pillars: encoder, moments, norm and canvas, each over the outputs of the one before; voxels.
#include <algorithm>

#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/moments.h"
#include "csrc/kernels/pillars/norm.h"
#include "csrc/kernels/pillars/scatter.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int32_t kBatches = 2, kNx = 9, kNy = 5, kCells = kBatches * kNx * kNy;
constexpr int64_t kPoints = 1500, kColumns = 4, kRows = 60, kOutputs = 64;

// Points in pillars of different cells; every fifth row is not used.
PillarMap make_map(Side& side, int64_t most) {
  Random random(1);
  std::vector<int32_t> indices, num_points(kRows), point_voxel, point_slot;
  for (int32_t r = 0; r < kRows; ++r) {
    const int32_t cell = r * 7 % kCells;
    const int32_t index[] = {cell / (kNy * kNx), 0, cell / kNx % kNy, cell % kNx};
    for (const int32_t i : index) indices.push_back(r % 5 == 3 ? -1 : i);
  }
  for (int64_t i = 0; i < kPoints; ++i) {
    const auto r = static_cast<int32_t>(random.below(kRows));
    const bool used = r % 5 != 3, full = used && most >= 0 && num_points[r] >= most;
    point_voxel.push_back(used ? r : -1);
    point_slot.push_back(used && !full ? num_points[r]++ : -1);
  }
  PillarMap map;
  map.points = side.put(random.integers<float>(kPoints * kColumns, -3, 9));  // maxima tie
  map.count = kPoints, map.columns = map.row_stride = kColumns;
  map.point_voxel = side.put(point_voxel), map.point_slot = side.put(point_slot);
  map.num_points = side.put(num_points);
  map.rows = {side.put(indices), kRows, kBatches, kNx, kNy};
  map.grid.hi[0] = kNx, map.grid.hi[1] = kNy, map.grid.lo[2] = -1, map.grid.size[2] = 2;
  map.grid.cells[0] = kNx, map.grid.cells[1] = kNy, map.max_points = most;
  return map;
}

// Few slots, and pillars of more points than a list of fixed length has.
KERNEL_CASE(pillar_encode, 0x98937a04197ec908, {"pillar_cpu", {0, 1, 2}}, {"pillar_lists", {0, 1}},
            {"pillar_common", {0, 1}}) {
  for (const int64_t most : {6, -1}) {
    PillarEncodeArgs encode;
    encode.map = make_map(side, most);
    const int64_t width = encode.map.decorated();
    encode.weight = side.put(Random(2).uniforms(kOutputs * width));
    encode.bias = side.put(Random(3).uniforms(kOutputs));
    encode.outputs = kOutputs;
    side.room(&encode.canvas, kCells * kOutputs, &encode.arg, kRows * kOutputs, &encode.mean,
              3 * kRows);
    side.run(encode);

    PillarEncodeBackwardArgs backward;
    backward.map = encode.map, backward.grad = encode.canvas;
    const int64_t strides[4] = {kNy * kNx * kOutputs, 1, kNx * kOutputs, kOutputs};
    std::copy_n(strides, 4, backward.grad_strides);
    backward.arg = encode.arg, backward.mean = encode.mean, backward.outputs = kOutputs;
    side.room(&backward.grad_weight, kOutputs * width, &backward.grad_bias, kOutputs);
    side.run(backward);
  }
}

KERNEL_CASE(pillar_norm, 0x3619a35659e0e3e2, {"pillar_lists", {0, 1}}) {
  PillarMomentsArgs moments;
  moments.map = make_map(side, 6);
  moments.moments = side.room<double>(moments.entries());
  side.run(moments);

  PillarNormBackwardArgs backward;
  PillarNormArgs& norm = backward.norm;
  norm.outputs = kOutputs, norm.columns = moments.map.decorated(), norm.eps = 1e-3;
  const int64_t weights = kOutputs * norm.columns;
  norm.moments = moments.moments;
  norm.weight = side.put(Random(4).uniforms(weights));
  norm.gamma = side.put(Random(5).uniforms(kOutputs));
  norm.beta = side.put(Random(6).uniforms(kOutputs));
  side.room(&norm.folded_weight, weights, &norm.folded_bias, kOutputs, &norm.mean, kOutputs,
            &norm.var, kOutputs);
  side.run(norm);
  backward.grad_weight = norm.folded_weight, backward.grad_bias = norm.folded_bias;
  side.room(&backward.to_weight, weights, &backward.to_gamma, kOutputs, &backward.to_beta,
            kOutputs);
  side.run(backward);
}

KERNEL_CASE(pillar_scatter, 0xf86459ec5a3657b8) {
  PillarScatterArgs scatter;
  scatter.rows = make_map(side, -1).rows;
  scatter.feats = side.put(Random(7).uniforms(kRows * 3));
  scatter.channels = 3;
  scatter.canvas = side.room<float>(kCells * 3);
  side.run(scatter);
  PillarScatterBackwardArgs gather;
  gather.rows = scatter.rows, gather.grad = scatter.canvas, gather.channels = 3;
  const int64_t strides[4] = {kNy * kNx * 3, 1, kNx * 3, 3};
  std::copy_n(strides, 4, gather.grad_strides);
  gather.grad_feats = side.room<float>(kRows * 3);
  side.run(gather);
}

KERNEL_CASE(voxelize, 0xa25509957793dd78, {"voxel_table", {0, 1, 2}}, {"voxel_ranking", {0, 1}},
            {"voxel_partitions", {1, 2, 5, 16}}, {"voxel_kernels", {0, 1}},
            {"voxel_common", {0, 1}}) {
  constexpr int64_t kRows = 6000, kColumns = 4;
  // The usual call, which has kernels of its own, and one that has not.
  for (const VoxelReduce reduce : {VoxelReduce::kMean, VoxelReduce::kMax}) {
    const bool usual = reduce == VoxelReduce::kMean;
    VoxelizeArgs args;
    args.reduce = reduce;
    args.points = packed(side, make_points(kRows, kColumns, 4.2f, 1), kColumns);
    for (int a = 0; a < 3; ++a) {
      args.grid.lo[a] = -4, args.grid.hi[a] = 4, args.grid.size[a] = 1, args.grid.cells[a] = 8;
    }
    if (usual) args.max_points = 5, args.max_voxels = 300;
    if (!usual) args.order = VoxelOrder::kZyx;
    const int64_t capacity = args.capacity(), values = capacity * args.row_values();
    side.room(&args.features, values, &args.indices, capacity * 4, &args.num_points, capacity,
              &args.point_voxel, kRows, &args.counts, 2 * kVoxelCounts);
    if (!usual) args.arg = side.room<int32_t>(capacity * kColumns);
    if (!usual) args.point_slot = side.room<int32_t>(kRows);
    side.run(args, /*filled=*/true);  // the fused kernel reads small segments 16 bytes at once
    if (usual) continue;

    VoxelizeBackwardArgs backward;
    backward.rows = kRows, backward.columns = kColumns, backward.capacity = capacity;
    backward.max_points = args.max_points, backward.reduce = reduce;
    backward.grad = side.put(Random(2).uniforms(values));
    backward.point_voxel = args.point_voxel, backward.point_slot = args.point_slot;
    backward.num_points = args.num_points, backward.arg = args.arg;
    backward.grad_input = side.room<float>(kRows * kColumns);
    side.run(backward);
  }
}

}  // namespace
