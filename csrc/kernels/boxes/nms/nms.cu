// SPDX-License-Identifier: Apache-2.0
//
// NMS of boxes in order on the GPU, 4,096 of them at a time: one kernel finds, tile by tile, which
// boxes would suppress which; a second one (decide.cu) decides them in order. Boxes of later chunks
// are first tested against all that were kept. Few pairs pass the test of their circles, and they
// are scattered over the lanes: these are listed in shared memory, and whole warps do the long
// test.
#include "csrc/kernels/boxes/nms/scratch.cuh"
#include "csrc/kernels/core/warp.cuh"

namespace torchvox {

namespace {

constexpr int kMaskThreads = 256;
constexpr int kTilesAcross = kMaskThreads / kNmsTile;
constexpr int kMostListed = 32 * kMaskThreads;  // pairs of a round, at most 32 per thread

struct MaskBlock {
  float4 row_place[kNmsTile], row_shape[kNmsTile];
  float4 column_place[kMaskThreads], column_shape[kMaskThreads];
  uint16_t listed[kMostListed];  // 256 * row + column
  int size;
  union {
    uint64_t words[kMaskThreads];
    uint32_t halves[2 * kMaskThreads];
  };
};

// The tiles that a block tests: first the pairs within the chunk, whose rows come no later than the
// last of their columns; then kept boxes of earlier chunks against the chunk.
struct MaskPlace {
  bool is_kept;
  int row_tile, group;  // columns: four tiles from 4 * group on

  __device__ MaskPlace(int index, int triangle, int groups) {
    is_kept = index >= triangle;
    if (is_kept) {
      row_tile = (index - triangle) / groups;
      group = (index - triangle) % groups;
      return;
    }
    group = static_cast<int>((sqrtf(2.0f * static_cast<float>(index) + 1.0f) - 1.0f) * 0.5f);
    while (2 * group * (group + 1) > index) --group;
    while (2 * (group + 1) * (group + 2) <= index) ++group;
    row_tile = index - 2 * group * (group + 1);
  }
};

// The blocks of a chunk of `tiles` tiles, in groups of four columns.
struct MaskGrid {
  int groups, triangle;

  __host__ __device__ explicit MaskGrid(int tiles)
      : groups((tiles + kTilesAcross - 1) / kTilesAcross),
        triangle(2 * (groups - 1) * groups + tiles) {}
};

__device__ __forceinline__ BevBox<float> box_from(const float4& place, const float4& shape) {
  return {place.x, place.y, shape.x, shape.y, shape.z, shape.w, place.w, place.z};
}

// Bit r is set if row r passes the cheap test and needs the long one.
template <class Meets>
__device__ __forceinline__ uint64_t near_rows(const float4* rows, const Meets& meets) {
  uint32_t half[2] = {0, 0};
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int r = 0; r < 32; ++r) {
      if (meets(rows[32 * part + r])) half[part] |= 1u << r;
    }
  }
  return half[0] | uint64_t{half[1]} << 32;
}

__device__ __forceinline__ uint64_t near_rows(const NmsArgs& args, const MaskBlock& block,
                                              float threshold) {
  const float4 own = block.column_place[threadIdx.x];
  if (args.mode == NmsMode::kCircle) {
    return near_rows(block.row_place, [&](const float4& row) {
      const float dx = own.x - row.x, dy = own.y - row.y;
      return dx * dx + dy * dy <= threshold;
    });
  }
  return near_rows(block.row_place, [&](const float4& row) {
    const float dx = own.x - row.x, dy = own.y - row.y, reach = row.z + own.z;
    return dx * dx + dy * dy <= reach * reach;
  });
}

// By whole warps, with room for all of them.
__device__ __forceinline__ void list_pairs(MaskBlock& block, uint64_t near) {
  const int lane = threadIdx.x % 32, mine = __popcll(near);
  if (__ballot_sync(~0u, mine > 0) == 0) return;
  const int before = warp_inclusive(mine);
  int base = 0;
  if (lane == 31) base = atomicAdd(&block.size, before);
  int at = __shfl_sync(~0u, base, 31) + before - mine;
  for (; near != 0; near &= near - 1) {
    block.listed[at++] = static_cast<uint16_t>((__ffsll(near) - 1) * kMaskThreads + threadIdx.x);
  }
}

