// SPDX-License-Identifier: Apache-2.0
//
// pillar_moments on the GPU: means, moments, then the tree of tree_sum.cuh.
#include "csrc/kernels/core/tree_sum.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/pillars/moments.h"
#include "csrc/kernels/pillars/prepare.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 320;  // ten patches of 32 runs: the usual ten columns
constexpr int kBlockPoints = 1024;  // two levels of the tree
constexpr int kMostShared = 64 << 10;  // bytes that a block of sm_75 may have
constexpr int kPatch = 3;  // a thread sums patches of 3 x 3 entries

struct MomentsWork {
  PillarListWork list_work;
  void* means;  // [rows, 3] of the calculation's type
  unsigned long long* pillars;  // number of rows with a cell
  TreeLevels tree;

  MomentsWork(const PillarMomentsArgs& args, Workspace& workspace)
      : list_work(args.map, workspace),
        means(workspace.take<double>(3 * args.map.rows.rows)),
        pillars(workspace.take<unsigned long long>(1)),
        tree(ceil_div<int64_t>(args.map.count, kBlockPoints), args.entries(), workspace) {}
};

// One warp per row: the mean of its points, of which 32 are fetched at once. Lane l adds up the
// coordinate l % 3 of all of them. Also counts the rows with a cell in `pillars`, which launch()
// clears.
template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    means_kernel(PillarMap map, PillarLists lists, Real* means, unsigned long long* pillars) {
  __shared__ Real staged[kThreads / 32][32][3];
  let_next_begin();
  wait_for_previous();
  const int lane = threadIdx.x % 32, axis = lane % 3;
  Real(*at)[3] = staged[threadIdx.x / 32];
  unsigned counted = 0;
  for (int64_t row = global_thread() / 32; row < map.rows.rows; row += global_stride() / 32) {
    if (map.rows.cell(row) < 0) continue;
    ++counted;
    const int64_t n = map.stored(row), begin = lists.begin(row);
    CascadeSum<Real> sum;
    for (int64_t slot = 0; slot < n; slot += 32) {
      __syncwarp();
      if (slot + lane < n) {
        const int64_t point = lists.at(map, begin, slot + lane);
        for (int a = 0; a < 3; ++a) at[lane][a] = map.value<T, Real>(point, a);
      }
      __syncwarp();
      const int here = n - slot < 32 ? static_cast<int>(n - slot) : 32;
      Real part = 0;
      for (int s = 0; s < here; ++s) part += at[s][axis];
      sum.add_part(part, here == 32);
    }
    if (lane < 3) means[3 * row + lane] = n > 0 ? sum.total() / static_cast<Real>(n) : Real(0);
  }
  if (lane == 0 && counted > 0) atomicAdd(pillars, static_cast<unsigned long long>(counted));
}

// How many of a block's points are in shared memory at a time, in runs of 32: all where they fit
// into kMostShared.
struct MomentsTile {
  int points = kBlockPoints, shared_bytes = 0;

  MomentsTile(const PillarMomentsArgs& args, int real_bytes) {
    for (;; points /= 2) {
      shared_bytes = static_cast<int>((1 + points / 32) * args.entries() * 8 +
                                      points * args.size() * real_bytes);
      if (shared_bytes <= kMostShared || points == 32) return;
    }
  }
};

// Writes g of one point, zeros for a point in no pillar.
template <class T, class Real>
__device__ __forceinline__ void decorate(const PillarMomentsArgs& args, int64_t point,
                                         const Real* means, Real* g) {
  const PillarMap& map = args.map;
  const int size = static_cast<int>(args.size());
  const int64_t row = point < map.count ? map.row_of(point) : -1;
  g[0] = row >= 0 ? Real(1) : Real(0);
  PillarFrame<Real> frame;
  if (row >= 0) {
    frame.place(map, row);
    for (int axis = 0; axis < 3; ++axis) frame.mean[axis] = means[3 * row + axis];
  }
  for (int c = 1; c < size; ++c) {
    g[c] = row >= 0 ? decorated<T>(map, frame, point, c - 1) : Real(0);
  }
}

// Patches on and above the diagonal of a triangle of `size` rows.
__device__ __forceinline__ int patches(int size) {
  const int side = (size + kPatch - 1) / kPatch;
  return side * (side + 1) / 2;
}

// One thread sums the products of one patch over the 32 points of a run, one after another. `rows`
// [32, size] are their g, `sums` [entries] those of the run.
template <class Real>
__device__ __forceinline__ void sum_patch(int size, int patch, const Real* rows, double* sums) {
  const int side = (size + kPatch - 1) / kPatch;
  int i = 0;  // the patch is that of (i, i + patch)
  while (patch >= side - i) patch -= side - i, ++i;
  const int i0 = kPatch * i, j0 = kPatch * (i + patch);
  double sum[kPatch][kPatch] = {};
#pragma unroll 4
  for (int p = 0; p < 32; ++p) {
    const Real* g = rows + p * size;
    Real a[kPatch], b[kPatch];
#pragma unroll
    for (int k = 0; k < kPatch; ++k) a[k] = g[i0 + k < size ? i0 + k : 0];
#pragma unroll
    for (int k = 0; k < kPatch; ++k) b[k] = g[j0 + k < size ? j0 + k : 0];
#pragma unroll
    for (int r = 0; r < kPatch; ++r) {
#pragma unroll
      for (int c = 0; c < kPatch; ++c) sum[r][c] = plus_product(sum[r][c], a[r], b[c]);
    }
  }
#pragma unroll
  for (int r = 0; r < kPatch; ++r) {
#pragma unroll
    for (int c = 0; c < kPatch; ++c) {
      const int x = i0 + r, y = j0 + c;
      if (y >= x && y < size) sums[x * size - x * (x - 1) / 2 + y - x] = sum[r][c];
    }
  }
}

