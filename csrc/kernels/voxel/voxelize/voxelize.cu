// SPDX-License-Identifier: Apache-2.0
//
// voxelize on the GPU: the decisions and the workspace of a call, its launches in order, and the
// gradient.
#include <algorithm>

#include "csrc/kernels/voxel/voxelize/points.cuh"
#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox {
namespace {

// Threads of the grid set all bits of the workspace's cleared part, 16 bytes at a time. A kernel
// and not a memset, so that the next kernel may start at once and read and locate points meanwhile.
__global__ void __launch_bounds__(kVoxelThreads) clear_kernel(VoxelWork work) {
  let_next_begin();
  clear_workspace(work);
}
// Blocks per multiprocessor: more are not faster, and these leave room for the next kernel's
// blocks.
constexpr int kClearBlocks = 3;

constexpr int kThreads = 256;

// One thread per element of the gradient of the points, in order, so that writes are coalesced. It
// reads the point's voxel and slot and the gradient of the voxel's row, which the points of one
// voxel share in cache. Point and column advance by addition, as a division per element is slow.
template <class Real>
__global__ void __launch_bounds__(kThreads) gather_kernel(VoxelizeBackwardArgs args) {
  const int64_t stride = global_stride(), point_step = stride / args.columns;
  const int64_t column_step = stride % args.columns, values = args.rows * args.columns;
  int64_t point = global_thread() / args.columns, column = global_thread() % args.columns;
  for (int64_t at = global_thread(); at < values; at += stride) {
    store_as(args.grad_input, args.dtype, at, quiet(args.value<Real>(point, column)));
    point += point_step;
    column += column_step;
    if (column >= args.columns) {
      column -= args.columns;
      ++point;
    }
  }
}

}  // namespace

VoxelWork::VoxelWork(const VoxelizeArgs& args, const Target& target, void* base) {
  const int64_t rows = args.points.rows, batches = args.points.clouds;
  const uint64_t keys = args.key_limit();
  tiles = std::max<int64_t>(1, ceil_div<int64_t>(rows, kTilePoints));
  voxel_limit = static_cast<int64_t>(std::min<uint64_t>(static_cast<uint64_t>(rows), keys));
  const CloudBatch& points = args.points;
  quads = points.dtype == DType::kFloat && points.columns % 4 == 0 && points.row_stride % 4 == 0 &&
      reinterpret_cast<uintptr_t>(points.data) % 16 == 0;
  short_keys = keys <= 0xffffffffu;
  const bool few_stored = args.max_points >= 0 && args.max_points <= 32;
  sort_above = few_stored ? kWarpSelect : kWarpSort;
  splits = args.features != nullptr && args.reduce != VoxelReduce::kNone &&
      (args.max_points < 0 || args.max_points > kSplitChunk) && rows > kSplitChunk;
  split_limit = splits ? rows / (kSplitChunk / 2) + 1 : 0;
  if (args.order != VoxelOrder::kFirst) {
    const int64_t forced = voxel_ranking_plan.value();
    const bool bitmap =
        forced == kAutomatic ? keys <= kBitmapKeys : forced == 0 && keys <= 4 * kBitmapKeys;
    ranking = bitmap ? VoxelRanking::kByBitmap : VoxelRanking::kBySort;
  }
  if (ranking == VoxelRanking::kByBitmap) {
    word_tiles = static_cast<int64_t>(ceil_div<uint64_t>(keys, uint64_t{32} * kTileWords));
    word_tiles = std::max<int64_t>(1, word_tiles);
  }
  const bool wants_common = args.reduce == VoxelReduce::kMean || args.reduce == VoxelReduce::kNone;
  common = voxel_common_plan.value() != 0 && wants_common && args.features != nullptr && quads &&
      short_keys && points.columns == 4 && points.row_stride == 4 && !points.offsets.given() &&
      !points.lengths.given() && !args.grid.x_major && !args.center_relative &&
      args.point_slot == nullptr && args.arg == nullptr && !splits &&
      ranking == VoxelRanking::kById;
  table = VoxelTable::choose(keys, rows);
  fused = plan_fused(args, *this, target);

  Workspace space(base);
  table.data = space.take<char>(table.bytes());
  status = space.take<uint64_t>(std::max<int64_t>(tiles, fused.blocks));
  if (fused.blocks > 0) numbers = space.take<uint64_t>(rows);
  word_status = space.take<uint64_t>(word_tiles);
  if (word_tiles > 0) bitmap = space.take<uint32_t>(word_tiles * kTileWords);
  tallies = space.take<uint32_t>(5 * batches);
  split_done = space.take<uint32_t>(split_limit);
  counters = space.take<VoxelCounters>(1);
  if (fused.blocks > 0) barriers = space.take<GridBarrier>(3);
  cleared_bytes = space.bytes();

  totals = space.take<VoxelTotals>(1);
  slot = space.take<uint32_t>(rows);
  maybe_first = space.take<uint32_t>(ceil_div<int64_t>(rows, 32));
  arrival = space.take<uint32_t>(rows);
  perm = space.take<uint32_t>(rows);
  if (fused.blocks > 0) {
    lists = space.take<uint32_t>(static_cast<int64_t>(table.slots) * kSmallSegment);
  }
  segments = space.take<VoxelSegment>(voxel_limit);
  sample_begin = space.take<uint32_t>(batches + 1);
  row_begin = space.take<uint32_t>(batches + 1);
  large = space.take<LargeSegment>(rows / (kSmallSegment + 1) + 1);
  // A segment of n > kWarpSort points takes n / kSortChunk + 1 tasks at most.
  sort_tasks = space.take<SegmentTask>(rows > sort_above ? rows / 448 + 1 : 0);
  if (splits) {
    split_tasks = space.take<SegmentTask>(split_limit);
    const int64_t real_bytes = args.points.dtype == DType::kDouble ? 8 : 4;
    split_values = space.take<char>(split_limit * 2 * args.points.columns * real_bytes);
    if (args.is_best()) split_points = space.take<int32_t>(split_limit * args.points.columns);
  }
  if (ranking != VoxelRanking::kById) {
    ranked_segments = space.take<VoxelSegment>(voxel_limit);
    rank_of = space.take<uint32_t>(voxel_limit);
  }
  if (ranking == VoxelRanking::kByBitmap) {
    word_rank = space.take<uint32_t>(word_tiles * kVoxelThreads);
  }
  if (ranking == VoxelRanking::kBySort) {
    sort_bytes = voxel_sort_bytes(*this);
    sort_keys = space.take<uint64_t>(2 * voxel_limit);
    sort_ids = space.take<uint32_t>(2 * voxel_limit);
    sort_storage = space.take<char>(sort_bytes);
  }
  bytes = space.bytes();
}

