// SPDX-License-Identifier: Apache-2.0
//
// Shared by the steps of voxelize on the CPU.
//
// Neighbors in the input often share a voxel, so runs of such points are looked up, not points.
// Voxels are split into partitions by a hash of their keys, and one task handles all runs of a
// partition in input order. So a voxel's first point, the slots of its points and the order of its
// sums need no atomics and no sorting. The number of partitions, one per thread, changes no result.
//
//   runs        the keys of all points, as runs of equal ones    in chunks of points
//   partitions  the voxels of every partition and their sums     in partitions
//   ranks       all voxels in output order, hence their rows     in chunks of points
//   rows        the outputs of each row                          in rows
//   points      the outputs of each point                        in chunks of points
#pragma once

#include <cstring>

#include "csrc/kernels/spatial/radix_sort.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox {

inline constexpr int64_t kCpuChunk = 1024;  // points per task
inline constexpr int64_t kCpuRowsPerTask = 512;
// The task of a partition reads the partition of every run, which would take most of its time with
// more partitions.
inline constexpr int kCpuPartitions = 16;
inline constexpr int64_t kCpuPointsPerPartition = 8192;
inline constexpr uint32_t kCpuSumBlock = 32;  // values in the finest block of CascadeSum

inline constexpr uint8_t kCpuNoPartition = 0xff;
inline constexpr uint64_t kCpuNoKey = ~uint64_t{0};

struct CpuVoxel {
  uint64_t key;
  uint32_t count;  // points
  uint32_t first;  // point
};

struct VoxelCpuWork {
  int partitions = 1;
  int64_t chunks = 0, bytes = 0;

  // Runs; those of a chunk begin at index chunk * kCpuChunk.
  uint32_t* run_bound = nullptr;  // [rows + chunks] chunk by chunk: its begin, the ends of its runs
  uint64_t* run_key = nullptr;  // [rows] once numbered: voxel << 32 | slot of first point
  uint8_t* run_partition = nullptr;  // [rows]
  int64_t* chunk_runs = nullptr;  // [chunks]
  int64_t* chunk_partition_runs = nullptr;  // [chunks, partitions]
  int64_t* chunk_partition_voxels = nullptr;  // [chunks, partitions] voxels that begin there
  int64_t* chunk_voxels = nullptr;  // [chunks] voxels whose first point lies before

  // Voxels are numbered partition by partition, with gaps: a partition has one number for each of
  // its runs and, before these, one that stands for no voxel.
  int64_t room = 0;  // rows + partitions
  int64_t* partition_begin = nullptr;  // [partitions + 1]
  uint32_t* table = nullptr;  // [2 * room] hash tables, partition by partition
  CpuVoxel* voxels = nullptr;  // [room]

  // Running sums, or largest or smallest values, see VoxelValues.
  void* values = nullptr;  // [room, columns] by voxel
  int32_t* args_of = nullptr;  // [room, columns] by voxel; null without `arg`
  void* cascades = nullptr;  // [rows / 32, columns] of voxels above 32 points
  int64_t* cascade_count = nullptr;  // [1] cascades in use
  uint32_t* cascade_of = nullptr;  // [room] by voxel

  KeyedIndex* ranked = nullptr;  // [2 * rows] scratch of sorted orders
  uint32_t* voxel_of = nullptr;  // [rows] by rank
  int32_t* row_of = nullptr;  // [room] by voxel; -1: past max_voxels
  int64_t* sample_begin = nullptr;  // [batches + 1] voxels in the samples before
  int64_t* row_begin = nullptr;  // [batches + 1]
  int64_t* tallies = nullptr;  // [batches, 5]
  int64_t voxel_count = 0;
  int64_t rows = 0;  // voxels that are kept

  VoxelCpuWork(const VoxelizeArgs& args, void* base);

  // Lists the runs of a chunk for which selects(run), in order. Without branches, as they would
  // often be predicted wrong.
  template <class Selects>
  int select_runs(int64_t chunk, const Selects& selects, uint32_t (&list)[kCpuChunk]) const {
    const int64_t base = chunk * kCpuChunk;
    int size = 0;
    for (int64_t r = base; r < base + chunk_runs[chunk]; ++r) {
      list[size] = static_cast<uint32_t>(r);
      size += selects(r);
    }
    return size;
  }
  // The points [begin, end) of a run of the chunk.
  int64_t run_begin(int64_t chunk, int64_t run) const { return run_bound[run + chunk]; }
  int64_t run_end(int64_t chunk, int64_t run) const { return run_bound[run + chunk + 1]; }
  // Of a run, from number_partitions() on.
  uint32_t run_voxel(int64_t run) const { return static_cast<uint32_t>(run_key[run] >> 32); }
  uint32_t run_slot(int64_t run) const { return static_cast<uint32_t>(run_key[run]); }

