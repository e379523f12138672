// SPDX-License-Identifier: Apache-2.0
//
// knn for any k, dtype, norm and number of axes: a radix select over the bytes of the distances,
// which are computed again in each pass.
#include <type_traits>

#include "csrc/kernels/neighbors/knn/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kDigits = 256;  // values of a byte
constexpr int kStaged = 1024;  // most neighbors to sort in shared memory

template <class C>
using Bits = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;

// The distances of one query to its cloud. They are not negative, so their bits have the same
// order; they are computed again in every pass, which needs no scratch memory and reads what is in
// L2.
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

// The digit at which the running sum of a histogram reaches `rank`, from which the sum below that
// digit is subtracted; kDigits if it never does. Called by all of warp 0.
__device__ int find_digit(const uint32_t* histogram, uint32_t& rank) {
  constexpr int kEach = kDigits / 32;
  const int lane = threadIdx.x % 32;
  uint32_t own = 0;
  for (int j = 0; j < kEach; ++j) own += histogram[lane * kEach + j];
  const uint32_t upto = warp_inclusive(own);
  const unsigned reached = __ballot_sync(kFullWarp, upto >= rank);
  if (reached == 0) return kDigits;
  const int at = __ffs(reached) - 1;
  uint32_t left = rank - (upto - own);
  int digit = lane * kEach;
  if (lane == at) {
    while (histogram[digit] < left) left -= histogram[digit++];
  }
  rank = __shfl_sync(kFullWarp, left, at);
  return __shfl_sync(kFullWarp, digit, at);
}

// The bits of the k-th smallest distance, determined byte by byte, and how many neighbors have
// exactly that distance. False if the cloud has at most k points, which are then all neighbors.
template <class T>
__device__ bool select_bits(const Measured<T>& cloud, uint32_t count, int64_t k,
                            Bits<compute_t<T>>& bits, uint32_t& equal) {
  using B = Bits<compute_t<T>>;
  __shared__ uint32_t histogram[kDigits];
  __shared__ uint32_t shared_digit, shared_rank;
  if (k >= int64_t{count}) return false;
  uint32_t rank = static_cast<uint32_t>(k);  // among the points with the prefix, from 1
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
      const int digit = find_digit(histogram, rank);
      if (threadIdx.x == 0) {
        shared_digit = digit;
        shared_rank = rank;
      }
    }
    __syncthreads();
    if (shared_digit == kDigits) return false;  // too few finite points, seen in the first pass
    prefix |= static_cast<B>(shared_digit) << shift;
    rank = shared_rank;
  }
  bits = prefix;
  equal = rank;
  return true;
}

// Sorts by (dist2, index). A bitonic network in which every exchange puts the smaller one first
// sorts any number of entries: those that would pad it to a power of two never move.
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

// Writes the neighbors in any order, those at the k-th distance by index, and returns how many
// there are. `selected` is the result of select_bits().
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
  uint32_t seen = 0;  // points at the k-th distance so far
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

// One block per query: reads its cloud several times, writes its row. Any k is possible, because
// neighbors that do not fit shared memory are sorted in the output row itself.
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
    C* const nearest_dist2 = staged ? staged_dist2 : dist2;
    int32_t* const nearest_idx = staged ? staged_idx : idx;
    const int64_t neighbors =
        collect(measured, count, args.k, selected, bits, equal, nearest_dist2, nearest_idx);
    sort_neighbors(nearest_dist2, nearest_idx, neighbors);
    for (int64_t j = threadIdx.x; j < args.k; j += kThreads) {
      if (j < neighbors) {
        write_neighbor(args, row, j, nearest_dist2[j], static_cast<uint32_t>(nearest_idx[j]),
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
