// SPDX-License-Identifier: Apache-2.0
//
// serialize on the GPU. The lists of all curves are sorted in the same launches, by 8 bits a pass.
// An item is one word, the row below as many bits of its code as have room; a pass that would run
// out of them reads codes anew.
//
// Where a block can have a tile of its own, one cooperative launch does it all: tiles publish how
// many items of each digit they have, and add up those of earlier ones behind a barrier. Else a
// kernel a pass reads and writes its items once: tiles look back at what earlier ones publish
// (Adinets and Merrill, "Onesweep", 2022).
#include "csrc/kernels/cells/serialize.h"
#include "csrc/kernels/core/grid_barrier.cuh"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/spatial/radix_sort.h"
#include "csrc/kernels/spatial/scan.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kItems = 8, kTile = kThreads * kItems;  // of a thread, of a block
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;

struct SerialSort {
  int64_t tiles;  // of a list
  int row_bits, passes;
  GridBarrier* barriers;  // [passes, 2]
  uint32_t* tickets;  // [passes]
  uint32_t* counts;  // [passes, curves, kDigits] items of each digit, less one
  uint64_t* status[2];  // [curves, tiles, kDigits], of even and of odd passes
  uint64_t* words[2];  // [curves, rows]

  SerialSort(const SerializeArgs& args, Workspace& workspace)
      : tiles(ceil_div<int64_t>(args.cells.rows, kTile)),
        row_bits(key_bits(args.cells.rows)),
        passes(ceil_div(args.sort_bits(), kDigitBits)),
        barriers(workspace.take<GridBarrier>(2 * passes)),
        tickets(workspace.take<uint32_t>(passes)),
        counts(workspace.take<uint32_t>(passes * args.num_curves * kDigits)) {
    for (auto& each : status) each = workspace.take<uint64_t>(args.num_curves * tiles * kDigits);
    for (auto& each : words) each = workspace.take<uint64_t>(args.num_curves * args.cells.rows);
  }
};

struct Pass {
  int number = 0, known = 0;  // known: the bits of a code below this one that words hold
  bool reads_codes = false, last = false;

  // A pass needs its digit, and one that counts ahead the next one too.
  __host__ __device__ void begin(const SerializeArgs& args, const SerialSort& sort, int digits) {
    const int begin = number * kDigitBits, needed = begin + digits * kDigitBits;
    reads_codes = known < (needed < args.sort_bits() ? needed : args.sort_bits());
    if (reads_codes) known = begin + kDigitBits + 64 - sort.row_bits;
    last = number + 1 == sort.passes;
  }
};

__global__ void __launch_bounds__(kThreads) code_kernel(const __grid_constant__ SerializeArgs args,
                                                        const __grid_constant__ SerialSort sort) {
  __shared__ uint32_t counts[kMostCurves * kDigits];  // of the first digit
  for (int i = threadIdx.x; i < kMostCurves * kDigits; i += kThreads) counts[i] = 0;
  __syncthreads();
  for (int64_t i = global_thread(); i < args.cells.rows; i += global_stride()) {
    const SerializeArgs::Row row = args.load(i);
    for (int k = 0; k < args.num_curves; ++k) {
      const int64_t code = args.code(row, args.curves[k]);
      args.codes[k * args.cells.rows + i] = code;
      atomicAdd(&counts[k * kDigits + static_cast<uint64_t>(code) % kDigits], 1u);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < args.num_curves * kDigits; i += kThreads) {
    if (counts[i] > 0) atomicAdd(&sort.counts[i], counts[i]);
  }
}

struct PassShared {
  uint64_t words[kTile];  // in the order of their digits
  uint8_t digits[kTile];
  uint16_t before[kWarps][kDigits];  // items of a warp by their digits, then of earlier warps
  uint32_t begin[kDigits];  // of a digit in the tile
  uint32_t place[kDigits];  // and in the list, less `begin`
  uint32_t next[kDigits];  // items by their next digits
  uint64_t sums[32];
};

// The items of a tile, a thread some of them: neighboring lanes neighboring items, so that ranks
// follow the order of the items.
struct Items {
  // What is left of the codes, the digit of the pass lowest. Past the end of the list all bits are
  // set: such items come last in their tile, which is the last one.
  uint64_t digits[kItems];
  uint32_t row[kItems], rank[kItems];

  static __device__ int64_t place(int64_t begin, int k) {
    return begin + (threadIdx.x / 32 * kItems + k) * 32 + threadIdx.x % 32;
  }
  // words: null before the first pass.
  __device__ __forceinline__ void load(const SerialSort& sort, const uint64_t* words, int64_t begin,
                                       int64_t rows) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int64_t i = place(begin, k);
      digits[k] = ~uint64_t{0};
      row[k] = static_cast<uint32_t>(i);
      if (i >= rows || words == nullptr) continue;
      row[k] = static_cast<uint32_t>(words[i] & ((uint64_t{1} << sort.row_bits) - 1));
      digits[k] = words[i] >> sort.row_bits;
    }
  }
  __device__ __forceinline__ void load_codes(const int64_t* codes, const Pass& pass, int64_t begin,
                                             int64_t rows) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (place(begin, k) >= rows) continue;
      digits[k] = static_cast<uint64_t>(codes[row[k]]) >> (pass.number * kDigitBits);
    }
  }

  // Ranks items among those of their digit in the warp. Returns how many of digit `thread` the
  // block has, and leaves in `before` those in earlier warps.
  __device__ __forceinline__ uint32_t count(PassShared& shared) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const uint32_t digit = digits[k] % kDigits;
      unsigned same = kFullWarp;
