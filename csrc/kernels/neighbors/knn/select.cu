// SPDX-License-Identifier: Apache-2.0
//
// knn for any k, dtype, norm and number of axes: one block per query, one thread per point. A radix
// select over the bytes of the distances, which are computed anew each time: a query reads its
// cloud once a byte and once to collect.
#include <type_traits>

#include "csrc/kernels/neighbors/knn/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kDigits = 256;  // values of a byte
constexpr int kStaged = 1024;  // neighbors that are sorted in shared memory

template <class C>
using Bits = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;

// The cloud as one query sees it. Distances are not negative, so their bits order like themselves;
// they are computed again in every pass, which needs no scratch and reads what L2 holds.
template <class T>
struct Measured {
  using C = compute_t<T>;
  const KnnArgs& args;
  const T* points;
  const T* q;

  __device__ __forceinline__ bool measure(uint32_t i, Bits<C>& bits) const {
    const T* const p = points + int64_t{i} * args.points.row_stride;
    if (!is_finite_row(p, args.points.columns)) return false;
    bits = bit_cast<Bits<C>>(row_distance(args, p, q));
    return true;
  }
};

// The digit in which a histogram reaches `wanted`; takes what lies below it off `wanted`. All of
// warp 0 calls it. kDigits when the histogram does not reach so far.
__device__ int find_digit(const uint32_t* histogram, uint32_t& wanted) {
  constexpr int kEach = kDigits / 32;
  const int lane = threadIdx.x % 32;
  uint32_t own = 0;
  for (int j = 0; j < kEach; ++j) own += histogram[lane * kEach + j];
  const uint32_t upto = warp_inclusive(own);
  const unsigned reached = __ballot_sync(kFullWarp, upto >= wanted);
  if (reached == 0) return kDigits;
  const int at = __ffs(reached) - 1;
  uint32_t left = wanted - (upto - own);
  int digit = lane * kEach;
  if (lane == at) {
    while (histogram[digit] < left) left -= histogram[digit++];
  }
  wanted = __shfl_sync(kFullWarp, left, at);
  return __shfl_sync(kFullWarp, digit, at);
}

// The bits of the k-th smallest distance, found a byte at a time, and how many neighbors have
// exactly those. False when the cloud has at most k points, all of which are neighbors then.
template <class T>
__device__ bool select_bits(const Measured<T>& cloud, uint32_t count, int64_t k,
                            Bits<compute_t<T>>& bits, uint32_t& equal) {
  using B = Bits<compute_t<T>>;
  __shared__ uint32_t histogram[kDigits];
  __shared__ uint32_t found_digit, found_wanted;
  if (k >= int64_t{count}) return false;
  uint32_t wanted = static_cast<uint32_t>(k);
  B prefix = 0;
  for (int shift = 8 * static_cast<int>(sizeof(B)) - 8; shift >= 0; shift -= 8) {
    histogram[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
      B b;
      if (cloud.measure(i, b) && (b ^ prefix) >> shift < kDigits) {
        atomicAdd(&histogram[b >> shift & (kDigits - 1)], 1u);
      }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const int digit = find_digit(histogram, wanted);
      if (threadIdx.x == 0) {
        found_digit = digit;
        found_wanted = wanted;
      }
    }
    __syncthreads();
    if (found_digit == kDigits) return false;  // too few finite points, seen in the first pass
    prefix |= static_cast<B>(found_digit) << shift;
    wanted = found_wanted;
  }
  bits = prefix;
  equal = wanted;
  return true;
}

// Sorts by (dist2, index). A bitonic network whose every exchange puts the smaller one first sorts
// any number of entries: those that would pad it to a power of two stay where they are.
template <class C>
__device__ void sort_neighbors(C* dist2, int32_t* idx, int64_t count) {
  const auto order = [&](int64_t low, int64_t high) {
    if (high >= count) return;
    const C a = dist2[low], b = dist2[high];
    const int32_t i = idx[low], j = idx[high];
    if (b < a || (b == a && j < i)) {
      dist2[low] = b, dist2[high] = a;
      idx[low] = j, idx[high] = i;
    }
  };
  int64_t padded = 1;
  while (padded < count) padded *= 2;
  for (int64_t run = 2; run <= padded; run *= 2) {
    for (int64_t t = threadIdx.x; t < padded / 2; t += kThreads) {  // mirrored
      const int64_t base = t / (run / 2) * run, at = t % (run / 2);
      order(base + at, base + run - 1 - at);
    }
    __syncthreads();
    for (int64_t half = run / 4; half > 0; half /= 2) {
      for (int64_t t = threadIdx.x; t < padded / 2; t += kThreads) {
        const int64_t low = t / half * 2 * half + t % half;
        order(low, low + half);
      }
      __syncthreads();
    }
  }
}

