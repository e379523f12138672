// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA kernels of voxelize share: the decisions taken on the host, the ranges of the
// workspace, and the steps of the call.
//
// A voxel has an id (its rank by first point), a rank (its place in the wanted order; the id for
// order="first"), a row (after the cap of its sample; -1 when it is not kept) and a segment: the
// range of perm that holds its points.
#pragma once

#include "csrc/kernels/core/grid_barrier.cuh"
#include "csrc/kernels/spatial/scan.cuh"
#include "csrc/kernels/voxel/voxelize/table.cuh"

namespace torchvox {

inline constexpr int kVoxelThreads = kScanThreads;
inline constexpr int kFusedThreads = 1024;  // at most, in the fused kernel
inline constexpr int kFusedBlockPoints = 96;  // at least, while there are multiprocessors
// Beyond these rows separate kernels are faster: many clouds of one place, one after the other,
// have most of their voxels begin in a few blocks.
inline constexpr int64_t kFusedRows = 200000;
inline constexpr int kFusedRowBits = 19;  // of the fused kernel's packed sums, at most
inline constexpr int kTileEach = 4;  // points a thread of the scan over points
inline constexpr int kTilePoints = kTileEach * kVoxelThreads;  // a block of it
inline constexpr int kBitmapWords = 8;  // words a thread of the scan over bits
inline constexpr int kTileWords = kBitmapWords * kVoxelThreads;
inline constexpr int kLaneSegment = 2;  // points that one lane orders and reduces
inline constexpr int kSmallSegment = 8;  // points that 8 lanes order and reduce
inline constexpr int kWarpSort = 512;  // points that a warp sorts in shared memory
inline constexpr int kWarpSelect = 4096;  // points from which a warp selects the first 32
inline constexpr int kSortChunk = 4096;  // points that a block sorts in shared memory
inline constexpr int kSplitChunk = 1024;  // stored points of a split segment that a block reduces
inline constexpr uint64_t kBitmapKeys = uint64_t{1} << 28;  // largest grid ranked by a bitmap

struct alignas(16) VoxelSegment {
  uint64_t key;
  uint32_t place;  // first place in perm
  uint32_t count;
};

// A voxel of more than kSmallSegment points.
struct alignas(16) LargeSegment {
  uint32_t id, place, count, unused;
};

// 16 bytes at once, which the compiler would take apart.
template <class T>
__device__ __forceinline__ void store_whole(T* to, const T& value) {
  static_assert(sizeof(T) == 16, "one 16-byte store");
  *reinterpret_cast<uint4*>(to) = bit_cast<uint4>(value);
}
template <class T>
__device__ __forceinline__ T load_whole(const T* from) {
  static_assert(sizeof(T) == 16, "one 16-byte load");
  return bit_cast<T>(*reinterpret_cast<const uint4*>(from));
}

struct SegmentTask {
  uint32_t voxel;  // id
  uint32_t chunk;
};

// Every counter starts with all bits set: minus one.
struct VoxelCounters {
  uint32_t scan_ticket, scan_done, word_ticket, large, sort_tasks, sort_ticket, sort_done;
  uint32_t split_tasks;
  uint32_t inverse_longest;  // 2^32 - 1 - points of the longest segment that is sorted
};

struct VoxelTotals {
  uint32_t voxels;  // found
  uint32_t rows;  // kept
};

// The launch of the fused kernel: every block takes a partition of consecutive points.
struct FusedLaunch {
  int blocks = 0;  // 0: separate kernels
  int threads = 0;
  int partition = 0;  // points
  int per_thread = 0;  // points
  int partition_bytes = 0;  // of shared memory for the points, out of
  int shared_bytes = 0;
};

enum class VoxelRanking { kById, kByBitmap, kBySort };

struct VoxelWork {
  int64_t tiles = 1, word_tiles = 0;
  int64_t voxel_limit = 0;  // voxels that can exist
  int64_t sort_above = 0;  // segments longer than this are sorted before the reduction
  int64_t cleared_bytes = 0, bytes = 0;
  int64_t sort_bytes = 0;  // of the radix sort
  int64_t split_limit = 0;
  bool splits = false;  // segments may be split among blocks
  bool quads = false;  // rows of points can be read four floats at a time
  bool short_keys = false;  // keys fit 32 bits
  bool common = false;  // see assume_common()
  VoxelRanking ranking = VoxelRanking::kById;

  // All bits set before the first step of a call.
  VoxelTable table;
  uint64_t* status = nullptr;  // [tiles], or a word a block of the fused kernel
  uint64_t* numbers = nullptr;  // [rows] fused: id and place of the voxel of a first point
  uint64_t* word_status = nullptr;  // [word_tiles]
  uint32_t* bitmap = nullptr;  // [word_tiles * kTileWords]; a cleared bit is a voxel
  uint32_t* tallies = nullptr;  // [batches, 5]: columns 2 to 6 of counts, less one
  uint32_t* split_done = nullptr;  // [split_limit]
  VoxelCounters* counters = nullptr;
  GridBarrier* barriers = nullptr;  // [3] fused

