// SPDX-License-Identifier: Apache-2.0
//
// serialize on the GPU. The lists of all curves are sorted in the same launches, 8 bits per pass. A
// pass reads and writes its items once: tiles of a list look back at what earlier tiles publish
// (Adinets and Merrill, "Onesweep", 2022). An item is one word: the row in its low bits and as many
// bits of the code as fit above; a pass that would run out of these reads the codes again.
#include "csrc/kernels/cells/serialize.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/spatial/radix_sort.h"
#include "csrc/kernels/spatial/scan.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kItems = 4, kTile = kThreads * kItems;  // items per thread, per block
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;

struct SerialSort {
  int64_t tiles;  // per list
  int row_bits, passes;
  uint32_t* tickets;  // [passes]
  uint32_t* counts;  // [passes, curves, kDigits]: items with each digit, minus one
  uint64_t* status[2];  // [curves, tiles, kDigits], for even and for odd passes
  uint64_t* words[2];  // [curves, rows]

  SerialSort(const SerializeArgs& args, Workspace& workspace)
      : tiles(ceil_div<int64_t>(args.cells.rows, kTile)),
        row_bits(key_bits(args.cells.rows)),
        passes(ceil_div(args.sort_bits(), kDigitBits)),
        tickets(workspace.take<uint32_t>(passes)),
        counts(workspace.take<uint32_t>(passes * args.num_curves * kDigits)) {
    for (auto& each : status) each = workspace.take<uint64_t>(args.num_curves * tiles * kDigits);
    for (auto& each : words) each = workspace.take<uint64_t>(args.num_curves * args.cells.rows);
  }
};

struct Pass {
  int number;
  bool reads_codes, last;
};

