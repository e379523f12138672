// SPDX-License-Identifier: Apache-2.0
//
// What only Hopper GPUs have (PTX for sm_90a): barriers that count copies, copies in one piece to
// the blocks of a cluster, and matrix products of a warpgroup (wgmma).
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "csrc/kernels/core/arith.h"

namespace torchvox {

// A barrier in shared memory (mbarrier). Phase 0, 1, 2 .. ends when all have arrived and all bytes
// that were announced have come.
struct Barrier {
  unsigned at;

  __device__ __forceinline__ void start(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
  }
  __device__ __forceinline__ void expect(int bytes) const {  // and arrives
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
  }
  // Arrives when the copies that this thread has started are over.
  __device__ __forceinline__ void arrive_after_copies() const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
  }
  // The address of this barrier of a block of the cluster.
  __device__ __forceinline__ unsigned in_block(int block) const {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    return there;
  }
  __device__ __forceinline__ void wait(unsigned phase) const {
    unsigned over;
    do {
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
          "selp.u32 %0, 1, 0, p;}"
          : "=r"(over)
          : "r"(at), "r"(phase & 1)
          : "memory");
    } while (!over);
  }
};

// Arrives at a barrier of any block of the cluster.
__device__ __forceinline__ void arrive_in_cluster(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Copies bytes to the same place of each block of the cluster; their barriers count them.
template <int kCluster>
__device__ __forceinline__ void copy_to_cluster(unsigned to, const void* from, int bytes,
                                                Barrier full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(full.at), "h"(static_cast<uint16_t>((1 << kCluster) - 1))
      : "memory");
}
__device__ __forceinline__ void fence_barriers() {  // those that this thread has started
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void meet_cluster() {
  __syncthreads();
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// What this thread, or those it has waited for, did to shared memory comes before what the tensor
// cores and copies in one piece do to it.
__device__ __forceinline__ void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A matrix of lines of kWidth halves in shared memory, as wgmma takes it: swizzled, eight lines
// after another. kNext: bytes from there to the next kWidth of each line, for a transposed matrix.
template <int kWidth, int kNext = 16>
__device__ __forceinline__ uint64_t matrix(unsigned at) {
  constexpr uint64_t kSwizzle = kWidth == 64 ? 1 : kWidth == 32 ? 2 : 3;
  return (at >> 4 & 0x3fff) | uint64_t{kNext / 16} << 16 | uint64_t{kWidth} << 32 | kSwizzle << 62;
}

#define D4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define D32(j) D4(j), D4(j + 1), D4(j + 2), D4(j + 3), D4(j + 4), D4(j + 5), D4(j + 6), D4(j + 7)
#define N16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define N32 N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define N64                                                                                     \
  N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
      "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define N128                                                                                    \
  N64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
      "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "   \
      "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "    \
      "%126, %127"
#define WGMMA(columns, type, lies, sums, a, b, ...)                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" sums \
               "}, %" #a ", %" #b ", 1, 1, 1, " lies ";"                                       \
               : __VA_ARGS__                                                                   \
               : "l"(rows), "l"(weights))
#define MULTIPLY(type, lies)                                                                 \
  if constexpr (kCols == 32) WGMMA(32, type, lies, N16, 16, 17, D4(0), D4(1), D4(2), D4(3)); \
  if constexpr (kCols == 64) WGMMA(64, type, lies, N32, 32, 33, D32(0));                     \
  if constexpr (kCols == 128) WGMMA(128, type, lies, N64, 64, 65, D32(0), D32(8));           \
  if constexpr (kCols == 256)                                                                \
  WGMMA(256, type, lies, N128, 128, 129, D32(0), D32(8), D32(16), D32(24))

// d += rows * weights, 16 input channels. Sum [j][2 * h + i] of lane 4 * g + t of a warp is that of
// row g + 8 * h of its 16 and column 8 * j + 2 * t + i. kTransposed: lines of both matrices are
// input channels.
template <class T, int kCols, bool kTransposed = false>
__device__ __forceinline__ void multiply(float (&d)[kCols / 8][4], uint64_t rows,
                                         uint64_t weights) {
  if constexpr (std::is_same_v<T, Half> && kTransposed) {
    MULTIPLY("f16", "1, 1");
  } else if constexpr (std::is_same_v<T, Half>) {
    MULTIPLY("f16", "0, 0");
  } else if constexpr (kTransposed) {
    MULTIPLY("bf16", "1, 1");
  } else {
    MULTIPLY("bf16", "0, 0");
  }
}
#undef MULTIPLY
#undef WGMMA
#undef D4
#undef D32
#undef N16
#undef N32
#undef N64
#undef N128

// Around products of a warpgroup, which are over when kLater groups of them are still running.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kLater>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLater) : "memory");
}

}  // namespace torchvox