#pragma unroll
      for (int bit = 0; bit < kDigitBits; ++bit) {
        const bool set = digit >> bit & 1;
        const unsigned votes = __ballot_sync(kFullWarp, set);
        same &= set ? votes : ~votes;
      }
      const int below = __popc(same & lanes_below(lane));
      const uint32_t earlier = shared.before[warp][digit];
      __syncwarp();
      if (below == 0) shared.before[warp][digit] = static_cast<uint16_t>(earlier + __popc(same));
      __syncwarp();
      rank[k] = earlier + below;
    }
    __syncthreads();
    uint32_t count = 0;
    if (thread < kDigits) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const uint32_t items = shared.before[w][thread];
        shared.before[w][thread] = static_cast<uint16_t>(count);
        count += items;
      }
    }
    return count;
  }

  // Orders the tile by its digits in shared memory, so that runs of a digit are written together.
  // begins: of digit `thread` in the list, above in the tile; before: its items in earlier tiles.
  __device__ __forceinline__ void write(const SerializeArgs& args, const SerialSort& sort,
                                        const Pass& pass, PassShared& shared, uint64_t begins,
                                        uint64_t before, int64_t list, int64_t begin,
                                        uint64_t* words) const {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    const int64_t rows = args.cells.rows, list_begin = list * rows;
    if (thread < kDigits) {
      shared.begin[thread] = static_cast<uint32_t>(begins);
      shared.place[thread] = static_cast<uint32_t>((begins >> 32) + before - begins);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const uint32_t digit = digits[k] % kDigits;
      const uint32_t at = shared.begin[digit] + shared.before[warp][digit] + rank[k];
      shared.words[at] = (digits[k] / kDigits) << sort.row_bits | row[k];
      shared.digits[at] = static_cast<uint8_t>(digit);
    }
    __syncthreads();
    const int64_t items = rows - begin < kTile ? rows - begin : kTile;
    for (int at = thread; at < items; at += kThreads) {
      const uint64_t word = shared.words[at];
      const uint32_t place = shared.place[shared.digits[at]] + at;
      if (pass.last) {
        const int64_t i = static_cast<int64_t>(word & ((uint64_t{1} << sort.row_bits) - 1));
        args.order[list_begin + place] = i;
        args.inverse[list_begin + i] = place;
      } else {
        words[list_begin + place] = word;
      }
    }
  }
};

// One tile a block, two blocks a multiprocessor, so that the next pass is set up beside this one.
__global__ void __launch_bounds__(kThreads, 2)
    pass_kernel(const __grid_constant__ SerializeArgs args, const __grid_constant__ SerialSort sort,
                const __grid_constant__ Pass pass) {
  __shared__ PassShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t rows = args.cells.rows;
  let_next_begin();
  for (int i = thread; i < kWarps * kDigits; i += kThreads) shared.before[0][i] = 0;
  if (thread < kDigits) shared.next[thread] = 0;
  const int64_t ticket = block_ticket(&sort.tickets[pass.number]);  // cleared before the codes
  wait_for_previous();
  const int64_t list = divide(ticket, sort.tiles), tile = ticket - list * sort.tiles;
  const int64_t begin = tile * kTile;
  uint64_t* const status = sort.status[pass.number % 2] + ticket * kDigits;
  uint32_t* const counts = sort.counts + (int64_t{pass.number} * args.num_curves + list) * kDigits;
  uint32_t in_list = 0;
  if (thread < kDigits) {
    in_list = counts[thread] + 1;
    sort.status[1 - pass.number % 2][ticket * kDigits + thread] = ~uint64_t{0};
  }
  Items items;
  items.load(sort, pass.number > 0 ? sort.words[pass.number % 2] + list * rows : nullptr, begin,
             rows);
  if (pass.reads_codes) items.load_codes(args.codes + list * rows, pass, begin, rows);
  const uint32_t count = items.count(shared);
  if (thread < kDigits) store_relaxed(&status[thread], (tile == 0 ? kStatusTotal : 0) | count);
  uint64_t total;
  const uint64_t begins = block_prefix(uint64_t{in_list} << 32 | count, shared.sums, &total);
  if (!pass.last) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (Items::place(begin, k) >= rows) continue;
      atomicAdd(&shared.next[items.digits[k] / kDigits % kDigits], 1u);
    }
  }
  uint64_t before = 0;  // items of this digit in earlier tiles
  if (thread < kDigits) {
    for (int64_t back = 1; back <= tile; ++back) {
      const uint64_t word = wait_for_status(&status[thread - back * kDigits]);
      before += word & kStatusValue;
      if (word & kStatusTotal) break;
    }
    if (tile > 0) store_relaxed(&status[thread], kStatusTotal | (before + count));
  }
  items.write(args, sort, pass, shared, begins, before, list, begin,
              sort.words[1 - pass.number % 2]);
  if (!pass.last && thread < kDigits && shared.next[thread] > 0) {
    atomicAdd(&counts[args.num_curves * kDigits + thread], shared.next[thread]);
  }
}

