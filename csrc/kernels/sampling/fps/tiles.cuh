// SPDX-License-Identifier: Apache-2.0
//
// A cloud in spatial order, cut into tiles with a box and a largest dist2 each, and the tiles into
// groups of up to 32, which are distributed over the blocks that share the cloud and their warps.
// Points and distances are in global memory, usually in L2, boxes in shared memory.
#pragma once

#include "csrc/kernels/sampling/fps/candidates.cuh"

namespace torchvox {

// Boxes in shared memory, one array per side, so that lanes that read neighbors have no bank
// conflicts.
struct FpsBoxes {
  float* corners;
  uint32_t stride;

  __device__ PointBox at(uint32_t i) const {
    return {corners[i],
            corners[i + stride],
            corners[i + 2 * stride],
            corners[i + 3 * stride],
            corners[i + 4 * stride],
            corners[i + 5 * stride]};
  }
  __device__ void put(uint32_t i, const PointBox& box) const {
    corners[i] = box.low_a;
    corners[i + stride] = box.low_b;
    corners[i + 2 * stride] = box.low_c;
    corners[i + 3 * stride] = box.high_a;
    corners[i + 4 * stride] = box.high_b;
    corners[i + 5 * stride] = box.high_c;
  }
};

// The tiles of one block. Group i of a block is group member + i * members of the cloud, so that
// different blocks work on neighbors, which the same samples reach.
struct FpsTiles {
  static constexpr int kListed = 64;  // samples that a warp measures a group from at a time

  const float4* points;  // [count] a, b, c, code
  float* dist2s;  // [count]
  uint32_t count;
  uint32_t tile;  // points per tile
  uint32_t group;  // tiles per group, a power of two up to 32
  uint32_t groups;  // of this block
  uint32_t member, members;  // this block among those that share the tiles
  FpsBoxes boxes, group_boxes;
  int* top;  // bits of the largest dist2 of each tile

  // Shared memory for the boxes of `room` tiles.
  static size_t bytes(uint32_t room) { return sizeof(float) * 10 * room; }

  // Chooses the smallest tile size for which a block needs at most `room` tiles. A leader of many
  // blocks has no tiles, because it has other work.
  __device__ void lay_out(float* memory, uint32_t room, uint32_t smallest_tile, uint32_t block,
                          uint32_t blocks) {
    const bool all_alike = blocks < kLargeBlockGroup;
    member = all_alike ? block : block - 1;
    members = all_alike ? blocks : blocks - 1;
    const uint32_t warps = blockDim.x / 32;
    for (tile = smallest_tile;; tile *= 2) {
      const uint32_t tiles = (count + tile - 1) / tile;
      group = 1;
      while (group < 32 && group * members * warps < tiles) group *= 2;
      const uint32_t all = (tiles + group - 1) / group;
      const uint32_t each = (all + members - 1) / members;
      groups = all_alike || block > 0 ? (all + members - 1 - member) / members : 0;
      if (each * group <= room) break;
    }
    boxes = {memory, room};
    group_boxes = group == 1 ? boxes : FpsBoxes{memory + 6 * room, room / 2};
    top = reinterpret_cast<int*>(memory + 9 * room);
  }

  // Position of the first point of tile `lane` of group i of this block.
  __device__ __forceinline__ uint32_t begin_of(uint32_t i, uint32_t lane) const {
    const uint64_t begin = (uint64_t{member + i * members} * group + lane) * tile;
    return begin < count ? static_cast<uint32_t>(begin) : count;
  }

  // Computes the boxes of the block's tiles, one warp per group, and sets every distance to
  // `initial`.
  __device__ void build(float initial) {
    const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (uint32_t i = threadIdx.x / 32; i < groups; i += warps) {
      PointBox of_group = PointBox::empty();
      for (uint32_t t = 0; t < group; ++t) {
        const uint32_t begin = begin_of(i, t), end = min(begin + tile, count);
        PointBox box = PointBox::empty();
        for (uint32_t r = begin + lane; r < end; r += 32) {
          box.extend(points[r]);
          dist2s[r] = initial;
        }
        box = warp_box(box);
        if (begin < end) {
          of_group.extend(make_float4(box.low_a, box.low_b, box.low_c, 0.0f));
          of_group.extend(make_float4(box.high_a, box.high_b, box.high_c, 0.0f));
        }
        if (lane == 0) {
          boxes.put(i * group + t, box);
          top[i * group + t] = __float_as_int(begin < end ? initial : -1.0f);
        }
      }
      if (lane == 0) group_boxes.put(i, of_group);
      __syncwarp();
    }
  }