  void add_tally(int64_t sample, VoxelCount column, int64_t count) const {
    if (count == 0) return;
    __atomic_fetch_add(&tallies[5 * sample + column - kPointsStored], count, __ATOMIC_RELAXED);
  }
};

// A hash of 64 bits: every bit of the key changes many of them.
inline uint64_t mix_key(uint64_t key) {
  key *= 0xff51afd7ed558ccdull;
  key ^= key >> 33;
  key *= 0xc4ceb9fe1a85ec53ull;
  return key ^ key >> 29;
}
// Scales the low 32 bits of a hash to [0, count).
inline uint64_t scale_bits(uint64_t bits, uint64_t count) {
  return (bits & 0xffffffffu) * count >> 32;
}

// The first two steps; together they fill the members of VoxelCpuWork down to cascade_of.
void find_runs(const VoxelizeArgs& args, const VoxelCpuWork& work, const ParallelFor& parallel_for);
void number_partitions(const VoxelizeArgs& args, const VoxelCpuWork& work,
                       const ParallelFor& parallel_for);

// The features of voxels: running values by voxel until its row is known, or copies of points in
// the slots of its row. `kPlain`: four columns, without subtraction of the voxel's center.
template <class T, bool kPlain>
class VoxelValues {
 public:
  using Real = compute_t<T>;

  VoxelValues(const VoxelizeArgs& args, const VoxelCpuWork& work)
      : args_(args),
        work_(work),
        values_(static_cast<Real*>(work.values)),
        cascades_(static_cast<CascadeSum<Real>*>(work.cascades)) {}

  // Starts a new voxel.
  void open(int64_t voxel) const {
    if (values_ == nullptr) return;
    std::fill_n(values(voxel), columns(), Real(0));
    if (work_.args_of != nullptr) std::fill_n(args_of(voxel), columns(), -1);
  }
  // Adds points [begin, end), which are the next ones of the voxel, from `slot` on.
  void add(int64_t voxel, uint32_t slot, int64_t begin, int64_t end) const {
    if (values_ == nullptr) return;
    const Cell cell = center_cell(voxel);
    if (args_.is_best()) {
      for (int64_t i = begin; i < end; ++i, ++slot) compare(voxel, slot, i, cell);
      return;
    }
    while (begin < end) {
      const uint32_t in_block = slot % kCpuSumBlock;
      if (slot >= kCpuSumBlock && in_block == 0) fold(voxel, slot);
      const int64_t stop = std::min(end, begin + (kCpuSumBlock - in_block));
      sum(voxel, begin, stop, cell);
      slot += static_cast<uint32_t>(stop - begin);
      begin = stop;
    }
  }
  // Writes the row of a voxel of which `stored` points were added.
  void store(int64_t voxel, int64_t row, uint32_t stored) const {
    if (values_ == nullptr) return;
    Real* const value = values(voxel);
    if (!args_.is_best() && stored > kCpuSumBlock) finish_cascades(voxel, stored);
    const bool mean = args_.reduce == VoxelReduce::kMean && stored > 0;
    const Real divisor = mean ? static_cast<Real>(stored) : Real(1);
    const int64_t at = row * columns();
    store_columns(at, [&](int64_t c) { return value[c] / divisor; });
    if (work_.args_of != nullptr) std::copy_n(args_of(voxel), columns(), args_.arg + at);
  }

  // The cell whose center is subtracted, if one is.
  Cell center_cell(int64_t voxel) const {
    if (kPlain || !args_.center_relative) return {};
    int64_t sample;
    return args_.grid.cell_of(work_.voxels[voxel].key, &sample);
  }
  void copy(int64_t row, int64_t slot, int64_t i, const Cell& cell) const {
    const T* const p = point(i);
    const int64_t at = row * args_.row_values() + slot * columns();
    store_columns(at, [&](int64_t c) { return value(p, c, cell); });
  }
  void pad_slots(int64_t row, int64_t stored) const {
    const int64_t first = stored * columns(), bytes = bytes_of(args_.out_dtype);
    std::memset(static_cast<char*>(args_.features) + (row * args_.row_values() + first) * bytes, 0,
                static_cast<size_t>((args_.row_values() - first) * bytes));
  }

