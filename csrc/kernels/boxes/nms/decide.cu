// SPDX-License-Identifier: Apache-2.0
//
// The greedy choice. One block per segment; each warp owns four consecutive tiles, each lane two
// neighboring boxes of each tile. Tile after tile is decided by its warp; then all warps drop those
// of their later boxes that kept boxes of the tile suppress, beginning with the next tile, so that
// its warp can decide while the others go on. A lane fetches the words of its boxes that are still
// alive a few tiles ahead. The time of a step is that of its instructions: 3 per box and about 30
// per warp.
#include "csrc/kernels/boxes/nms/scratch.cuh"

namespace torchvox {
namespace {

constexpr int kTilesPerWarp = 4;
constexpr int kMostWarps = kNmsChunkTiles / kTilesPerWarp;
constexpr int kMostThreads = 32 * kMostWarps;
constexpr int kFarAhead = 4, kNearAhead = 1;  // tiles to fetch ahead, as shared memory allows

// 16 bytes to shared memory, without waiting where the device can.
__device__ __forceinline__ void fetch(ulonglong2* to, const uint64_t* from) {
#if __CUDA_ARCH__ >= 800
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#else
  *to = *reinterpret_cast<const ulonglong2*>(from);
#endif
}
// Ends a group of fetches of this thread.
__device__ __forceinline__ void end_fetches() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all groups of this thread but the last kLeft.
template <int kLeft>
__device__ __forceinline__ void wait_for_fetches() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

__device__ __forceinline__ uint64_t load_shared(uint32_t address) {
  uint64_t value;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
  return value;
}

// The two boxes of a lane in one of its tiles.
struct LaneBoxes {
  bool alive[2];
  uint64_t by[2];  // boxes of the same tile that suppress them
};

// One bit per box of the tile, in the places of bit_of().
__device__ __forceinline__ uint64_t ballot_tile(bool even, bool odd) {
  return __ballot_sync(~0u, even) | uint64_t{__ballot_sync(~0u, odd)} << 32;
}

// The kept boxes of a tile. Each round settles at least one more box, in order; two rounds usually
// settle all.
__device__ __forceinline__ uint64_t decide_tile(const LaneBoxes& boxes) {
  uint64_t kept = ballot_tile(boxes.alive[0], boxes.alive[1]), before = ~kept;
  while (kept != before) {
    before = kept;
    kept = ballot_tile(boxes.alive[0] && !(boxes.by[0] & before),
                       boxes.alive[1] && !(boxes.by[1] & before));
  }
  return kept;
}

// The number of kept boxes of the tile before box 2 * lane + half.
__device__ __forceinline__ int kept_before(uint64_t kept, int lane, int half) {
  const uint32_t even = static_cast<uint32_t>(kept), odd = static_cast<uint32_t>(kept >> 32);
  const uint32_t below = (1u << lane) - 1;
  return __popc(even & below) + __popc(odd & below) +
      (half ? static_cast<int>(even >> lane & 1) : 0);
}

template <int kAhead>
class Decision {
 public:
  __device__ Decision(const NmsArgs& args, const NmsScratch& scratch, const NmsChunk& chunk,
                      int64_t segment, uint64_t* kept_words, ulonglong2* fetched)
      : args_(args),
        scratch_(scratch),
        chunk_(chunk),
        segment_(segment),
        kept_words_(kept_words),
        fetched_(fetched + threadIdx.x),
        first_tile_(static_cast<int>(threadIdx.x) / 32 * kTilesPerWarp),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    const int64_t left = args.count(segment) - chunk.begin;
    const int64_t tiles = ceil_div<int64_t>(left > 0 ? left : 0, kNmsTile);
    tiles_ = static_cast<int>(tiles < scratch.tiles ? tiles : scratch.tiles);
    words_ = scratch.row(segment, 0) + first_tile_ * kNmsTile + 2 * lane_;
    row_words_ = scratch.tiles * kNmsTile;
  }

