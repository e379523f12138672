// SPDX-License-Identifier: Apache-2.0
//
// The memory that the NMS kernels share, and their launchers.
#pragma once

#include "csrc/kernels/boxes/nms/nms.h"
#include "csrc/kernels/core/launch.cuh"

namespace torchvox {

struct NmsScratch {
  // [segments, capacity]: the boxes in order, ready for the rule.
  float4* place;  // x, y, radius, yaw; x is NaN if the box overlaps nothing, yaw if there is no box
  float4* shape;  // half_l, half_w, cos, sin
  // [segments, tiles, chunk]: bits of word (t, j) are the boxes of tile t that suppress box j; in
  // the words of tile t itself the own bit of j is set if box j does not exist. bit_of() is the bit
  // of a box.
  uint64_t* words;
  uint64_t*
      dead;  // [segments, tiles]: bit j: a box of an earlier chunk suppresses box j of the tile
  int32_t* kept;  // [segments, most]: positions of the kept boxes, for later chunks
  int64_t tiles;  // per chunk

  NmsScratch(const NmsArgs& args, Workspace& workspace)
      : tiles(ceil_div<int64_t>(args.capacity < kNmsChunk ? args.capacity : kNmsChunk, kNmsTile)) {
    const bool is_one_chunk = args.capacity <= kNmsChunk;
    place = workspace.take<float4>(args.segments * args.capacity);
    shape = workspace.take<float4>(args.segments * args.capacity);
    words = workspace.take<uint64_t>(args.segments * tiles * tiles * kNmsTile);
    dead = workspace.take<uint64_t>(is_one_chunk ? 0 : args.segments * tiles);
    kept = workspace.take<int32_t>(is_one_chunk ? 0 : args.segments * args.most);
  }

  __device__ uint64_t* row(int64_t segment, int64_t tile) const {
    return words + (segment * tiles + tile) * tiles * kNmsTile;
  }
  __device__ void write(const NmsArgs& args, int64_t segment, int64_t position, int64_t box) const {
    const float* const row = args.row(segment, box);
    BevBox<float> b = nms_box(args.mode, row);
    if (!is_finite_box(row)) b.x = b.yaw = portable::not_a_number();
    place[segment * args.capacity + position] = {b.x, b.y, b.radius, b.yaw};
    shape[segment * args.capacity + position] = {b.half_l, b.half_w, b.cos, b.sin};
  }
};

// The bit of a box in a word of its tile: even boxes first, then odd ones, since a lane handles two
// neighbors and a ballot collects one of them.
TORCHVOX_HD int bit_of(int box) { return box / 2 + 32 * (box % 2); }

struct NmsChunk {
  int64_t begin;  // position of its first box
};

// All kernels after the boxes are in order; the first of them is the next of a chain of dependent
// launches. And the greedy choice of one chunk.
cudaError_t launch_nms_chunks(const NmsArgs& args, const NmsScratch& scratch,
                              const CudaContext& context);
cudaError_t launch_nms_decide(const NmsArgs& args, const NmsScratch& scratch, const NmsChunk& chunk,
                              const CudaContext& context);

}  // namespace torchvox