 private:
  int64_t columns() const { return kPlain ? 4 : args_.points.columns; }
  Real* values(int64_t voxel) const { return values_ + voxel * columns(); }
  int32_t* args_of(int64_t voxel) const { return work_.args_of + voxel * columns(); }
  CascadeSum<Real>* cascades(int64_t voxel) const {
    return cascades_ + int64_t{work_.cascade_of[voxel]} * columns();
  }
  const T* point(int64_t i) const {
    return static_cast<const T*>(args_.points.data) + i * args_.points.row_stride;
  }
  // store_as() of value_of(column) from features[at] on, the type looked up once.
  template <class ValueOf>
  void store_columns(int64_t at, const ValueOf& value_of) const {
    with_point_type(args_.out_dtype, [&](auto type) {
      using Out = decltype(type);
      Out* const out = static_cast<Out*>(args_.features) + at;
      for (int64_t c = 0; c < columns(); ++c) out[c] = narrow<Out>(quiet(value_of(c)));
    });
  }
  Real value(const T* p, int64_t column, const Cell& cell) const {
    const Real x = widen(p[column]);
    if (kPlain || !args_.center_relative || column >= 3) return x;
    const int32_t i = column == 0 ? cell.x : column == 1 ? cell.y : cell.z;
    return x - args_.grid.template center<Real>(static_cast<int>(column), i);
  }

  void sum(int64_t voxel, int64_t begin, int64_t end, const Cell& cell) const {
    Real* const sum = values(voxel);
    if constexpr (kPlain) {
      Real part[4] = {sum[0], sum[1], sum[2], sum[3]};
      for (int64_t i = begin; i < end; ++i) {
        const T* const p = point(i);
        for (int c = 0; c < 4; ++c) part[c] += widen(p[c]);
      }
      std::copy_n(part, 4, sum);
    } else {
      for (int64_t i = begin; i < end; ++i) {
        const T* const p = point(i);
        for (int64_t c = 0; c < columns(); ++c) sum[c] += value(p, c, cell);
      }
    }
  }
  // The running sums have a whole block of 32 points: moves them into the voxel's cascade.
  void fold(int64_t voxel, uint32_t slot) const {
    if (slot == kCpuSumBlock) {
      const int64_t index = __atomic_fetch_add(work_.cascade_count, 1, __ATOMIC_RELAXED);
      work_.cascade_of[voxel] = static_cast<uint32_t>(index);
      std::fill_n(cascades(voxel), columns(), CascadeSum<Real>());
    }
    for (int64_t c = 0; c < columns(); ++c) {
      cascades(voxel)[c].template add_block<1>(values(voxel)[c]);
      values(voxel)[c] = Real(0);
    }
  }
  void finish_cascades(int64_t voxel, uint32_t stored) const {
    Real* const sum = values(voxel);
    for (int64_t c = 0; c < columns(); ++c) {
      CascadeSum<Real>& cascade = cascades(voxel)[c];
      cascade.add_part(sum[c], stored % kCpuSumBlock == 0);
      sum[c] = cascade.total();
    }
  }

  void compare(int64_t voxel, uint32_t slot, int64_t i, const Cell& cell) const {
    const T* const p = point(i);
    for (int64_t c = 0; c < columns(); ++c) {
      Real* const at = values(voxel) + c;
      Best<Real> best{*at, slot == 0 ? -1 : 0};
      best.add(value(p, c, cell), static_cast<int32_t>(i), args_.reduce == VoxelReduce::kMin);
      *at = best.value;
      if (work_.args_of != nullptr && best.point == i) args_of(voxel)[c] = best.point;
    }
  }

  const VoxelizeArgs& args_;
  const VoxelCpuWork& work_;
  Real* const values_;
  CascadeSum<Real>* const cascades_;
};

// Calls body(values) with the VoxelValues of the call.
template <class Body>
void with_values(const VoxelizeArgs& args, const VoxelCpuWork& work, const Body& body) {
  with_point_type(args.points.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.points.columns == 4 && !args.center_relative) {
      body(VoxelValues<T, true>(args, work));
    } else {
      body(VoxelValues<T, false>(args, work));
    }
  });
}

}  // namespace torchvox
