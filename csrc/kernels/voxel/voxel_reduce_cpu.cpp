// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "csrc/kernels/voxel/voxelize_cpu.h"

namespace torchvox {
namespace {

constexpr int kColumns = 16;  // reduced together
constexpr int64_t kRowChunk = 64;  // rows a task

// A voxel whose stored points are points[0 .. stored), in input order.
struct CpuVoxel {
  int64_t row;
  Cell cell;
  const uint32_t* points;
  int64_t stored;
};

template <class T>
class RowReducer {
 public:
  using Real = compute_t<T>;
  explicit RowReducer(const VoxelizeArgs& args) : args_(args) {}

  void write(const CpuVoxel& voxel) const {
    if (args_.reduce == VoxelReduce::kNone) {
      copy(voxel);
      return;
    }
    for (int64_t first = 0; first < args_.points.columns; first += kColumns) {
      const int n = static_cast<int>(std::min<int64_t>(kColumns, args_.points.columns - first));
      if (args_.is_best()) {
        best(voxel, first, n);
      } else {
        sum(voxel, first, n);
      }
    }
  }

 private:
  // What center_relative subtracts from columns 0-2.
  void centers(const CpuVoxel& voxel, int64_t first, Real (&center)[3]) const {
    const Cell& c = voxel.cell;
    const bool wanted = args_.center_relative && first == 0;
    for (int axis = 0; axis < 3; ++axis) {
      const int32_t i = axis == 0 ? c.x : axis == 1 ? c.y : c.z;
      center[axis] = wanted ? args_.grid.template center<Real>(axis, i) : Real(0);
    }
  }
  const T* point(uint32_t i) const {
    return static_cast<const T*>(args_.points.data) + int64_t{i} * args_.points.row_stride;
  }
  Real value(const T* p, int64_t column, const Real (&center)[3]) const {
    const Real x = widen(p[column]);
    return args_.center_relative && column < 3 ? x - center[column] : x;
  }

  void copy(const CpuVoxel& voxel) const {
    const int64_t columns = args_.points.columns;
    Real center[3];
    centers(voxel, 0, center);
    int64_t at = voxel.row * args_.row_values();
    for (int64_t slot = 0; slot < args_.max_points; ++slot) {
      const T* p = slot < voxel.stored ? point(voxel.points[slot]) : nullptr;
      for (int64_t c = 0; c < columns; ++c) {
        store_as(args_.features, args_.out_dtype, at++,
                 p != nullptr ? value(p, c, center) : Real(0));
      }
    }
  }

  void sum(const CpuVoxel& voxel, int64_t first, int n) const {
    Real center[3];
    centers(voxel, first, center);
    Real part[kColumns] = {};
    if (voxel.stored <= 32) {
      add_points(voxel, 0, voxel.stored, first, n, center, part);
    } else {
      CascadeSum<Real> cascade[kColumns];
      for (int64_t begin = 0; begin < voxel.stored; begin += 32) {
        const int64_t end = std::min(voxel.stored, begin + 32);
        Real block[kColumns] = {};
        add_points(voxel, begin, end, first, n, center, block);
        for (int f = 0; f < n; ++f) {
          if (end - begin == 32) {
            cascade[f].template add_block<1>(block[f]);
          } else {
            cascade[f].template add_rest<0>(block[f]);
          }
        }
      }
      for (int f = 0; f < n; ++f) part[f] = cascade[f].total();
    }
    const bool mean = args_.reduce == VoxelReduce::kMean && voxel.stored > 0;
    for (int f = 0; f < n; ++f) {
      const Real result = mean ? part[f] / static_cast<Real>(voxel.stored) : part[f];
      store_as(args_.features, args_.out_dtype, voxel.row * args_.points.columns + first + f,
               result);
    }
  }
  void add_points(const CpuVoxel& voxel, int64_t begin, int64_t end, int64_t first, int n,
                  const Real (&center)[3], Real (&part)[kColumns]) const {
    for (int64_t r = begin; r < end; ++r) {
      const T* p = point(voxel.points[r]);
      for (int f = 0; f < n; ++f) part[f] += value(p, first + f, center);
    }
  }