  // Decides the chunk's boxes; returns how many are kept, including `total` of earlier chunks.
  __device__ int64_t run(int64_t total) {
    load_own();
    next_ = words_;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) fetch_words(k, k);
    room_ = static_cast<int>(args_.most - total);  // below 2^31
    uint32_t kept_at = static_cast<uint32_t>(__cvta_generic_to_shared(kept_words_));
    asm volatile("" : "+r"(kept_at));  // keeps the compiler from computing the address every time
    if (first_tile_ == 0 && tiles_ > 0) decide(0, 0);
    for (int first = 0; first < tiles_ && room_ > 0; first += kTilesPerWarp) {
      step<0>(first, kept_at);
      step<1>(first, kept_at);
      step<2>(first, kept_at);
      step<3>(first, kept_at);
      kept_at += kTilesPerWarp * sizeof(uint64_t);
    }
    return args_.most - room_;
  }

  // Writes the kept boxes, after run(); `total` is the number kept of earlier chunks.
  __device__ void write(int64_t total) const {
    for (int tile = 0; tile < tiles_ && total < args_.most; ++tile) {
      const uint64_t kept = kept_words_[tile];
      if (tile >= first_tile_ && tile < first_tile_ + kTilesPerWarp) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!(kept >> (lane_ + 32 * half) & 1)) continue;
          const int64_t at = segment_ * args_.most + total + kept_before(kept, lane_, half);
          const int64_t position = chunk_.begin + tile * kNmsTile + 2 * lane_ + half;
          args_.kept[at] = static_cast<int32_t>(args_.box_at(segment_, position));
          if (args_.capacity > kNmsChunk) scratch_.kept[at] = static_cast<int32_t>(position);
        }
      }
      total += __popcll(kept);
    }
  }

 private:
  __device__ __forceinline__ void load_own() {
#pragma unroll
    for (int slot = 0; slot < kTilesPerWarp; ++slot) {
      const int tile = first_tile_ + slot;
      LaneBoxes& boxes = boxes_[slot];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int box = 2 * lane_ + half;
        boxes.alive[half] = false;
        boxes.by[half] = 0;
        if (tile >= tiles_) continue;
        const uint64_t own = uint64_t{1} << bit_of(box);
        const uint64_t word = words_[tile * row_words_ + slot * kNmsTile + half];
        const uint64_t dead =
            chunk_.begin > 0 ? scratch_.dead[segment_ * scratch_.tiles + tile] : 0;
        const bool exists = chunk_.begin + tile * kNmsTile + box < args_.count(segment_);
        boxes.alive[half] = exists && !(word & own) && !(dead >> box & 1);
        boxes.by[half] = word;
      }
    }
  }

  // After tile first + k is decided: applies its kept boxes, and decides the next tile.
  template <int k>
  __device__ __forceinline__ void step(int first, uint32_t kept_at) {
    const int tile = first + k;
    if (tile >= tiles_ || room_ <= 0) return;  // all threads alike
    __syncthreads();
    const uint64_t kept = load_shared(kept_at + k * sizeof(uint64_t));
    room_ -= __popcll(kept);
    wait_for_fetches<kAhead - 1>();
    constexpr int kNext = (k + 1) % kTilesPerWarp, kPlace = k % kAhead;
    const int of_next = first + (k + 1) / kTilesPerWarp * kTilesPerWarp;  // first of its warp
    if (first_tile_ == of_next) {
      apply(kNext, kPlace, kept);
      if (tile + 1 < tiles_ && room_ > 0) decide(kNext, tile + 1);
#pragma unroll
      for (int slot = kNext + 1; slot < kTilesPerWarp; ++slot) apply(slot, kPlace, kept);
    } else if (first_tile_ > of_next) {
#pragma unroll
      for (int slot = 0; slot < kTilesPerWarp; ++slot) apply(slot, kPlace, kept);
    }
    fetch_words(kPlace, tile + kAhead);
  }

  // Needs no test for boxes that are not alive, whose words may be anything.
  __device__ __forceinline__ void apply(int slot, int place, uint64_t kept) {
    LaneBoxes& boxes = boxes_[slot];
    const ulonglong2 by = *fetched(slot, place);
    boxes.alive[0] = boxes.alive[0] && !(by.x & kept);
    boxes.alive[1] = boxes.alive[1] && !(by.y & kept);
  }

  // Starts to fetch the words of tile `row`, the next one, for this lane's boxes.
  __device__ __forceinline__ void fetch_words(int place, int row) {
#pragma unroll
    for (int slot = 0; slot < kTilesPerWarp; ++slot) {
      const LaneBoxes& boxes = boxes_[slot];
      if (first_tile_ + slot > row && (boxes.alive[0] || boxes.alive[1])) {
        fetch(fetched(slot, place), next_ + slot * kNmsTile);
      }
    }
    next_ += row_words_;
    end_fetches();
  }
  __device__ __forceinline__ ulonglong2* fetched(int slot, int place) const {
    return fetched_ + (place * kTilesPerWarp + slot) * kMostThreads;
  }

  // Decides one tile. It waits for no memory, since all later tiles wait for it.
  __device__ __forceinline__ void decide(int slot, int tile) {
    LaneBoxes& boxes = boxes_[slot];
    uint64_t kept = decide_tile(boxes);
    boxes.alive[0] = boxes.alive[1] = false;
    if (__popcll(kept) > room_) {
      kept = ballot_tile((kept >> lane_ & 1) && kept_before(kept, lane_, 0) < room_,
                         (kept >> (lane_ + 32) & 1) && kept_before(kept, lane_, 1) < room_);
    }
    if (lane_ == 0) kept_words_[tile] = kept;
  }

  const NmsArgs& args_;
  const NmsScratch& scratch_;
  const NmsChunk& chunk_;
  const int64_t segment_;
  uint64_t* const kept_words_;
  ulonglong2* const fetched_;  // of this thread
  const int first_tile_, lane_;
  int tiles_, room_ = 0;
  const uint64_t* words_;  // of this thread, in row 0
  const uint64_t* next_;  // in the row that is fetched next
  int64_t row_words_;
  LaneBoxes boxes_[kTilesPerWarp];
};

