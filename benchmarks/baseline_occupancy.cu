// SPDX-License-Identifier: Apache-2.0
//
// Occupancy mapping as GPU mappers have it, for the benchmark only: one thread per ray, which walks
// in floats (Amanatides and Woo), finds regions of 8 x 8 x 8 voxels in a hash table with
// compare-and-swap, and updates float log-odds by compare-and-swap with a clamp. Updates apply in
// the order in which threads get there. A voxel at its clamp is only read.
#include <cuda_runtime.h>

struct Map {
  unsigned long long* keys;  // [slots], all bits set where empty
  float* voxels;  // [slots, 512] log-odds, infinity where not observed
  unsigned slots;
};

struct Rays {
  const float* points;  // [count, 3]
  const float* origin;  // [3]
  int count;
  float size, hit, miss, low, high;
};

namespace {

constexpr unsigned long long kEmpty = ~0ull;

// The voxels of a region, which gets a slot if it has none; null if the table is full.
__device__ float* region(const Map& map, const int* voxel) {
  unsigned long long key = 0;
  for (int axis = 2; axis >= 0; --axis) key = key << 21 | ((voxel[axis] >> 3) + (1 << 20));
  unsigned long long h = key;
  h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
  h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
  unsigned slot = (h >> 32) * map.slots >> 32;
  for (unsigned probe = 0; probe < map.slots; ++probe) {
    unsigned long long found = map.keys[slot];
    if (found == kEmpty) found = atomicCAS(&map.keys[slot], kEmpty, key);
    if (found == kEmpty || found == key) return map.voxels + 512ull * slot;
    slot = slot + 1 == map.slots ? 0 : slot + 1;
  }
  return nullptr;
}

__device__ void update(float* voxel, float change, float low, float high) {
  float old = *voxel;  // of the cache: where it is stale, the swap fails and gives the true one
  while (true) {
    const float next = fminf(fmaxf((isinf(old) ? 0.0f : old) + change, low), high);
    if (next == old) return;
    const int found =
        atomicCAS(reinterpret_cast<int*>(voxel), __float_as_int(old), __float_as_int(next));
    if (found == __float_as_int(old)) return;
    old = __int_as_float(found);
  }
}

template <bool kReverse>
__global__ void integrate(Map map, Rays rays) {
  const int ray = blockIdx.x * blockDim.x + threadIdx.x;
  if (ray >= rays.count) return;
  int voxel[3], step[3], left[3], steps = 0;
  float next[3], delta[3];
  for (int axis = 0; axis < 3; ++axis) {
    const float point = rays.points[3ll * ray + axis] / rays.size;
    const float origin = rays.origin[axis] / rays.size;
    const float from = kReverse ? point : origin, to = kReverse ? origin : point;
    voxel[axis] = static_cast<int>(floorf(from));
    const int last = static_cast<int>(floorf(to));
    step[axis] = to < from ? -1 : 1;
    left[axis] = abs(last - voxel[axis]);
    steps += left[axis];
    delta[axis] = 1.0f / fabsf(to - from);
    const float face = voxel[axis] + (step[axis] > 0 ? 1.0f : 0.0f);
    next[axis] = left[axis] ? fabsf(face - from) * delta[axis] : INFINITY;
  }
  float* voxels = region(map, voxel);
  for (int at = 0;; ++at) {
    const bool hit = at == (kReverse ? 0 : steps);
    const int inside = (voxel[2] & 7) << 6 | (voxel[1] & 7) << 3 | (voxel[0] & 7);
    if (voxels) update(voxels + inside, hit ? rays.hit : rays.miss, rays.low, rays.high);
    if (at == steps) return;
    bool leaves = false;
    const int axis =
        next[2] <= next[1] ? (next[2] <= next[0] ? 2 : 0) : (next[1] <= next[0] ? 1 : 0);
#pragma unroll
    for (int i = 0; i < 3; ++i) {  // with constant indices all of it stays in registers
      if (i != axis) continue;
      leaves = (voxel[i] & 7) == (step[i] > 0 ? 7 : 0);
      voxel[i] += step[i];
      next[i] = --left[i] ? next[i] + delta[i] : INFINITY;
    }
    if (leaves) voxels = region(map, voxel);
  }
}

}  // namespace

extern "C" int baseline_occupancy(Map map, Rays rays, int reverse, int threads,
                                  cudaStream_t stream) {
  const auto kernel = reverse ? integrate<true> : integrate<false>;
  kernel<<<(rays.count + threads - 1) / threads, threads, 0, stream>>>(map, rays);
  return static_cast<int>(cudaGetLastError());
}