  void best(const CpuVoxel& voxel, int64_t first, int n) const {
    Real center[3];
    centers(voxel, first, center);
    Best<Real> result[kColumns];
    const bool smallest = args_.reduce == VoxelReduce::kMin;
    for (int64_t r = 0; r < voxel.stored; ++r) {
      const T* p = point(voxel.points[r]);
      for (int f = 0; f < n; ++f) {
        result[f].add(value(p, first + f, center), static_cast<int32_t>(voxel.points[r]), smallest);
      }
    }
    for (int f = 0; f < n; ++f) {
      const int64_t at = voxel.row * args_.points.columns + first + f;
      store_as(args_.features, args_.out_dtype, at, result[f].value);
      if (args_.arg != nullptr) args_.arg[at] = result[f].point;
    }
  }

  const VoxelizeArgs& args_;
};

// Puts the first `stored` points in order; the rest may stay as they are.
void order_points(uint32_t* points, int64_t count, int64_t stored) {
  if (stored < count) std::nth_element(points, points + stored, points + count);
  std::sort(points, points + stored);
}

template <class T>
void write_row(const VoxelizeArgs& args, const VoxelCpuWork& work, int64_t row) {
  int64_t rank = row;
  if (args.max_voxels >= 0) {
    const int64_t* begin = work.row_begin;
    const int64_t b = std::upper_bound(begin, begin + args.points.batches + 1, row) - begin - 1;
    rank = work.sample_begin[b] + (row - work.row_begin[b]);
  }
  const uint32_t id = work.id_of != nullptr ? work.id_of[rank] : static_cast<uint32_t>(rank);
  const CpuSegment& segment = work.segments[id];
  uint32_t* points = work.perm + segment.place;
  CpuVoxel voxel;
  voxel.row = row;
  voxel.points = points;
  voxel.stored = args.stored(segment.count);
  int64_t sample;
  voxel.cell = args.grid.cell_of(segment.key, &sample);
  if (work.parallel && (args.features != nullptr || args.point_slot != nullptr)) {
    order_points(points, segment.count, voxel.stored);
  }
  if (args.point_slot != nullptr) {
    for (int64_t r = 0; r < segment.count; ++r) {
      args.point_slot[points[r]] = r < voxel.stored ? static_cast<int32_t>(r) : -1;
    }
  }
  const int32_t index[4] = {static_cast<int32_t>(sample), voxel.cell.z, voxel.cell.y, voxel.cell.x};
  std::memcpy(args.indices + 4 * row, index, sizeof(index));
  args.num_points[row] = static_cast<int32_t>(voxel.stored);
  if (args.features != nullptr) RowReducer<T>(args).write(voxel);
}

void fill(void* array, int64_t row_bytes, int64_t begin, int64_t end, int byte) {
  if (array == nullptr || row_bytes == 0 || end <= begin) return;
  std::memset(static_cast<char*>(array) + begin * row_bytes, byte,
              static_cast<size_t>((end - begin) * row_bytes));
}

}  // namespace

void reduce_rows_cpu(const VoxelizeArgs& args, const VoxelCpuWork& work,
                     const ParallelFor& parallel_for) {
  const int64_t capacity = args.capacity();
  const auto by_rows = [&](int64_t begin, int64_t end,
                           const std::function<void(int64_t, int64_t)>& body) {
    parallel_for((end - begin + kRowChunk - 1) / kRowChunk, [&](int64_t first, int64_t last) {
      body(begin + first * kRowChunk, std::min(end, begin + last * kRowChunk));
    });
  };
  with_point_type(args.points.dtype, [&](auto type) {
    by_rows(0, work.rows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) write_row<decltype(type)>(args, work, row);
    });
  });
  by_rows(work.rows, capacity, [&](int64_t begin, int64_t end) {
    fill(args.indices, 16, begin, end, 0xff);
    fill(args.num_points, 4, begin, end, 0);
    fill(args.features, args.row_values() * bytes_of(args.out_dtype), begin, end, 0);
    fill(args.arg, 4 * args.points.columns, begin, end, 0xff);
  });
}

}  // namespace torchvox