// One block per segment: reads the words of mask_kernel for one chunk, writes the kept boxes and
// their number; after the last chunk also the -1 behind them.
template <int kAhead>
__global__ void __launch_bounds__(kMostThreads)
    decide_kernel(const __grid_constant__ NmsArgs args, const __grid_constant__ NmsScratch scratch,
                  const __grid_constant__ NmsChunk chunk) {
  extern __shared__ ulonglong2 fetched[];  // [kAhead, kTilesPerWarp, kMostThreads]
  __shared__ uint64_t kept_words[kNmsChunkTiles];
  let_next_begin();
  wait_for_previous();
  const int64_t segment = blockIdx.x;
  const int64_t before = chunk.begin == 0 ? 0 : args.kept_counts[segment];
  int64_t total = before;
  if (before < args.most) {
    Decision<kAhead> decision(args, scratch, chunk, segment, kept_words, fetched);
    total = decision.run(before);
    decision.write(before);
  }
  __syncthreads();
  if (threadIdx.x == 0) args.kept_counts[segment] = static_cast<int32_t>(total);
  if (chunk.begin + kNmsChunk < args.capacity) {
    for (int t = threadIdx.x; t < scratch.tiles; t += blockDim.x) {
      scratch.dead[segment * scratch.tiles + t] = 0;
    }
    return;
  }
  for (int64_t k = total + threadIdx.x; k < args.most; k += blockDim.x) {
    args.kept[segment * args.most + k] = -1;
  }
}

template <int kAhead>
constexpr int fetched_bytes() {
  return kAhead * kTilesPerWarp * kMostThreads * static_cast<int>(sizeof(ulonglong2));
}

template <int kAhead>
cudaError_t launch_ahead(const NmsArgs& args, const NmsScratch& scratch, const NmsChunk& chunk,
                         const CudaContext& context) {
  constexpr int kBytes = fetched_bytes<kAhead>();
  TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(decide_kernel<kAhead>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int64_t warps = ceil_div<int64_t>(scratch.tiles, kTilesPerWarp);
  return launch_after_sharing(decide_kernel<kAhead>, dim3(static_cast<unsigned>(args.segments)),
                              dim3(32 * static_cast<unsigned>(warps > 0 ? warps : 1)), kBytes,
                              context, args, scratch, chunk);
}

}  // namespace

cudaError_t launch_nms_decide(const NmsArgs& args, const NmsScratch& scratch, const NmsChunk& chunk,
                              const CudaContext& context) {
  constexpr int kFixed = kNmsChunkTiles * static_cast<int>(sizeof(uint64_t));
  return context.target.shared_bytes >= fetched_bytes<kFarAhead>() + kFixed
      ? launch_ahead<kFarAhead>(args, scratch, chunk, context)
      : launch_ahead<kNearAhead>(args, scratch, chunk, context);
}

}  // namespace torchvox
