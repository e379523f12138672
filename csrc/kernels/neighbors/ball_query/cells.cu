// SPDX-License-Identifier: Apache-2.0
//
// Builds the cells of a ball query: count, begin, place.
#include "csrc/kernels/neighbors/ball_query/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// The bucket and the coordinates of a row; false if it is not a finite point.
__device__ __forceinline__ bool find_bucket(const BallQueryArgs& args, const BallGrid& grid,
                                            int64_t row, Point3& p, uint32_t& bucket) {
  const int64_t b = args.points.packed
      ? args.points.packed_owner(row)
      : static_cast<int64_t>(static_cast<uint32_t>(row) / static_cast<uint32_t>(args.points.rows));
  if (b < 0) return false;
  const BallCloud cloud = BallCloud::of(args, b);
  const int64_t i = row - cloud.first;
  if (i >= cloud.points) return false;
  p = load_row(args, args.points.data, cloud.base + i * args.points.row_stride);
  if (is_nan(p.a)) return false;
  bucket = grid.bucket(b, p);
  return true;
}

__device__ __forceinline__ float warp_least(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fminf(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}

// One thread per row: reads its point, counts it in its bucket, writes its rank there and its
// coordinates in index order; the warp writes the box of its points.
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ BallQueryArgs args,
                                                         const __grid_constant__ CellsWork work) {
  let_next_begin();
  const int lane = threadIdx.x % 32;
  const int64_t points = args.points.total_rows();
  for (int64_t row = global_thread(); row - lane < points; row += global_stride()) {
    Point3 p{0, 0, 0};
    uint32_t bucket;
    const bool valid = row < points && find_bucket(args, work.grid, row, p, bucket);
    if (valid) work.rank[row] = atomicAdd(&work.count[bucket], 1u);
    if (row < points) {
      const float nan = __int_as_float(0x7fc00000);
      work.in_order[row] =
          valid ? float4{p.a, p.b, p.c, __uint_as_float(bucket)} : float4{nan, nan, nan, nan};
    }
    const float none = __int_as_float(0x7f800000);
    const float4 low{warp_least(valid ? p.a : none), warp_least(valid ? p.b : none),
                     warp_least(valid ? p.c : none), 0.0f};
    const float4 high{-warp_least(valid ? -p.a : none), -warp_least(valid ? -p.b : none),
                      -warp_least(valid ? -p.c : none), 0.0f};
    if (lane < 2) work.box[row / 32 * 2 + lane] = lane == 0 ? low : high;
  }
}

// One block per chunk of buckets, eight per thread: reads their counts, writes where each bucket
// begins. Chunks are placed in any order, as blocks reserve room.
__global__ void __launch_bounds__(kThreads) begin_kernel(const __grid_constant__ CellsWork work) {
  constexpr int kEach = kBuckets / kThreads;
  __shared__ uint32_t sums[32], base;
  let_next_begin();
  wait_for_previous();
  const uint32_t first = blockIdx.x * kBuckets + threadIdx.x * kEach;
  uint32_t count[kEach], sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; j += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(&work.count[first + j]);
    count[j] = four.x, count[j + 1] = four.y, count[j + 2] = four.z, count[j + 3] = four.w;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) sum += count[j];
  uint32_t total;
  const uint32_t before = block_prefix(sum, sums, &total);
  if (threadIdx.x == 0) base = total > 0 ? atomicAdd(work.cursor, total) : 0;
  __syncthreads();
  uint32_t place = base + before;
  uint32_t* begin = &work.begin[first + blockIdx.x];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    begin[j] = place;
    place += count[j];
  }
  if (threadIdx.x == kThreads - 1) begin[kEach] = place;
}

// One thread per row: reads its point and bucket, writes the point to its place in the bucket.
__global__ void __launch_bounds__(kThreads)
    place_kernel(int64_t points, const __grid_constant__ CellsWork work) {
  let_next_begin();
  wait_for_previous();
  for (int64_t row = global_thread(); row < points; row += global_stride()) {
    float4 p = work.in_order[row];
    if (is_nan(p.x)) continue;
    const uint32_t bucket = __float_as_uint(p.w);
    p.w = __int_as_float(static_cast<int>(row));
    work.point[work.begin[CellsWork::slot(bucket)] + work.rank[row]] = p;
  }
}

}  // namespace

cudaError_t make_ball_cells(const BallQueryArgs& args, const CellsWork& work,
                            const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.cursor, 0, work.cleared, context.stream));
  const unsigned blocks = blocks_for(args.points.total_rows(), kThreads, context.target);
  TORCHVOX_CUDA_CHECK(launch_blocks(count_kernel, blocks, kThreads, context.stream, args, work));
  const unsigned chunks = 1u << (work.grid.bits - kBucketBits);
  TORCHVOX_CUDA_CHECK(launch_after(begin_kernel, chunks, kThreads, context, work));
  return launch_after(place_kernel, blocks, kThreads, context, args.points.total_rows(), work);
}

}  // namespace torchvox
