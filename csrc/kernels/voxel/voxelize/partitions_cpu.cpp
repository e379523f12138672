// SPDX-License-Identifier: Apache-2.0
//
// The steps `runs` and `partitions` of voxelize_cpu.h.
#include <limits>
#include <type_traits>

#include "csrc/kernels/voxel/voxelize/voxelize_cpu.h"

namespace torchvox {
namespace {

// A hash table from the keys of one partition to its voxels, numbered from 1 on. Open addressing
// with at least twice as many slots as voxels; a slot has 0 or a voxel.
class Numbering {
 public:
  // For fewer than `room` voxels.
  Numbering(uint32_t* slots, int64_t room, CpuVoxel* voxels)
      : slots_(slots), count_(2 * static_cast<uint64_t>(room)), voxels_(voxels) {
    std::fill_n(slots_, count_, 0);
    voxels_[0] = {kCpuNoKey, 0, 0};
  }
  // The contents of the key's first slot: its voxel, 0, or another voxel.
  uint32_t guess(uint64_t key) const { return slots_[home(key)]; }
  // The voxel of the key; a new one gets `point` as its first.
  uint32_t number(uint64_t key, uint32_t point) {
    uint64_t s = home(key);
    while (slots_[s] != 0 && voxels_[slots_[s]].key != key) s = s + 1 == count_ ? 0 : s + 1;
    if (slots_[s] != 0) return slots_[s];
    slots_[s] = ++size_;
    voxels_[size_] = {key, 0, point};
    return size_;
  }
  uint32_t size() const { return size_; }

 private:
  uint64_t home(uint64_t key) const { return scale_bits(mix_key(key) >> 32, count_); }

  uint32_t* const slots_;
  const uint64_t count_;
  CpuVoxel* const voxels_;
  uint32_t size_ = 0;
};

// Looks up the runs of a partition, chunk by chunk, and adds their points to their voxels. One loop
// per step over the chunk's runs: about half of them may start a voxel, so one loop with a branch
// on that would often be predicted wrong.
template <class Values>
struct PartitionNumbering {
  const VoxelizeArgs& args;
  const VoxelCpuWork& work;
  const Values& values;
  const int partition;
  const int64_t base = work.partition_begin[partition];
  CpuVoxel* const voxels = work.voxels + base;
  const int64_t limit = args.stored(std::numeric_limits<int64_t>::max());
  Numbering numbering{work.table + 2 * base, work.partition_begin[partition + 1] - base, voxels};

  // Returns the number of new voxels.
  int64_t add_chunk(int64_t chunk) {
    const int64_t size_before = numbering.size();
    uint32_t run[kCpuChunk], id[kCpuChunk], missed[kCpuChunk];
    const int runs = work.select_runs(
        chunk, [this](int64_t r) { return work.run_partition[r] == partition; }, run);
    int misses = 0;
    for (int k = 0; k < runs; ++k) {
      const uint64_t key = work.run_key[run[k]];
      id[k] = numbering.guess(key);
      missed[misses] = static_cast<uint32_t>(k);
      misses += voxels[id[k]].key != key;
    }
    for (int m = 0; m < misses; ++m) {
      const int64_t r = run[missed[m]];
      const uint32_t before = numbering.size();
      id[missed[m]] =
          numbering.number(work.run_key[r], static_cast<uint32_t>(work.run_begin(chunk, r)));
      if (numbering.size() > before) values.open(base + id[missed[m]]);
    }
    for (int k = 0; k < runs; ++k) add_run(chunk, run[k], id[k]);
    return numbering.size() - size_before;
  }

  void add_run(int64_t chunk, int64_t run, uint32_t id) {
    const int64_t begin = work.run_begin(chunk, run), points = work.run_end(chunk, run) - begin;
    const uint32_t slot = voxels[id].count;
    voxels[id].count += static_cast<uint32_t>(points);
    work.run_key[run] = static_cast<uint64_t>(base + id) << 32 | slot;
    const int64_t stored = std::min(points, limit - slot);
    if (stored > 0) values.add(base + id, slot, begin, begin + stored);
  }
};

// The rows [begin, end) of one sample, as many as there are up to `most`; sample -1 for padding.
struct SampleRows {
  int64_t sample, end;

  SampleRows(const CloudBatch& points, int64_t begin, int64_t most)
      : sample(points.block_of(begin)), end(most) {
    if (sample < 0) {
      if (begin < points.offset(0)) end = std::min(most, points.offset(0));
      return;
    }
    const CloudRows cloud = points.cloud(sample);
    const int64_t existing = cloud.first + cloud.points;
    end = std::min(most, begin < existing ? existing : points.offset(sample + 1));
    if (begin >= existing) sample = -1;
  }
};

// Finds the runs of one chunk: neighboring points with the same key.
template <class T>
struct RunFinder {
  using Real = compute_t<T>;
  const VoxelizeArgs& args;
  const VoxelCpuWork& work;
  const int64_t chunk;
  uint64_t* const key_of_run = work.run_key + chunk * kCpuChunk;
  uint8_t* const partition_of_run = work.run_partition + chunk * kCpuChunk;
  uint32_t* const bound = work.run_bound + chunk * (kCpuChunk + 1);
  int64_t* const partition_runs = work.chunk_partition_runs + chunk * work.partitions;
  int64_t runs = 0;