struct MaskJob {
  const NmsArgs& args;
  const NmsScratch& scratch;
  MaskPlace at;
  int64_t segment, count, kept;  // kept: boxes of earlier chunks
  int64_t first_column;

  __device__ int64_t row_position(const NmsChunk& chunk, int row) const {
    const int64_t i = at.row_tile * kNmsTile + row;
    if (!at.is_kept) return chunk.begin + i < count ? chunk.begin + i : -1;
    return i < kept ? scratch.kept[segment * args.most + i] : -1;
  }
  __device__ int64_t group_at(int64_t position) const {
    return args.group_of(segment, args.box_at(segment, position));
  }
};

__device__ __forceinline__ void load_boxes(const MaskJob& job, const NmsChunk& chunk,
                                           MaskBlock& block) {
  const float nan = portable::not_a_number();
  const float4* const place = job.scratch.place + job.segment * job.args.capacity;
  const float4* const shape = job.scratch.shape + job.segment * job.args.capacity;
  const int64_t column = job.first_column + threadIdx.x;
  const bool exists = column < job.count;
  block.column_place[threadIdx.x] = exists ? place[column] : make_float4(nan, 0, 0, nan);
  block.column_shape[threadIdx.x] = exists ? shape[column] : make_float4(0, 0, 0, 0);
  if (threadIdx.x < kNmsTile) {
    const int64_t row = job.row_position(chunk, static_cast<int>(threadIdx.x));
    block.row_place[threadIdx.x] = row >= 0 ? place[row] : make_float4(nan, 0, 0, nan);
    block.row_shape[threadIdx.x] = row >= 0 ? shape[row] : make_float4(0, 0, 0, 0);
  }
  block.words[threadIdx.x] = 0;
  if (threadIdx.x == 0) block.size = 0;
}

__device__ __forceinline__ void test_listed(const MaskJob& job, const NmsChunk& chunk,
                                            MaskBlock& block, float threshold) {
  for (int k = threadIdx.x; k < block.size; k += kMaskThreads) {
    const int row = block.listed[k] / kMaskThreads, column = block.listed[k] % kMaskThreads;
    if (job.args.group.given() &&
        job.group_at(job.row_position(chunk, row)) != job.group_at(job.first_column + column)) {
      continue;
    }
    if (job.args.mode == NmsMode::kRotated) {
      const float iou =
          rotated_iou_bev(box_from(block.row_place[row], block.row_shape[row]),
                          box_from(block.column_place[column], block.column_shape[column]));
      if (!(iou > threshold)) continue;
    }
    atomicOr(&block.halves[2 * column + row % 2], 1u << (row / 2));
  }
}

// Writes the word of the thread's column for the kernel that decides.
__device__ __forceinline__ void write_words(const MaskJob& job, const MaskBlock& block) {
  uint64_t word = block.words[threadIdx.x];
  const int column = threadIdx.x % kNmsTile;
  const int tile = job.at.group * kTilesAcross + threadIdx.x / kNmsTile;
  if (job.at.is_kept) {
    const uint32_t hit = __ballot_sync(~0u, word != 0);
    if (threadIdx.x % 32 != 0 || hit == 0) return;
    uint32_t* const halves =
        reinterpret_cast<uint32_t*>(job.scratch.dead + job.segment * job.scratch.tiles + tile);
    atomicOr(&halves[column / 32], hit);
    return;
  }
  if (tile < job.at.row_tile || tile >= job.scratch.tiles) return;
  const bool is_missing = is_nan(block.column_place[threadIdx.x].w);
  if (tile == job.at.row_tile && is_missing) word |= uint64_t{1} << bit_of(column);
  job.scratch.row(job.segment, job.at.row_tile)[tile * kNmsTile + column] = word;
}