// One block per 1,024 points, in runs of 32: threads decorate points into shared memory, then sum
// patches of the triangle of one run, then entries over the runs in their order. The block writes
// its sums to one row of `sums` [blocks, entries].
template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    moments_kernel(PillarMomentsArgs args, int tile, const Real* means, double* sums) {
  extern __shared__ double shared[];
  const PillarMap& map = args.map;
  const int size = static_cast<int>(args.size()), entries = static_cast<int>(args.entries());
  double* total = shared;  // [entries]
  double* run_sums = total + entries;  // [tile / 32, entries]
  Real* rows = reinterpret_cast<Real*>(run_sums + tile / 32 * entries);  // [tile, size]
  for (int e = threadIdx.x; e < entries; e += kThreads) total[e] = 0;
  wait_for_previous();
  const int64_t begin = int64_t{blockIdx.x} * kBlockPoints;
  for (int64_t base = begin; base < begin + kBlockPoints && base < map.count; base += tile) {
    for (int i = threadIdx.x; i < tile; i += kThreads) {
      decorate<T>(args, base + i, means, rows + i * size);
    }
    __syncthreads();
    for (int item = threadIdx.x; item < tile / 32 * patches(size); item += kThreads) {
      const int run = item / patches(size);
      sum_patch(size, item % patches(size), rows + 32 * run * size, run_sums + run * entries);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < entries; e += kThreads) {
      for (int run = 0; run < tile / 32; ++run) total[e] += run_sums[run * entries + e];
    }
  }
  for (int e = threadIdx.x; e < entries; e += kThreads) {
    sums[int64_t{blockIdx.x} * entries + e] = total[e];
  }
}

// One thread per entry of the moments: adds up the last level of the tree, `sums` [rows, entries].
// The count of points becomes that of all slots where empty ones count.
__global__ void __launch_bounds__(kThreads)
    total_kernel(PillarMomentsArgs args, const double* sums, int64_t rows,
                 const unsigned long long* pillars) {
  wait_for_previous();
  for (int64_t e = global_thread(); e < args.entries(); e += global_stride()) {
    double value = quiet(tree_total(sums, rows, args.entries(), e));
    if (e == 0 && args.map.padded && args.map.max_points >= 0) {
      value = static_cast<double>(*pillars) * static_cast<double>(args.map.max_points);
    }
    args.moments[e] = value;
  }
}

template <class T, class Real>
cudaError_t launch_typed(const PillarMomentsArgs& args, const MomentsWork& work,
                         const CudaContext& context) {
  const PillarMap& map = args.map;
  const PillarLists& lists = work.list_work.lists;
  Real* means = static_cast<Real*>(work.means);
  TORCHVOX_CUDA_CHECK(launch_items_after(means_kernel<T, Real>, 32 * map.rows.rows, kThreads,
                                         context, map, lists, means, work.pillars));
  const int64_t blocks = ceil_div<int64_t>(map.count, kBlockPoints);
  if (blocks > 0) {
    const MomentsTile tile(args, sizeof(Real));
    if (tile.shared_bytes > 48 << 10) {
      TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(
          moments_kernel<T, Real>, cudaFuncAttributeMaxDynamicSharedMemorySize, tile.shared_bytes));
    }
    TORCHVOX_CUDA_CHECK(launch_after_sharing(moments_kernel<T, Real>,
                                             dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                                             static_cast<size_t>(tile.shared_bytes), context, args,
                                             tile.points, means, work.tree.first()));
  }
  TORCHVOX_CUDA_CHECK(work.tree.launch(context));
  return launch_items_after(total_kernel, args.entries(), kThreads, context, args, work.tree.last(),
                            work.tree.last_rows(), work.pillars);
}

}  // namespace

int64_t workspace_bytes_cuda(const PillarMomentsArgs& args, const Target&) {
  return carved_bytes<MomentsWork>(args);
}

cudaError_t launch(const PillarMomentsArgs& args, void* memory, const CudaContext& context) {
  const auto work = carve<MomentsWork>(memory, args);
  TORCHVOX_CUDA_CHECK(work.list_work.begin(args.map, context));
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.pillars, 0, sizeof(*work.pillars), context.stream));
  TORCHVOX_CUDA_CHECK(launch_enter_points(args.map, work.list_work.lists, nullptr, 0, context));
  return with_pillar_types(args.map.dtype, false, [&](auto type, auto real) {
    return launch_typed<decltype(type), decltype(real)>(args, work, context);
  });
}

}  // namespace torchvox
