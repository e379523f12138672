// SPDX-License-Identifier: Apache-2.0
//
// What becomes of a voxel's points: running sums or extremes, kept by voxel until its row is known,
// or copies in the slots of its row.
#pragma once

#include <cstring>

#include "csrc/kernels/voxel/voxelize/voxelize_cpu.h"

namespace torchvox {

// `kPlain`: four columns, taken as they are.
template <class T, bool kPlain>
class VoxelValues {
 public:
  using Real = compute_t<T>;

  VoxelValues(const VoxelizeArgs& args, const VoxelCpuWork& work)
      : args_(args),
        work_(work),
        values_(static_cast<Real*>(work.values)),
        cascades_(static_cast<CascadeSum<Real>*>(work.cascades)) {}

  void open(int64_t voxel) const {
    if (values_ == nullptr) return;
    std::fill_n(values(voxel), columns(), Real(0));
    if (work_.args_of != nullptr) std::fill_n(args_of(voxel), columns(), -1);
  }
  // Points [begin, end) are the next ones of the voxel, from `slot` on.
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
  // The running sums are those of a whole block: on to the next one.
  void fold(int64_t voxel, uint32_t slot) const {
    if (slot == kCpuSumBlock) {
      const int64_t taken = __atomic_fetch_add(work_.cascades_taken, 1, __ATOMIC_RELAXED);
      work_.cascade_of[voxel] = static_cast<uint32_t>(taken);
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
      if (stored % kCpuSumBlock == 0) {
        cascade.template add_block<1>(sum[c]);
      } else {
        cascade.template add_rest<0>(sum[c]);
      }
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