// All passes, a block a tile. A digit that all items of a list share moves none.
__global__ void __launch_bounds__(kThreads, 2)
    resident_kernel(const __grid_constant__ SerializeArgs args,
                    const __grid_constant__ SerialSort sort) {
  __shared__ PassShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t rows = args.cells.rows, list = divide(int64_t{blockIdx.x}, sort.tiles);
  const int64_t tile = blockIdx.x - list * sort.tiles, begin = tile * kTile;
  uint64_t* const tile_counts = sort.status[0] + list * sort.tiles * kDigits;
  Items items;
  items.load(sort, nullptr, begin, rows);
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t i = Items::place(begin, k);
    if (i >= rows) continue;
    const int64_t code = args.code(args.load(i), args.curves[list]);
    args.codes[list * rows + i] = code;
    items.digits[k] = static_cast<uint64_t>(code);
  }
  bool moved = false;
  int side = 0;
  for (Pass pass; pass.number < sort.passes; ++pass.number) {
    pass.begin(args, sort, 1);
    for (int i = thread; i < kWarps * kDigits; i += kThreads) shared.before[0][i] = 0;
    if (moved) items.load(sort, sort.words[side] + list * rows, begin, rows);
    if (pass.reads_codes && pass.number > 0) {
      items.load_codes(args.codes + list * rows, pass, begin, rows);
    }
    __syncthreads();
    const uint32_t count = items.count(shared);
    if (thread < kDigits) tile_counts[tile * kDigits + thread] = count;
    sort.barriers[2 * pass.number].arrive();
    sort.barriers[2 * pass.number].wait();
    uint64_t before = 0, in_list = 0;
    if (thread < kDigits) {
#pragma unroll 8
      for (int64_t t = 0; t < sort.tiles; ++t) {
        const uint64_t items_there = __ldcg(&tile_counts[t * kDigits + thread]);
        before += t < tile ? items_there : 0;
        in_list += items_there;
      }
      if (thread == kDigits - 1) in_list -= sort.tiles * kTile - rows;  // past the end of the list
    }
    moved = pass.last || !__syncthreads_or(in_list == rows);
    if (moved) {
      uint64_t total;
      const uint64_t begins = block_prefix(in_list << 32 | count, shared.sums, &total);
      side = 1 - side;
      items.write(args, sort, pass, shared, begins, before, list, begin, sort.words[side]);
    } else {
#pragma unroll
      for (int k = 0; k < kItems; ++k) items.digits[k] /= kDigits;
    }
    if (pass.last) return;
    sort.barriers[2 * pass.number + 1].arrive();
    sort.barriers[2 * pass.number + 1].wait();
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const SerializeArgs& args, const Target&) {
  return carved_bytes<SerialSort>(args);
}

cudaError_t launch(const SerializeArgs& args, void* memory, const CudaContext& context) {
  if (args.cells.rows == 0) return cudaSuccess;
  Workspace workspace(memory);
  const SerialSort sort(args, workspace);
  const auto clear = [&](const void* end) {
    const auto bytes = static_cast<const char*>(end) - static_cast<char*>(memory);
    return cudaMemsetAsync(memory, 0xff, static_cast<size_t>(bytes), context.stream);
  };
  const int64_t tiles = args.num_curves * sort.tiles;
  const bool wanted = serialize_plan.value() == kAutomatic || serialize_plan.value() == 1;
  if (wanted && context.target.cooperative_launch && tiles <= 2 * context.target.multiprocessors) {
    TORCHVOX_CUDA_CHECK(clear(sort.tickets));
    void* parameters[] = {const_cast<SerializeArgs*>(&args), const_cast<SerialSort*>(&sort)};
    const cudaError_t status = cudaLaunchCooperativeKernel(
        resident_kernel, static_cast<unsigned>(tiles), kThreads, parameters, 0, context.stream);
    // Where the grid cannot be resident at once (a shared GPU), the passes run one by one.
    if (status != cudaErrorCooperativeLaunchTooLarge) return status;
    cudaGetLastError();
  }
  TORCHVOX_CUDA_CHECK(clear(sort.status[1]));
  const unsigned blocks = blocks_for(args.cells.rows, kThreads, context.target, 2);
  TORCHVOX_CUDA_CHECK(launch_blocks(code_kernel, blocks, kThreads, context.stream, args, sort));
  for (Pass pass; pass.number < sort.passes; ++pass.number) {
    pass.begin(args, sort, 2);
    TORCHVOX_CUDA_CHECK(
        launch_after(pass_kernel, grid_x(tiles), kThreads, context, args, sort, pass));
  }
  return cudaSuccess;
}

}  // namespace torchvox