int64_t workspace_bytes_cuda(const VoxelizeArgs& args, const Target& target) {
  return VoxelWork(args, target, nullptr).bytes;
}

cudaError_t clear_voxels(const VoxelWork& work, const CudaContext& context) {
  const unsigned blocks =
      blocks_for(work.cleared_bytes / 16, kVoxelThreads, context.target, kClearBlocks);
  return launch_blocks(clear_kernel, blocks, kVoxelThreads, context.stream, work);
}

cudaError_t launch(const VoxelizeArgs& args, void* workspace, const CudaContext& context) {
  const VoxelWork work(args, context.target, workspace);
  if (work.fused.blocks > 0) {
    // Where the grid cannot be resident at once, as on a shared GPU, the steps run one by one.
    const cudaError_t status = voxelize_fused(args, work, context);
    if (status != cudaErrorCooperativeLaunchTooLarge) return status;
    cudaGetLastError();
  }
  TORCHVOX_CUDA_CHECK(clear_voxels(work, context));
  TORCHVOX_CUDA_CHECK(insert_points(args, work, context));
  TORCHVOX_CUDA_CHECK(number_voxels(args, work, context));
  if (work.ranking != VoxelRanking::kById) {
    TORCHVOX_CUDA_CHECK(rank_voxels(args, work, context));
  }
  TORCHVOX_CUDA_CHECK(place_points(args, work, context));
  return reduce_voxels(args, work, context);
}

cudaError_t launch(const VoxelizeBackwardArgs& args, void*, const CudaContext& context) {
  if (args.rows == 0 || args.columns == 0) return cudaSuccess;
  return launch_items(args.in_double() ? gather_kernel<double> : gather_kernel<float>,
                      args.rows * args.columns, kThreads, context, args);
}

}  // namespace torchvox
