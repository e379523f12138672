// SPDX-License-Identifier: Apache-2.0
//
// Furthest point sampling as PointNet++ wrote it, for the benchmark only: one block per cloud, the
// distances in global memory, every sample one pass over all points and one tree of barriers.
#include <cuda_runtime.h>

namespace {

constexpr int kMaxThreads = 1024;

__global__ void textbook_fps(const float* xyz, int points, int samples, float* dist2, int* idx) {
  __shared__ float best_of[kMaxThreads];
  __shared__ int index_of[kMaxThreads];
  const long long cloud = blockIdx.x;
  xyz += cloud * points * 3;
  dist2 += cloud * points;
  idx += cloud * samples;
  const int thread = threadIdx.x;
  for (int i = thread; i < points; i += blockDim.x) dist2[i] = 1e10f;
  int last = 0;
  if (thread == 0) idx[0] = 0;
  for (int s = 1; s < samples; ++s) {
    const float x = xyz[3 * last], y = xyz[3 * last + 1], z = xyz[3 * last + 2];
    float best = -1.0f;
    int index = 0;
    for (int i = thread; i < points; i += blockDim.x) {
      const float dx = xyz[3 * i] - x, dy = xyz[3 * i + 1] - y, dz = xyz[3 * i + 2] - z;
      const float near = fminf(dist2[i], fmaf(dz, dz, fmaf(dx, dx, __fmul_rn(dy, dy))));
      dist2[i] = near;
      if (near > best) {
        best = near;
        index = i;
      }
    }
    best_of[thread] = best;
    index_of[thread] = index;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
      if (thread < step) {
        const float other = best_of[thread + step];
        const int other_index = index_of[thread + step];
        if (other > best_of[thread] ||
            (other == best_of[thread] && other_index < index_of[thread])) {
          best_of[thread] = other;
          index_of[thread] = other_index;
        }
      }
      __syncthreads();
    }
    last = index_of[0];
    if (thread == 0) idx[s] = last;
    __syncthreads();
  }
}

}  // namespace

// xyz [clouds, points, 3], dist2 [clouds, points] scratch, idx [clouds, samples]; starts at point
// 0.
extern "C" int textbook_fps_launch(const float* xyz, int clouds, int points, int samples,
                                   float* dist2, int* idx, void* stream) {
  int threads = 1;
  while (2 * threads <= points && threads < kMaxThreads) threads *= 2;
  textbook_fps<<<clouds, threads, 0, static_cast<cudaStream_t>(stream)>>>(xyz, points, samples,
                                                                          dist2, idx);
  return static_cast<int>(cudaGetLastError());
}