// Writes the neighbors in any order, those at the k-th distance by their index, and gives how many
// there are. `selected` is what select_bits gave.
template <class T>
__device__ int64_t collect(const Measured<T>& cloud, uint32_t count, int64_t k, bool selected,
                           Bits<compute_t<T>> bits, uint32_t equal, compute_t<T>* dist2,
                           int32_t* idx) {
  using C = compute_t<T>;
  using B = Bits<C>;
  __shared__ uint32_t written;
  __shared__ uint32_t per_warp[kThreads / 32];
  if (threadIdx.x == 0) written = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t equal_begin = selected ? k - equal : k;
  uint32_t seen = 0;  // at the k-th distance
  for (uint32_t base = 0; base < count; base += kThreads) {
    const uint32_t i = base + threadIdx.x;
    B b = 0;
    const bool valid = i < count && cloud.measure(i, b);
    const auto put = [&](int64_t slot) {
      dist2[slot] = bit_cast<C>(b);
      idx[slot] = static_cast<int32_t>(i);
    };
    if (valid && (!selected || b < bits)) put(atomicAdd(&written, 1u));
    if (!selected || seen >= equal) continue;
    const bool tied = valid && b == bits;
    const unsigned ties = __ballot_sync(kFullWarp, tied);
    if (lane == 0) per_warp[warp] = __popc(ties);
    __syncthreads();
    uint32_t at = seen + __popc(ties & lanes_below(lane));
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) at += per_warp[w];
      seen += per_warp[w];
    }
    if (tied && at < equal) put(equal_begin + at);
    __syncthreads();
  }
  __syncthreads();
  return selected ? k : int64_t{written};
}

// Any k, because neighbors lie in their output row until it is sorted.
template <class T>
__global__ void __launch_bounds__(kThreads) select_kernel(const __grid_constant__ KnnArgs args) {
  using C = compute_t<T>;
  __shared__ C staged_dist2[kStaged];
  __shared__ int32_t staged_idx[kStaged];
  for (int64_t row = blockIdx.x; row < args.queries(); row += gridDim.x) {
    const CloudBatch::Place query = args.query.find(row);
    const KnnCloud cloud = query.cloud < 0 ? KnnCloud{} : KnnCloud::of(args, query.cloud);
    const T* const q = static_cast<const T*>(args.query.data) + query.element;
    const Measured<T> measured{args, static_cast<const T*>(args.points.data) + cloud.base, q};
    const uint32_t count =
        cloud.points > 0 && is_finite_row(q, args.points.columns) ? cloud.points : 0;
    Bits<C> bits = 0;
    uint32_t equal = 0;
    const bool selected = select_bits(measured, count, args.k, bits, equal);
    C* const dist2 = static_cast<C*>(args.dist2) + row * args.k;
    int32_t* const idx = args.idx + row * args.k;
    const bool staged = args.k <= kStaged;
    C* const found_dist2 = staged ? staged_dist2 : dist2;
    int32_t* const found_idx = staged ? staged_idx : idx;
    const int64_t found =
        collect(measured, count, args.k, selected, bits, equal, found_dist2, found_idx);
    sort_neighbors(found_dist2, found_idx, found);
    for (int64_t j = threadIdx.x; j < args.k; j += kThreads) {
      if (j < found) {
        write_neighbor(args, row, j, found_dist2[j], static_cast<uint32_t>(found_idx[j]),
                       cloud.index_base);
      } else {
        write_none<C>(args, row, j);
      }
    }
    __syncthreads();  // the next query fills the same shared memory
  }
}

}  // namespace

cudaError_t launch_knn_select(const KnnArgs& args, const CudaContext& context) {
  const unsigned blocks =
      blocks_for(args.queries() * kThreads, kThreads, context.target, /*per_multiprocessor=*/64);
  return with_point_type(args.points.dtype, [&](auto type) {
    return launch_blocks(select_kernel<decltype(type)>, blocks, kThreads, context.stream, args);
  });
}

}  // namespace torchvox
