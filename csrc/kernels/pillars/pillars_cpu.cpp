// SPDX-License-Identifier: Apache-2.0
//
// pillar_moments, pillar_scatter and the gradient of the latter on the CPU, in tasks of rows.
#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/kernels/pillars/moments.h"
#include "csrc/kernels/pillars/scatter.h"

namespace torchvox {
namespace {

struct MomentsWork {
  HostPillarLists list_work;
  double* means;  // [rows, 3] of the calculation's type
  HostTree tree;

  MomentsWork(const PillarMomentsArgs& args, Workspace& workspace)
      : list_work(args.map, workspace),
        means(workspace.take<double>(3 * args.map.rows.rows)),
        tree(args.map.count, args.entries(), workspace) {}
};

// The sums [entries] over group `group` of 32 points.
template <class T, class Real>
void sum_group(const PillarMomentsArgs& args, const Real* means, int64_t group, double* sums) {
  const PillarMap& map = args.map;
  const int64_t size = args.size();
  std::fill_n(sums, args.entries(), 0.0);
  std::vector<Real> g(size, Real(1));
  const int64_t end = std::min((group + 1) * kTreeWidth, map.count);
  for (int64_t point = group * kTreeWidth; point < end; ++point) {
    const int64_t row = map.row_of(point);
    if (row < 0) continue;
    PillarFrame<Real> frame;
    frame.place(map, row);
    for (int axis = 0; axis < 3; ++axis) frame.mean[axis] = means[3 * row + axis];
    for (int64_t c = 1; c < size; ++c) g[c] = decorated<T>(map, frame, point, c - 1);
    double* sum = sums;
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t j = i; j < size; ++j, ++sum) *sum = plus_product(*sum, g[i], g[j]);
    }
  }
}

template <class T, class Real>
void run_typed(const PillarMomentsArgs& args, const MomentsWork& work,
               const ParallelFor& parallel_for) {
  const PillarMap& map = args.map;
  Real* means = reinterpret_cast<Real*>(work.means);
  int64_t pillars = 0;
  for (int64_t row = 0; row < map.rows.rows; ++row) pillars += map.rows.cell(row) >= 0;
  for_each_index(parallel_for, map.rows.rows, 256, [&](int64_t row) {
    if (map.rows.cell(row) < 0) return;
    PillarFrame<Real> frame;
    pillar_mean<T>(map, work.list_work.lists, row, map.stored(row), frame);
    std::copy_n(frame.mean, 3, means + 3 * row);
  });
  for_each_index(parallel_for, work.tree.groups(), 8,
                 [&](int64_t group) { sum_group<T>(args, means, group, work.tree.of(group)); });
  const double* sums = work.tree.total(parallel_for);
  for (int64_t e = 0; e < args.entries(); ++e) args.moments[e] = quiet(sums[e]);
  if (map.padded && map.max_points >= 0) {
    args.moments[0] = static_cast<double>(pillars) * static_cast<double>(map.max_points);
  }
}

}  // namespace

int64_t workspace_bytes_cpu(const PillarMomentsArgs& args) {
  return carved_bytes<MomentsWork>(args);
}

void run_cpu(const PillarMomentsArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto work = carve<MomentsWork>(memory, args);
  work.list_work.fill(args.map);
  with_pillar_types(args.map.dtype, false, [&](auto type, auto real) {
    run_typed<decltype(type), decltype(real)>(args, work, parallel_for);
  });
}

constexpr int64_t kRowsPerTask = 256;

void run_cpu(const PillarScatterArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto cells = carve<HostCellRows>(memory, args.rows);
  cells.fill(args.rows);
  cells.write_zeros(args.canvas, args.rows, args.channels, args.dtype, parallel_for);
  const int64_t bytes = args.channels * bytes_of(args.dtype);
  for_each_index(parallel_for, args.rows.rows, kRowsPerTask, [&](int64_t row) {
    const int64_t cell = cells.cell_of(args.rows, row);
    if (cell < 0 || bytes == 0) return;
    std::memcpy(static_cast<char*>(args.canvas) + cell * bytes,
                static_cast<const char*>(args.feats) + row * bytes, bytes);
  });
}

void run_cpu(const PillarScatterBackwardArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto cells = carve<HostCellRows>(memory, args.rows);
  cells.fill(args.rows);
  const int64_t size = bytes_of(args.dtype);
  for_each_index(parallel_for, args.rows.rows, kRowsPerTask, [&](int64_t row) {
    const int64_t cell = cells.cell_of(args.rows, row);
    char* to = static_cast<char*>(args.grad_feats) + row * args.channels * size;
    if (cell < 0) {
      std::memset(to, 0, args.channels * size);
      return;
    }
    const int64_t from = args.rows.strided(cell, 0, args.grad_strides);
    for (int64_t c = 0; c < args.channels; ++c) {
      const int64_t at = from + c * args.grad_strides[1];
      std::memcpy(to + c * size, static_cast<const char*>(args.grad) + at * size, size);
    }
  });
}

}  // namespace torchvox
