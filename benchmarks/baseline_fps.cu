// SPDX-License-Identifier: Apache-2.0
//
// Furthest point sampling as PointNet++ wrote it, for the benchmark only: one block per cloud, the
// distances in global memory, every sample one pass over all points and one tree of barriers.
#include <cuda_runtime.h>

namespace {

template <int kThreads>
__global__ void baseline_fps(const float* xyz, int points, int samples, float* dist2, int* idx) {
  // Two buffers in turn: the next sample must not overwrite a winner that is still being read.
  __shared__ float best_in[2][kThreads];
  __shared__ int index_in[2][kThreads];
  const long long cloud = blockIdx.x;
  xyz += cloud * points * 3;
  dist2 += cloud * points;
  idx += cloud * samples;
  const int thread = threadIdx.x;
  for (int i = thread; i < points; i += kThreads) dist2[i] = 1e10f;
  int last = 0;
  if (thread == 0) idx[0] = 0;
  for (int s = 1; s < samples; ++s) {
    const float x = xyz[3 * last], y = xyz[3 * last + 1], z = xyz[3 * last + 2];
    float best = -1.0f;
    int index = 0;
    for (int i = thread; i < points; i += kThreads) {
      const float dx = xyz[3 * i] - x, dy = xyz[3 * i + 1] - y, dz = xyz[3 * i + 2] - z;
      const float near = fminf(dist2[i], fmaf(dz, dz, fmaf(dx, dx, __fmul_rn(dy, dy))));
      dist2[i] = near;
      index = near > best ? i : index;
      best = fmaxf(near, best);
    }
    float* best_of = best_in[s % 2];
    int* index_of = index_in[s % 2];
    best_of[thread] = best;
    index_of[thread] = index;
    __syncthreads();
#pragma unroll
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (thread < step) {
        const float other = best_of[thread + step];
        const int other_index = index_of[thread + step];
        index_of[thread] = other > best_of[thread] ? other_index : index_of[thread];
        best_of[thread] = fmaxf(other, best_of[thread]);
      }
      __syncthreads();
    }
    last = index_of[0];
    if (thread == 0) idx[s] = last;
  }
}

}  // namespace

// xyz [clouds, points, 3], dist2 [clouds, points] scratch, idx [clouds, samples]. Point 0 is first.
extern "C" int baseline_fps_launch(const float* xyz, int clouds, int points, int samples,
                                   float* dist2, int* idx, cudaStream_t stream) {
  const auto kernel = points >= 1024 ? baseline_fps<1024>
      : points >= 512                ? baseline_fps<512>
      : points >= 128                ? baseline_fps<128>
                                     : baseline_fps<32>;
  const int threads = points >= 1024 ? 1024 : points >= 512 ? 512 : points >= 128 ? 128 : 32;
  kernel<<<clouds, threads, 0, stream>>>(xyz, points, samples, dist2, idx);
  return static_cast<int>(cudaGetLastError());
}