  // The next rows, which are all of one sample.
  void add(int64_t sample, int64_t begin, int64_t end) {
    uint64_t key[kCpuChunk + 1];
    const int64_t count = end - begin;
    if (sample < 0) {
      std::fill_n(key, count, kCpuNoKey);
    } else if (args.keys != nullptr) {
      const uint64_t limit = args.key_limit();
      for (int64_t j = 0; j < count; ++j) {
        const uint64_t k = static_cast<uint64_t>(args.keys[begin + j]);
        key[j] = k < limit ? k : kCpuNoKey;
      }
    } else {
      find_keys(sample, begin, count, key);
    }
    key[count] = ~key[count - 1];  // differs, so that the last run ends
    for (int64_t j = 0; j < count; ++j) {
      key_of_run[runs] = key[j];
      bound[runs + 1] = static_cast<uint32_t>(begin + j + 1);
      runs += key[j] != key[j + 1];
    }
  }
  // Assigns the runs to partitions and returns their number.
  int64_t finish() {
    bound[0] = static_cast<uint32_t>(chunk * kCpuChunk);
    for (int64_t r = 0; r < runs; ++r) {
      const bool dropped = key_of_run[r] == kCpuNoKey;
      const uint64_t partition =
          scale_bits(mix_key(key_of_run[r]), static_cast<uint64_t>(work.partitions));
      partition_of_run[r] = dropped ? kCpuNoPartition : static_cast<uint8_t>(partition);
    }
    for (int p = 0; p < work.partitions; ++p) {
      partition_runs[p] =
          std::count(partition_of_run, partition_of_run + runs, static_cast<uint8_t>(p));
    }
    return runs;
  }

  // Plain loops over arrays, which the compiler vectorizes.
  void find_keys(int64_t sample, int64_t begin, int64_t count, uint64_t* key) const {
    const VoxelGrid& grid = args.grid;
    Real coordinate[3][kCpuChunk];
    const T* p = static_cast<const T*>(args.points.data) + begin * args.points.row_stride;
    const auto load = [&](auto stride) {
      for (int64_t j = 0; j < count; ++j) {
        for (int axis = 0; axis < 3; ++axis) coordinate[axis][j] = widen(p[j * stride + axis]);
      }
    };
    if (args.points.row_stride == 4) {
      load(std::integral_constant<int64_t, 4>());
    } else {
      load(args.points.row_stride);
    }
    for (int64_t c = 3; args.all_finite && c < args.points.columns; ++c) {
      for (int64_t j = 0; j < count; ++j) {
        const bool finite = is_finite(widen(p[j * args.points.row_stride + c]));
        coordinate[0][j] = finite ? coordinate[0][j] : std::numeric_limits<Real>::quiet_NaN();
      }
    }
    int32_t cell[3][kCpuChunk];
    int32_t finite[kCpuChunk], inside[kCpuChunk];
    std::fill_n(finite, count, 1);
    std::fill_n(inside, count, 1);
    for (int axis = 0; axis < 3; ++axis) {
      for (int64_t j = 0; j < count; ++j) {
        const Real at = coordinate[axis][j];
        finite[j] &= is_finite(at);
        inside[j] &= grid.locate_on_axis<Real>(at, axis, &cell[axis][j]);
      }
    }
    int64_t all_finite = 0, all_inside = 0;
    for (int64_t j = 0; j < count; ++j) {
      all_finite += finite[j];
      all_inside += inside[j] & finite[j];
    }
    for (int64_t j = 0; j < count; ++j) {
      const uint64_t k = grid.key(sample, {cell[0][j], cell[1][j], cell[2][j]});
      key[j] = inside[j] & finite[j] ? k : kCpuNoKey;
    }
    work.add_tally(sample, kPointsOutOfRange, all_finite - all_inside);
    work.add_tally(sample, kPointsNotFinite, count - all_finite);
  }
};

}  // namespace

void number_partitions(const VoxelizeArgs& args, const VoxelCpuWork& work,
                       const ParallelFor& parallel_for) {
  with_values(args, work, [&](const auto& values) {
    for_each_index(parallel_for, work.partitions, 1, [&](int64_t p) {
      PartitionNumbering<std::decay_t<decltype(values)>> partition{args, work, values,
                                                                   static_cast<int>(p)};
      for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
        work.chunk_partition_voxels[chunk * work.partitions + p] = partition.add_chunk(chunk);
      }
    });
  });
}

void find_runs(const VoxelizeArgs& args, const VoxelCpuWork& work,
               const ParallelFor& parallel_for) {
  with_point_type(args.points.dtype, [&](auto type) {
    for_each_index(parallel_for, work.chunks, 1, [&](int64_t chunk) {
      RunFinder<decltype(type)> finder{args, work, chunk};
      const int64_t end = std::min(args.points.rows, (chunk + 1) * kCpuChunk);
      for (int64_t begin = chunk * kCpuChunk; begin < end;) {
        const SampleRows rows(args.points, begin, end);
        finder.add(rows.sample, begin, rows.end);
        begin = rows.end;
      }
      work.chunk_runs[chunk] = finder.finish();
    });
  });
  work.partition_begin[0] = 0;
  for (int p = 0; p < work.partitions; ++p) {
    int64_t runs = 0;
    for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
      runs += work.chunk_partition_runs[chunk * work.partitions + p];
    }
    work.partition_begin[p + 1] = work.partition_begin[p] + runs + 1;
  }
}

}  // namespace torchvox