  // Lowers the distances of group i to the nearest of `samples`; returns the new `top` of the
  // lane's tile. `list` is [kListed], of the warp. First one lane per sample tests the box of the
  // group, then one lane per tile tests the samples that reach it, then one lane per point
  // measures.
  __device__ int measure_group(uint32_t i, const float4* samples, int samples_count,
                               uint16_t* list) {
    const int lane = threadIdx.x % 32;
    const bool has_tile = lane < static_cast<int>(group);
    const PointBox group_box = group_boxes.at(i);
    const PointBox box = has_tile ? boxes.at(i * group + lane) : PointBox::empty();
    int mine = has_tile ? top[i * group + lane] : -1;
    float group_top = __int_as_float(warp_max<int>(mine));
    int listed = 0;
    for (int base = 0; base < samples_count; base += 32) {
      const int r = base + lane;
      const bool near = r < samples_count && group_box.bound(samples[r]) < group_top;
      const unsigned hits = __ballot_sync(kFullWarp, near);
      if (near) list[listed + __popc(hits & lanes_below(lane))] = static_cast<uint16_t>(r);
      listed += __popc(hits);
      if (listed > kListed - 32 || (listed > 0 && base + 32 >= samples_count)) {
        __syncwarp();
        mine = measure_listed(i, box, mine, samples, list, listed);
        group_top = __int_as_float(warp_max<int>(mine));
        listed = 0;
        __syncwarp();
      }
    }
    if (has_tile) top[i * group + lane] = mine;
    return mine;
  }

  // Calls use(position of the lane's point, ballot of the chosen) for all runs of 32 points of
  // group i that may hold points with bits >= limit and code <= top_code. `mine` as above.
  template <class Use>
  __device__ __forceinline__ void each_above(uint32_t i, int mine, int limit, uint32_t top_code,
                                             Use use) const {
    constexpr int kAtOnce = 4;  // tiles whose loads are in flight at once
    unsigned left = __ballot_sync(kFullWarp, mine >= limit);
    while (left) {
      uint32_t begin[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        begin[k] = left ? begin_of(i, __ffs(left) - 1) : count;
        left &= left - 1;
      }
      for (uint32_t run = threadIdx.x % 32; run < tile; run += 32) {
        float d[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          d[k] = begin[k] + run < count ? dist2s[begin[k] + run] : -1.0f;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const uint32_t r = begin[k] + run;
          bool chosen = __float_as_int(d[k]) >= limit;
          if (top_code != kNoCode && chosen) chosen = __float_as_uint(points[r].w) <= top_code;
          const unsigned all = __ballot_sync(kFullWarp, chosen);
          if (all) use(r, all);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ int measure_listed(uint32_t i, const PointBox& box, int mine,
                                                const float4* samples, const uint16_t* list,
                                                int listed) {
    const int lane = threadIdx.x % 32;
    uint64_t reached_by = 0;
    if (group == 1) {  // the box of the group is that of the tile
      if (lane == 0) reached_by = ~uint64_t{0} >> (kListed - listed);
    } else {
      for (int k = 0; k < listed; ++k) {
        if (box.bound(samples[list[k]]) < __int_as_float(mine)) reached_by |= uint64_t{1} << k;
      }
    }
    unsigned reached = __ballot_sync(kFullWarp, reached_by != 0);
    while (reached) {
      const int owner = __ffs(reached) - 1;
      reached &= reached - 1;
      const uint64_t hits = __shfl_sync(kFullWarp, reached_by, owner);
      const int now = measure_tile(begin_of(i, owner), samples, list, hits);
      if (lane == owner) mine = now;
    }
    return mine;
  }

  // Lowers the distances of the tile at `begin` to the listed samples of the mask; returns the bits
  // of the largest distance.
  __device__ __forceinline__ int measure_tile(uint32_t begin, const float4* samples,
                                              const uint16_t* list, uint64_t hits) {
    constexpr int kAtOnce = 2;  // points per lane
    const uint32_t end = min(begin + tile, count);
    float largest = -1.0f;
    for (uint32_t r = begin + threadIdx.x % 32; r < end; r += 32 * kAtOnce) {
      float4 p[kAtOnce];
      float d[kAtOnce], before[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const uint32_t at = r + 32 * k;
        p[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        before[k] = -1.0f;
        if (at < end) {
          p[k] = points[at];
          before[k] = dist2s[at];
        }
        d[k] = before[k];
      }
      for (uint64_t left = hits; left;) {  // two at a time, to wait for memory once
        const int first = __ffsll(static_cast<long long>(left)) - 1;
        left &= left - 1;
        const int second = left ? __ffsll(static_cast<long long>(left)) - 1 : first;
        left &= left - 1;
        const float4 q[2] = {samples[list[first]], samples[list[second]]};
#pragma unroll
        for (int k = 0; k < 2 * kAtOnce; ++k) {
          const float4 &point = p[k / 2], &sample = q[k % 2];
          d[k / 2] =
              fminf(d[k / 2], dist2(point.x - sample.x, point.y - sample.y, point.z - sample.z));
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (d[k] < before[k]) dist2s[r + 32 * k] = d[k];
        largest = fmaxf(largest, d[k]);
      }
    }
    return warp_max<int>(__float_as_int(largest));
  }
};

}  // namespace torchvox
