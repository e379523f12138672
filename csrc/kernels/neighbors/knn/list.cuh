// SPDX-License-Identifier: Apache-2.0
//
// The nearest points so far of a warp's query: keys in ascending order, distributed over the
// registers of its lanes.
#pragma once

#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/neighbors/knn/knn.h"

namespace torchvox {

// Bits of the distance, then the index: keys have the order that the contract gives neighbors. The
// largest key means no neighbor.
using KnnKey = uint64_t;
inline constexpr KnnKey kNoKey = ~KnnKey{0};
inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// The key of a point; its distance is NaN if it does not exist or is not finite.
__device__ __forceinline__ KnnKey knn_key(float dist2, uint32_t point) {
  const uint32_t bits = float_bits(dist2);
  return bits <= kInfinityBits ? KnnKey{bits} << 32 | point : kNoKey;
}

__device__ __forceinline__ KnnKey key_from(KnnKey key, int lane) {
  return __shfl_sync(kFullWarp, static_cast<unsigned long long>(key), lane);
}
__device__ __forceinline__ KnnKey key_across(KnnKey key, int mask) {
  return __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(key), mask);
}

// Sorts the lanes' keys, ascending: bitonic runs of 2, 4, .. 32.
__device__ __forceinline__ KnnKey sorted_keys(KnnKey key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int run = 2; run <= 32; run *= 2) {
#pragma unroll
    for (int step = run / 2; step > 0; step /= 2) {
      const KnnKey other = key_across(key, step);
      const bool wants_less = ((lane & step) == 0) == ((lane & run) == 0 || run == 32);
      key = (other < key) == wants_less ? other : key;
    }
  }
  return key;
}

// 32 * kRun keys; lane l holds those of ranks l * kRun and on. The last k are the list. The keys
// before them are 0, below every key, so that the k-th neighbor is always in the same register.
template <int kRun>
struct KnnList {
  static constexpr int kRoom = 32 * kRun;

  KnnKey key[kRun];
  KnnKey last;  // the k-th key, on every lane: only keys below it can be neighbors

  __device__ __forceinline__ static int rank(int j) {
    return static_cast<int>(threadIdx.x % 32) * kRun + j;
  }
  __device__ __forceinline__ void clear(int k) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) key[j] = rank(j) < kRoom - k ? 0 : kNoKey;
    last = kNoKey;
  }
  // Bits of the distance beyond which no point can be a neighbor.
  __device__ __forceinline__ uint32_t reach() const { return static_cast<uint32_t>(last >> 32); }

  // Adds one candidate of each lane, or kNoKey. Called by the whole warp; `k` as in clear().
  __device__ __forceinline__ void take(KnnKey candidate, int k) {
    unsigned hits = __ballot_sync(kFullWarp, candidate < last);
    if (hits == 0) return;
    if constexpr (kRun == 1) {
      if (__popc(hits) >= kMany) {
        if (k <= kFew) return take_least(candidate);
        merge(sorted_keys(candidate < last ? candidate : kNoKey));
        hits = 0;
      }
    }
    while (hits) {
      insert(key_from(candidate, __ffs(hits) - 1));
      hits &= hits - 1;
    }
    last = key_from(key[kRun - 1], 31);
  }

 private:
  // From so many candidates on, sorting them (or, for lists of up to kFew, taking the least
  // repeatedly) is cheaper than inserting them one by one.
  static constexpr int kMany = 10;
  static constexpr int kFew = 8;

  __device__ __forceinline__ void take_least(KnnKey candidate) {
    while (__any_sync(kFullWarp, candidate < last)) {
      const uint32_t bits = static_cast<uint32_t>(candidate >> 32);
      const uint32_t index = static_cast<uint32_t>(candidate);
      bool least = bits == warp_min(bits);
      if (__popc(__ballot_sync(kFullWarp, least)) > 1) {
        const uint32_t lowest = warp_min(least ? index : kNoCode);
        least = least && index == lowest;
      }
      insert(key_from(candidate, __ffs(__ballot_sync(kFullWarp, least)) - 1));
      if (least) candidate = kNoKey;
      last = key_from(key[kRun - 1], 31);
    }
  }

  // Inserts a key; those above it move up one rank.
  __device__ __forceinline__ void insert(KnnKey added) {
    const KnnKey below =
        __shfl_up_sync(kFullWarp, static_cast<unsigned long long>(key[kRun - 1]), 1);
    const KnnKey first_below = threadIdx.x % 32 == 0 ? 0 : below;
#pragma unroll
    for (int j = kRun - 1; j >= 0; --j) {
      const KnnKey before = j == 0 ? first_below : key[j - 1];
      if (added < key[j]) key[j] = added < before ? before : added;
    }
  }

  // Keeps the 32 smallest of the list and of 32 sorted keys.
  __device__ __forceinline__ void merge(KnnKey other) {
    const KnnKey mirrored = key_across(other, 31);
    KnnKey least = mirrored < key[0] ? mirrored : key[0];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const KnnKey across = key_across(least, step);
      least = (across < least) == ((lane & step) == 0) ? across : least;
    }
    key[0] = least;
  }
};

// Writes the row of a query. Called by the whole warp. Only if clouds overlap, from offsets in
// disorder, can the list contain an index beyond the points of the cloud.
template <int kRun>
__device__ __forceinline__ void write_list(const KnnArgs& args, int64_t row,
                                           const KnnList<kRun>& list, uint32_t points,
                                           int64_t index_base) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    const int64_t rank = KnnList<kRun>::rank(j) - (KnnList<kRun>::kRoom - args.k);
    if (rank < 0) continue;
    const KnnKey key = list.key[j];
    if (static_cast<uint32_t>(key) >= points) {
      write_none<float>(args, row, rank);
    } else {
      write_neighbor(args, row, rank, bit_cast<float>(static_cast<uint32_t>(key >> 32)),
                     static_cast<uint32_t>(key), index_base);
    }
  }
}

}  // namespace torchvox