// One block per pair of 64 rows and 256 columns: reads their boxes, writes one word of suppressing
// rows per column; against kept boxes of earlier chunks, one bit per column.
__global__ void __launch_bounds__(kMaskThreads)
    mask_kernel(const __grid_constant__ NmsArgs args, const __grid_constant__ NmsScratch scratch,
                const __grid_constant__ NmsChunk chunk) {
  __shared__ MaskBlock block;
  let_next_begin();
  const MaskGrid grid(static_cast<int>(scratch.tiles));
  const MaskPlace at(static_cast<int>(blockIdx.x), grid.triangle, grid.groups);
  wait_for_previous();
  for (int64_t segment = blockIdx.y; segment < args.segments; segment += gridDim.y) {
    const int64_t kept = chunk.begin == 0 ? 0 : args.kept_counts[segment];
    const MaskJob job{args,
                      scratch,
                      at,
                      segment,
                      args.count(segment),
                      kept,
                      chunk.begin + int64_t{at.group} * kMaskThreads};
    if (job.first_column >= job.count || kept >= args.most) continue;
    if (at.is_kept && int64_t{at.row_tile} * kNmsTile >= kept) continue;
    load_boxes(job, chunk, block);
    __syncthreads();
    const float threshold = args.threshold(segment);
    uint64_t near = near_rows(args, block, threshold);
    if (!at.is_kept) {  // a row suppresses only later boxes
      const int behind =
          (at.group * kTilesAcross - at.row_tile) * kNmsTile + static_cast<int>(threadIdx.x);
      if (behind < kNmsTile) near &= behind > 0 ? (uint64_t{1} << behind) - 1 : 0;
    }
    while (__syncthreads_or(near != 0)) {
      const uint64_t now = __popcll(near) <= 32 ? near : near & 0xffffffffu;
      list_pairs(block, now);
      near &= ~now;
      __syncthreads();
      test_listed(job, chunk, block, threshold);
      __syncthreads();
      if (threadIdx.x == 0) block.size = 0;
    }
    write_words(job, block);
    __syncthreads();
  }
}

cudaError_t launch_nms_mask(const NmsArgs& args, const NmsScratch& scratch, const NmsChunk& chunk,
                            const CudaContext& context) {
  const MaskGrid grid(static_cast<int>(scratch.tiles));
  const int64_t kept = args.most < chunk.begin ? args.most : chunk.begin;
  const int64_t blocks = grid.triangle + ceil_div<int64_t>(kept, kNmsTile) * grid.groups;
  if (scratch.tiles == 0 || args.most == 0) return cudaSuccess;
  return launch_after(mask_kernel, dim3(static_cast<unsigned>(blocks), grid_y(args.segments)),
                      kMaskThreads, context, args, scratch, chunk);
}

constexpr int kPrepareThreads = 128;

// One thread per position: reads the box there, writes it ready for the rule.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ NmsArgs args,
                   const __grid_constant__ NmsScratch scratch) {
  let_next_begin();
  wait_for_previous();
  for (int64_t i = global_thread(); i < args.segments * args.capacity; i += global_stride()) {
    const int64_t segment = i / args.capacity, position = i % args.capacity;
    if (position >= args.count(segment)) continue;
    scratch.write(args, segment, position, args.box_at(segment, position));
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const NmsArgs& args, const Target&) {
  return carved_bytes<NmsScratch>(args);
}

cudaError_t launch_nms_chunks(const NmsArgs& args, const NmsScratch& scratch,
                              const CudaContext& context) {
  NmsChunk chunk{0};
  do {
    TORCHVOX_CUDA_CHECK(launch_nms_mask(args, scratch, chunk, context));
    TORCHVOX_CUDA_CHECK(launch_nms_decide(args, scratch, chunk, context));
    chunk.begin += kNmsChunk;
  } while (chunk.begin < args.capacity);
  return cudaSuccess;
}

cudaError_t launch(const NmsArgs& args, void* memory, const CudaContext& context) {
  if (args.segments == 0) return cudaSuccess;
  const auto scratch = carve<NmsScratch>(memory, args);
  const int64_t boxes = args.segments * args.capacity;
  if (boxes > 0 && args.most > 0) {
    const unsigned blocks = blocks_for(boxes, kPrepareThreads, context.target);
    TORCHVOX_CUDA_CHECK(
        launch_after(prepare_kernel, dim3(blocks), kPrepareThreads, context, args, scratch));
  }
  return launch_nms_chunks(args, scratch, context);
}

}  // namespace torchvox