// One row of blocks per curve, one thread per row of cells: reads a cell, writes its code, and
// counts the first digits of all codes.
__global__ void __launch_bounds__(kThreads) code_kernel(const __grid_constant__ SerializeArgs args,
                                                        const __grid_constant__ SerialSort sort) {
  __shared__ uint32_t counts[kDigits];  // of the first digit
  const int list = static_cast<int>(blockIdx.y);
  for (int i = threadIdx.x; i < kDigits; i += kThreads) counts[i] = 0;
  __syncthreads();
  for (int64_t i = global_thread(); i < args.cells.rows; i += global_stride()) {
    const int64_t code = args.code(args.load(i), args.curves[list]);
    args.codes[list * args.cells.rows + i] = code;
    atomicAdd(&counts[static_cast<uint64_t>(code) % kDigits], 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kDigits; i += kThreads) {
    if (counts[i] > 0) atomicAdd(&sort.counts[list * kDigits + i], counts[i]);
  }
}

struct PassShared {
  uint64_t words[kTile];  // items in the order of their digits
  uint8_t digits[kTile];
  uint16_t before[kWarps][kDigits];  // items of a warp with a digit, then those of earlier warps
  uint32_t begin[kDigits];  // where a digit begins in the tile
  uint32_t place[kDigits];  // where it begins in the list, minus `begin`
  uint32_t next[kDigits];  // items with a digit in the next pass
  uint64_t sums[32];
};

// One block per tile: reads its items, waits for the counts of earlier tiles, and writes the items
// in the order of one digit; the last pass writes both permutations instead. Two blocks fit a
// multiprocessor, so that the next pass can be set up beside this one. Lanes take neighboring
// items, so that ranks follow the order of the items.
__global__ void __launch_bounds__(kThreads, 2)
    pass_kernel(const __grid_constant__ SerializeArgs args, const __grid_constant__ SerialSort sort,
                const __grid_constant__ Pass pass) {
  __shared__ PassShared shared;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t rows = args.cells.rows;
  let_next_begin();
  for (int i = thread; i < kWarps * kDigits; i += kThreads) shared.before[0][i] = 0;
  if (thread < kDigits) shared.next[thread] = 0;
  const int64_t ticket = block_ticket(&sort.tickets[pass.number]);  // cleared before the codes
  wait_for_previous();
  const int64_t list = divide(ticket, sort.tiles), tile = ticket - list * sort.tiles;
  const int64_t list_begin = list * rows, begin = tile * kTile;
  uint64_t* const status = sort.status[pass.number % 2] + ticket * kDigits;
  uint32_t* const counts = sort.counts + (int64_t{pass.number} * args.num_curves + list) * kDigits;
  uint32_t in_list = 0;
  if (thread < kDigits) {
    in_list = counts[thread] + 1;
    sort.status[1 - pass.number % 2][ticket * kDigits + thread] = ~uint64_t{0};
  }

  // The rest of each code, with this pass's digit lowest. Past the end of the list all bits are
  // set: such items come last in the last tile.
  uint64_t digits[kItems];
  uint32_t row[kItems], rank[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t i = begin + (warp * kItems + k) * 32 + lane;
    digits[k] = ~uint64_t{0};
    row[k] = static_cast<uint32_t>(i);
    if (i >= rows) continue;
    if (pass.number > 0) {
      const uint64_t word = sort.words[pass.number % 2][list_begin + i];
      row[k] = static_cast<uint32_t>(word & ((uint64_t{1} << sort.row_bits) - 1));
      digits[k] = word >> sort.row_bits;
    }
    if (pass.reads_codes) {
      digits[k] =
          static_cast<uint64_t>(args.codes[list_begin + row[k]]) >> (pass.number * kDigitBits);
    }
  }

  const auto word_of = [&](int k) { return (digits[k] / kDigits) << sort.row_bits | row[k]; };
  const auto put = [&](int64_t place, uint64_t word) {
    if (pass.last) {
      const int64_t i = static_cast<int64_t>(word & ((uint64_t{1} << sort.row_bits) - 1));
      args.order[list_begin + place] = i;
      args.inverse[list_begin + i] = place;
    } else {
      sort.words[1 - pass.number % 2][list_begin + place] = word;
    }
  };
  const bool stay = __syncthreads_or(in_list == rows);  // the whole list has the same digit
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t i = begin + (warp * kItems + k) * 32 + lane;
    if (i >= rows) continue;
    if (!pass.last) atomicAdd(&shared.next[digits[k] / kDigits % kDigits], 1u);
    if (stay) put(i, word_of(k));
  }
  if (!stay) {
    // The rank of an item among those with its digit in the warp.
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
      store_relaxed(&status[thread], (tile == 0 ? kStatusTotal : 0) | count);
    }
    uint64_t total;
    const uint64_t begins = block_prefix(uint64_t{in_list} << 32 | count, shared.sums, &total);
    if (thread < kDigits) {
      uint64_t before = 0;  // items of this digit in earlier tiles
      for (int64_t back = 1; back <= tile; ++back) {
        const uint64_t word = wait_for_status(&status[thread - back * kDigits]);
        before += word & kStatusValue;
        if (word & kStatusTotal) break;
      }
      if (tile > 0) store_relaxed(&status[thread], kStatusTotal | (before + count));
      shared.begin[thread] = static_cast<uint32_t>(begins);
      shared.place[thread] = static_cast<uint32_t>((begins >> 32) + before - begins);
    }
    __syncthreads();

#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const uint32_t digit = digits[k] % kDigits;
      const uint32_t at = shared.begin[digit] + shared.before[warp][digit] + rank[k];
      shared.words[at] = word_of(k);
      shared.digits[at] = static_cast<uint8_t>(digit);
    }
    __syncthreads();
    const int64_t items = rows - begin < kTile ? rows - begin : kTile;
    for (int at = thread; at < items; at += kThreads) {
      put(shared.place[shared.digits[at]] + at, shared.words[at]);
    }
  }
  __syncthreads();
  if (!pass.last && thread < kDigits && shared.next[thread] > 0) {
    atomicAdd(&counts[args.num_curves * kDigits + thread], shared.next[thread]);
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const SerializeArgs& args, const Target&) {
  return carved_bytes<SerialSort>(args);
}

cudaError_t launch(const SerializeArgs& args, void* memory, const CudaContext& context) {
  if (args.cells.rows == 0) return cudaSuccess;
  const auto sort = carve<SerialSort>(memory, args);
  const auto cleared = reinterpret_cast<char*>(sort.status[1]) - static_cast<char*>(memory);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(memory, 0xff, static_cast<size_t>(cleared), context.stream));
  const dim3 blocks(blocks_for(args.cells.rows, kThreads, context.target, 2),
                    static_cast<unsigned>(args.num_curves));
  TORCHVOX_CUDA_CHECK(launch_blocks(code_kernel, blocks, kThreads, context.stream, args, sort));
  int end = 0;  // words hold the bits of a code below this one
  for (Pass pass = {0, false, false}; pass.number < sort.passes; ++pass.number) {
    // A pass needs its digit and counts the next one.
    const int begin = pass.number * kDigitBits, needed = begin + 2 * kDigitBits;
    pass.reads_codes = end < (needed < args.sort_bits() ? needed : args.sort_bits());
    if (pass.reads_codes) end = begin + kDigitBits + 64 - sort.row_bits;
    pass.last = pass.number + 1 == sort.passes;
    TORCHVOX_CUDA_CHECK(launch_after(pass_kernel, grid_x(args.num_curves * sort.tiles), kThreads,
                                     context, args, sort, pass));
  }
  return cudaSuccess;
}

}  // namespace torchvox
