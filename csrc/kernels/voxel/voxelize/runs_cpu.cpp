// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "csrc/kernels/voxel/voxelize/voxelize_cpu.h"

namespace torchvox {
namespace {

// Rows from `begin` on, at most up to `most`, that are of one sample; sample -1: padding.
struct SampleRows {
  int64_t sample;
  int64_t end;

  SampleRows(const PackedPoints& points, int64_t begin, int64_t most)
      : sample(points.sample_of(begin)), end(most) {
    if (sample < 0) {
      if (begin < points.offset(0)) end = std::min(most, points.offset(0));
      return;
    }
    const int64_t first = points.offset(sample);
    end = std::min(most, points.offset(sample + 1));
    if (!points.num_valid.given()) return;
    const int64_t valid = std::clamp<int64_t>(points.num_valid[sample], 0, points.rows);
    if (begin - first >= valid) {
      sample = -1;
    } else {
      end = std::min(end, first + valid);
    }
  }
};

template <class T>
class RunFinder {
 public:
  RunFinder(const VoxelizeArgs& args, const VoxelCpuWork& work, int64_t chunk)
      : args_(args),
        work_(work),
        key_of_run_(work.run_key + chunk * kCpuChunk),
        part_of_run_(work.run_part + chunk * kCpuChunk),
        bound_(work.run_bound + chunk * (kCpuChunk + 1)),
        part_runs_(work.chunk_part_runs + chunk * work.parts) {
    bound_[0] = static_cast<uint32_t>(chunk * kCpuChunk);
  }

  // The next rows, which are all of one sample.
  void add(int64_t sample, int64_t begin, int64_t end) {
    uint64_t key[kCpuChunk + 1];
    const int64_t count = end - begin;
    if (sample < 0) {
      std::fill_n(key, count, kCpuNoKey);
    } else {
      find_keys(sample, begin, count, key);
    }
    key[count] = ~key[count - 1];  // another one
    for (int64_t j = 0; j < count; ++j) {
      key_of_run_[runs_] = key[j];
      bound_[runs_ + 1] = static_cast<uint32_t>(begin + j + 1);
      runs_ += key[j] != key[j + 1];
    }
  }
  int64_t finish() {
    for (int64_t r = 0; r < runs_; ++r) {
      const bool dropped = key_of_run_[r] == kCpuNoKey;
      const uint64_t part = scale_bits(mix_key(key_of_run_[r]), static_cast<uint64_t>(work_.parts));
      part_of_run_[r] = dropped ? kCpuNoPart : static_cast<uint8_t>(part);
    }
    for (int p = 0; p < work_.parts; ++p) {
      part_runs_[p] = std::count(part_of_run_, part_of_run_ + runs_, static_cast<uint8_t>(p));
    }
    return runs_;
  }

 private:
  using Real = compute_t<T>;

  // Plain loops over arrays, for the compiler to turn into vectors.
  void find_keys(int64_t sample, int64_t begin, int64_t count, uint64_t* key) const {
    const VoxelGrid& grid = args_.grid;
    Real coordinate[3][kCpuChunk];
    const T* p = static_cast<const T*>(args_.points.data) + begin * args_.points.row_stride;
    const auto load = [&](auto stride) {
      for (int64_t j = 0; j < count; ++j) {
        for (int axis = 0; axis < 3; ++axis) coordinate[axis][j] = widen(p[j * stride + axis]);
      }
    };
    if (args_.points.row_stride == 4) {
      load(std::integral_constant<int64_t, 4>());
    } else {
      load(args_.points.row_stride);
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
    work_.add_tally(sample, kPointsOutOfRange, all_finite - all_inside);
    work_.add_tally(sample, kPointsNotFinite, count - all_finite);
  }

  const VoxelizeArgs& args_;
  const VoxelCpuWork& work_;
  uint64_t* const key_of_run_;
  uint8_t* const part_of_run_;
  uint32_t* const bound_;
  int64_t* const part_runs_;
  int64_t runs_ = 0;
};

}  // namespace

void find_runs(const VoxelizeArgs& args, const VoxelCpuWork& work,
               const ParallelFor& parallel_for) {
  with_point_type(args.points.dtype, [&](auto type) {
    for_each_index(parallel_for, work.chunks, 1, [&](int64_t chunk) {
      RunFinder<decltype(type)> finder(args, work, chunk);
      const int64_t end = std::min(args.points.rows, (chunk + 1) * kCpuChunk);
      for (int64_t begin = chunk * kCpuChunk; begin < end;) {
        const SampleRows rows(args.points, begin, end);
        finder.add(rows.sample, begin, rows.end);
        begin = rows.end;
      }
      work.chunk_runs[chunk] = finder.finish();
    });
  });
  work.part_begin[0] = 0;
  for (int p = 0; p < work.parts; ++p) {
    int64_t runs = 0;
    for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
      runs += work.chunk_part_runs[chunk * work.parts + p];
    }
    work.part_begin[p + 1] = work.part_begin[p] + runs + 1;
  }
}

}  // namespace torchvox