  // Written before they are read.
  VoxelTotals* totals = nullptr;
  uint32_t* slot = nullptr;  // [rows]: slot of the point's voxel, or kNone32
  uint32_t* maybe_first = nullptr;  // [rows / 32]: a bit a point: it may be its voxel's first
  uint32_t* arrival = nullptr;  // [rows]: how many points of the voxel came before, in no order
  uint32_t* perm = nullptr;  // [rows]: points by voxel; fused: of large segments only
  uint32_t* lists = nullptr;  // [slots, kSmallSegment] fused: first points to arrive, unordered
  VoxelSegment* segments = nullptr;  // [voxel_limit] by id
  VoxelSegment* ranked_segments = nullptr;  // [voxel_limit] by rank
  uint32_t* rank_of = nullptr;  // [voxel_limit] id -> rank; null: the same
  uint32_t* word_rank = nullptr;  // [word_tiles * kVoxelThreads]
  uint32_t* sample_begin = nullptr;  // [batches + 1] voxels before the sample
  uint32_t* row_begin = nullptr;  // [batches + 1] rows before the sample
  LargeSegment* large = nullptr;  // in no order
  SegmentTask* sort_tasks = nullptr;
  SegmentTask* split_tasks = nullptr;
  void* split_values = nullptr;  // [split_limit, 2, columns] of the compute type
  int32_t* split_points = nullptr;  // [split_limit, columns]
  uint64_t* sort_keys = nullptr;  // [2, voxel_limit]
  uint32_t* sort_ids = nullptr;  // [2, voxel_limit]
  void* sort_storage = nullptr;

  FusedLaunch fused;

  VoxelWork(const VoxelizeArgs& args, const Target& target, void* base);

  // The row of a voxel, or -1; `sample` is only looked at when there is a cap.
  __device__ int64_t row_of(const VoxelizeArgs& args, uint32_t rank, int64_t sample) const {
    if (args.max_voxels < 0) return rank;
    const uint32_t within = rank - (sample > 0 ? sample_begin[sample] : 0);
    // The end matters for offsets in disorder only: rows of two samples never overlap.
    if (within >= args.max_voxels) return -1;
    if (args.points.clouds > 1 && rank >= sample_begin[sample + 1]) return -1;
    return int64_t{sample > 0 ? row_begin[sample] : 0} + within;
  }
  __device__ uint32_t rank(uint32_t id) const { return rank_of ? rank_of[id] : id; }
  __device__ int64_t row_of_voxel(const VoxelizeArgs& args, uint32_t id, uint64_t key) const {
    return row_of(args, rank(id), row_needs_key(args) ? args.grid.block_of(key) : 0);
  }
  __device__ bool row_needs_key(const VoxelizeArgs& args) const {
    return args.max_voxels >= 0 && args.points.clouds > 1;
  }
  // The inverse, for a row in use.
  __device__ uint32_t rank_of_row(const VoxelizeArgs& args, uint32_t row) const {
    if (args.max_voxels < 0 || args.points.clouds <= 1) return row;
    const int64_t b =
        last_where(int64_t{0}, args.points.clouds, [&](int64_t b) { return row_begin[b] <= row; });
    return sample_begin[b] + (row - row_begin[b]);
  }
  __device__ const VoxelSegment* segments_by_rank() const {
    return ranked_segments ? ranked_segments : segments;
  }
};

// The usual call, one cloud of x, y, z, intensity in fp32 without extras, as constants: what
// follows for every point from other arguments folds away. For calls with work.common.
template <bool kCommon>
__device__ __forceinline__ void assume_common(VoxelizeArgs& args, VoxelWork& work) {
  if constexpr (kCommon) {
    args.points.dtype = DType::kFloat;
    args.points.columns = 4;
    args.points.row_stride = 4;
    args.points.clouds = 1;
    args.points.offsets = {};
    args.points.lengths = {};
    args.keys = nullptr;
    args.first_point = nullptr;
    args.grid.x_major = false;
    args.center_relative = false;
    args.point_slot = nullptr;
    args.arg = nullptr;
    work.quads = true;
    work.short_keys = true;
    work.splits = false;
    work.bitmap = nullptr;
    work.ranked_segments = nullptr;
    work.rank_of = nullptr;
  }
}

// x, y and z of a row.
template <class Real>
__device__ __forceinline__ void load_position(const VoxelizeArgs& args, const VoxelWork& work,
                                              int64_t row, Real* x, Real* y, Real* z) {
  const int64_t at = row * args.points.row_stride;
  if (work.quads) {
    const float4 quad =
        *reinterpret_cast<const float4*>(static_cast<const float*>(args.points.data) + at);
    *x = quad.x;
    *y = quad.y;
    *z = quad.z;
  } else {
    *x = load_as<Real>(args.points.data, args.points.dtype, at);
    *y = load_as<Real>(args.points.data, args.points.dtype, at + 1);
    *z = load_as<Real>(args.points.data, args.points.dtype, at + 2);
  }
}

// The steps, each in its own file.
cudaError_t clear_voxels(const VoxelWork&, const CudaContext&);
cudaError_t insert_points(const VoxelizeArgs&, const VoxelWork&, const CudaContext&);
cudaError_t number_voxels(const VoxelizeArgs&, const VoxelWork&, const CudaContext&);
cudaError_t rank_voxels(const VoxelizeArgs&, const VoxelWork&, const CudaContext&);
cudaError_t place_points(const VoxelizeArgs&, const VoxelWork&, const CudaContext&);
cudaError_t reduce_voxels(const VoxelizeArgs&, const VoxelWork&, const CudaContext&);
int64_t voxel_sort_bytes(const VoxelWork& work);

// All steps in one launch.
FusedLaunch plan_fused(const VoxelizeArgs&, const VoxelWork&, const Target&);
cudaError_t voxelize_fused(const VoxelizeArgs&, const VoxelWork&, const CudaContext&);

}  // namespace torchvox
