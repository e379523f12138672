// SPDX-License-Identifier: Apache-2.0
//
// Two common voxel-grid filters, for the benchmark only: a hash table with float atomics, and a
// sort by Morton code with Thrust. Cells are floor((p - lower) * (1 / size)), 21 bits an axis,
// without a test of the range; sums are floats.
#include <cuda_runtime.h>
#include <thrust/execution_policy.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

struct Cloud {
  const float* points;  // [count, columns]
  int count, columns;
  float x, y, z, inverse;

  __device__ static unsigned long long spread(unsigned long long v) {
    v &= 0x1fffff;
    v = (v | v << 32) & 0x001f00000000ffffull;
    v = (v | v << 16) & 0x001f0000ff0000ffull;
    v = (v | v << 8) & 0x100f00f00f00f00full;
    v = (v | v << 4) & 0x10c30c30c30c30c3ull;
    return (v | v << 2) & 0x1249249249249249ull;
  }
  __device__ unsigned long long code(int i) const {
    const float* p = points + 1ll * i * columns;
    const int cx = static_cast<int>(floorf((p[0] - x) * inverse));
    const int cy = static_cast<int>(floorf((p[1] - y) * inverse));
    const int cz = static_cast<int>(floorf((p[2] - z) * inverse));
    return spread(cx) << 2 | spread(cy) << 1 | spread(cz);
  }
};

struct Rows {
  unsigned long long* codes;
  float* means;  // [rows, columns]
  int* counts;
};

namespace {

constexpr int kMostColumns = 7;
constexpr unsigned long long kEmpty = ~0ull;

__global__ void insert(Cloud cloud, unsigned long long* keys, float* sums, int* counts,
                       unsigned capacity) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= cloud.count) return;
  const unsigned long long code = cloud.code(i);
  unsigned slot = (code * 0x9e3779b97f4a7c15ull >> 32) % capacity;
  while (true) {
    const unsigned long long found = atomicCAS(&keys[slot], kEmpty, code);
    if (found == kEmpty || found == code) break;
    slot = slot + 1 == capacity ? 0 : slot + 1;
  }
  for (int c = 0; c < cloud.columns; ++c) {
    atomicAdd(&sums[1ll * slot * cloud.columns + c], cloud.points[1ll * i * cloud.columns + c]);
  }
  atomicAdd(&counts[slot], 1);
}

__global__ void compact(const unsigned long long* keys, const float* sums, const int* counts,
                        unsigned capacity, int columns, Rows rows, int* found) {
  const unsigned slot = blockIdx.x * blockDim.x + threadIdx.x;
  if (slot >= capacity || keys[slot] == kEmpty) return;
  const int row = atomicAdd(found, 1);
  rows.codes[row] = keys[slot];
  rows.counts[row] = counts[slot];
  for (int c = 0; c < columns; ++c) {
    rows.means[1ll * row * columns + c] = sums[1ll * slot * columns + c] / counts[slot];
  }
}

struct Sum {
  float value[kMostColumns];
  int count;
  __device__ Sum operator+(const Sum& other) const {
    Sum sum;
    for (int c = 0; c < kMostColumns; ++c) sum.value[c] = value[c] + other.value[c];
    sum.count = count + other.count;
    return sum;
  }
};

struct LoadPoint {
  Cloud cloud;
  __device__ Sum operator()(int i) const {
    Sum sum;
    for (int c = 0; c < kMostColumns; ++c) {
      sum.value[c] = c < cloud.columns ? cloud.points[1ll * i * cloud.columns + c] : 0.0f;
    }
    sum.count = 1;
    return sum;
  }
};

__global__ void encode(Cloud cloud, unsigned long long* codes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < cloud.count) codes[i] = cloud.code(i);
}

__global__ void divide(const Sum* sums, int rows, int columns, Rows out) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  out.counts[row] = sums[row].count;
  for (int c = 0; c < columns; ++c) {
    out.means[1ll * row * columns + c] = sums[row].value[c] / sums[row].count;
  }
}

// Temporary storage of Thrust, from the stream's pool: Thrust's own would be cudaMalloc.
struct Pool {
  using value_type = char;
  cudaStream_t stream;
  char* allocate(std::ptrdiff_t bytes) {
    void* found = nullptr;
    cudaMallocAsync(&found, bytes, stream);
    return static_cast<char*>(found);
  }
  void deallocate(char* pointer, size_t) { cudaFreeAsync(pointer, stream); }
};

unsigned blocks(long long items, int threads) { return (items + threads - 1) / threads; }

}  // namespace

// keys [capacity] all bits set; sums [capacity, columns], counts [capacity], found [1] zero.
extern "C" int baseline_filter_hash(Cloud cloud, unsigned long long* keys, float* sums, int* counts,
                                    unsigned capacity, Rows rows, int* found, int threads,
                                    cudaStream_t stream) {
  insert<<<blocks(cloud.count, threads), threads, 0, stream>>>(cloud, keys, sums, counts, capacity);
  compact<<<blocks(capacity, threads), threads, 0, stream>>>(keys, sums, counts, capacity,
                                                             cloud.columns, rows, found);
  return static_cast<int>(cudaGetLastError());
}

// codes, order: [count] scratch; sums: [count, 8] scratch. Returns the rows, or minus an error.
extern "C" int baseline_filter_morton(Cloud cloud, unsigned long long* codes, int* order,
                                      void* sums, Rows rows, int threads, cudaStream_t stream) {
  cudaMemPool_t pool;
  unsigned long long keep = ~0ull;  // or each synchronization would give its memory back
  cudaDeviceGetDefaultMemPool(&pool, 0);
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
  encode<<<blocks(cloud.count, threads), threads, 0, stream>>>(cloud, codes);
  Pool temporary{stream};
  const auto policy = thrust::cuda::par(temporary).on(stream);
  thrust::sequence(policy, order, order + cloud.count);
  thrust::sort_by_key(policy, codes, codes + cloud.count, order);
  Sum* totals = static_cast<Sum*>(sums);
  const auto points = thrust::make_transform_iterator(order, LoadPoint{cloud});
  const auto end =
      thrust::reduce_by_key(policy, codes, codes + cloud.count, points, rows.codes, totals);
  const int found = static_cast<int>(end.first - rows.codes);
  divide<<<blocks(found, threads), threads, 0, stream>>>(totals, found, cloud.columns, rows);
  const int error = static_cast<int>(cudaGetLastError());
  return error ? -error : found;
}
