// SPDX-License-Identifier: Apache-2.0
//
// Shared by the CUDA kernels of voxelize: the decisions made on the host, the parts of the
// workspace, and the steps of the call.
//
// A voxel has an id (its rank by first point), a rank (its place in the order of the output; the id
// for order="first"), a row (after the cap of its sample; -1 when it is not kept) and a segment:
// the range of perm that has its points.
#pragma once

#include "csrc/kernels/core/grid_barrier.cuh"
#include "csrc/kernels/spatial/scan.cuh"
#include "csrc/kernels/voxel/voxelize/table.cuh"

namespace torchvox {

inline constexpr int kVoxelThreads = kScanThreads;
inline constexpr int kFusedThreads = 1024;  // at most, in the fused kernel
inline constexpr int kFusedBlockPoints = 96;  // at least, while there are multiprocessors
// Above this number of points separate kernels are faster: in a batch of clouds of the same place
// most voxels begin in the first cloud, so that a few blocks get most of the work.
inline constexpr int64_t kFusedRows = 200000;
inline constexpr int kFusedRowBits =
    19;  // for a number of points in the fused kernel's packed sums
inline constexpr int kTileEach = 4;  // points per thread of the scan over points
inline constexpr int kTilePoints = kTileEach * kVoxelThreads;  // per block of it
inline constexpr int kBitmapWords = 8;  // words per thread of the scan over bits
inline constexpr int kTileWords = kBitmapWords * kVoxelThreads;
inline constexpr int kLaneSegment = 2;  // points that one lane orders and reduces
inline constexpr int kSmallSegment = 8;  // points that 8 lanes order and reduce
inline constexpr int kWarpSort = 512;  // points that a warp sorts in shared memory
inline constexpr int kWarpSelect = 4096;  // points from which a warp selects the first 32
inline constexpr int kSortChunk = 4096;  // points that a block sorts in shared memory
inline constexpr int kSplitChunk = 1024;  // stored points of a split segment that a block reduces
inline constexpr uint64_t kBitmapKeys = uint64_t{1} << 28;  // largest grid ranked by a bitmap

// A voxel and its range of perm.
struct alignas(16) VoxelSegment {
  uint64_t key;
  uint32_t place;  // first place in perm
  uint32_t count;  // points
};

// A voxel of more than kSmallSegment points.
struct alignas(16) LargeSegment {
  uint32_t id, place, count, unused;
};

// One access of 16 bytes, where the compiler would make one per member.
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

// A part of a long segment: kSortChunk points to sort, or kSplitChunk to reduce.
struct SegmentTask {
  uint32_t voxel;  // id
  uint32_t chunk;
};

// Every counter starts with all bits set, as minus one.
struct VoxelCounters {
  uint32_t scan_ticket, scan_done, word_ticket, large, sort_tasks, sort_ticket, sort_done;
  uint32_t split_tasks;
  uint32_t inverse_longest;  // 2^32 - 1 - points of the longest segment that is sorted
};

struct VoxelTotals {
  uint32_t voxels;  // with at least one point
  uint32_t rows;  // of voxels that are kept
};

// The launch of the fused kernel: every block takes a partition of consecutive points.
struct FusedLaunch {
  int blocks = 0;  // 0: separate kernels
  int threads = 0;
  int partition = 0;  // points per block
  int per_thread = 0;  // points per thread
  int shared_bytes = 0;
  int partition_bytes = 0;  // the first of these, for the points
};

enum class VoxelRanking { kById, kByBitmap, kBySort };

struct VoxelWork {
  int64_t tiles = 1, word_tiles = 0;
  int64_t voxel_limit = 0;  // voxels that can exist
  int64_t sort_above = 0;  // segments longer than this are sorted before the reduction
  int64_t cleared_bytes = 0, bytes = 0;  // of the workspace
  int64_t sort_bytes = 0;  // for the radix sort
  int64_t split_limit = 0;
  bool splits = false;  // segments may be split among blocks
  bool quads = false;  // rows of points can be read four floats at a time
  bool short_keys = false;  // keys fit 32 bits
  bool common = false;  // see assume_common()
  VoxelRanking ranking = VoxelRanking::kById;

  // All bits set before the first step of a call.
  VoxelTable table;
  uint64_t* status = nullptr;  // [tiles], or one word per block of the fused kernel
  uint64_t* numbers = nullptr;  // [rows] fused: id and place of the voxel of a first point
  uint64_t* word_status = nullptr;  // [word_tiles]
  uint32_t* bitmap = nullptr;  // [word_tiles * kTileWords]; a cleared bit is a voxel
  uint32_t* tallies = nullptr;  // [batches, 5]: columns 2 to 6 of counts, minus one
  uint32_t* split_done = nullptr;  // [split_limit]
  VoxelCounters* counters = nullptr;
  GridBarrier* barriers = nullptr;  // [3] fused

  // Not cleared: every element is written before it is read.
  VoxelTotals* totals = nullptr;
  uint32_t* slot = nullptr;  // [rows]: slot of the point's voxel, or kNone32
  uint32_t* maybe_first = nullptr;  // [rows / 32]: one bit per point: it may be its voxel's first
  uint32_t* arrival = nullptr;  // [rows]: how many points of the voxel were inserted before it
  uint32_t* perm = nullptr;  // [rows]: points by voxel; fused: of large segments only
  uint32_t* lists =
      nullptr;  // [slots, kSmallSegment] fused: a voxel's points as they were inserted
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

  // The row of a voxel, or -1; `sample` is only used when there is a cap.
  __device__ int64_t row_of(const VoxelizeArgs& args, uint32_t rank, int64_t sample) const {
    if (args.max_voxels < 0) return rank;
    const uint32_t within = rank - (sample > 0 ? sample_begin[sample] : 0);
    // The end matters only if the caller's offsets do not ascend: rows of two samples must not
    // overlap.
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
  // The inverse of row_of(), for a row in use.
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

// Sets the arguments of the usual call, one cloud of x, y, z, intensity in float without extra
// outputs, to constants, so that the compiler removes code that only other calls need. For calls
// with work.common.
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

// x, y and z of a row, in meters.
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

// The steps, see voxelize.h.
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
