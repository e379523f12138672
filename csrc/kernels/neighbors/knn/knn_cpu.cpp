// SPDX-License-Identifier: Apache-2.0
//
// knn on the CPU, in tasks of 16 queries: over tiles of a spatial order (tiles_cpu.h), or over
// every point for few queries, more axes, doubles and norm 1.
#include <algorithm>
#include <vector>

#include "csrc/kernels/neighbors/knn/common.h"
#include "csrc/kernels/neighbors/knn/tiles_cpu.h"

namespace torchvox {
namespace {

constexpr int64_t kQueriesPerTask = 16;

template <class C>
struct Neighbor {
  C dist2;
  uint32_t point;

  bool operator<(const Neighbor& other) const {
    return dist2 < other.dist2 || (dist2 == other.dist2 && point < other.point);
  }
};

// Any number of axes, any dtype and norm: measures every point. `found` is scratch.
template <class T>
void search_all(const KnnArgs& args, const KnnQuery& query,
                std::vector<Neighbor<compute_t<T>>>& found) {
  using C = compute_t<T>;
  const KnnCloud cloud = query.cloud < 0 ? KnnCloud{} : KnnCloud::of(args, query.cloud);
  const T* const q = static_cast<const T*>(args.query.data) + query.at;
  const T* const points = static_cast<const T*>(args.points.data) + cloud.base;
  found.clear();
  const uint32_t count =
      cloud.points > 0 && is_finite_row(q, args.points.columns) ? cloud.points : 0;
  for (uint32_t i = 0; i < count; ++i) {
    const T* const p = points + i * args.points.row_stride;
    if (is_finite_row(p, args.points.columns)) found.push_back({row_distance(args, p, q), i});
  }
  const int64_t kept = std::min<int64_t>(args.k, static_cast<int64_t>(found.size()));
  if (kept < static_cast<int64_t>(found.size())) {
    std::nth_element(found.begin(), found.begin() + kept, found.end());
  }
  std::sort(found.begin(), found.begin() + kept);
  for (int64_t j = 0; j < kept; ++j) {
    write_neighbor(args, query.row, j, found[j].dist2, found[j].point, cloud.index_base);
  }
  for (int64_t j = kept; j < args.k; ++j) write_none<C>(args, query.row, j);
}

TORCHVOX_INLINE void search_rows(const KnnArgs& args, const KnnTilesCpu& tiles, int64_t begin,
                                 int64_t end) {
  KnnFound found(args.k);
  std::vector<float> bounds;
  for (int64_t row = begin; row < end; ++row) {
    const KnnQuery query = KnnQuery::of(args, row);
    KnnCloud cloud{};
    int64_t count = 0;
    if (query.cloud >= 0) {
      cloud = KnnCloud::of(args, query.cloud);
      const Point3 q = load_axes(args, args.query.data, query.at);
      found.clear();
      if (is_finite(q)) tiles.search(query.cloud, q, bounds, found);
      count = found.finish();
    }
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t point = static_cast<uint32_t>(found[j]);
      write_neighbor(args, row, j, bit_cast<float>(static_cast<uint32_t>(found[j] >> 32)), point,
                     cloud.index_base);
    }
    for (int64_t j = count; j < args.k; ++j) write_none<float>(args, row, j);
  }
}

}  // namespace

int64_t workspace_bytes_cpu(const KnnArgs&) {
  return 0;  // the host's scratch is as large as a cloud, and lives as long
}

void run_cpu(const KnnArgs& args, void*, const ParallelFor& parallel_for) {
  if (args.k == 0 || args.queries() == 0) return;
  if (choose_knn_kernel(args, Target{}) == KnnKernel::kTiles) {
    const KnnTilesCpu tiles(args, parallel_for);
    for_each_range(parallel_for, args.queries(), kQueriesPerTask, [&](int64_t begin, int64_t end) {
      run_vectorized(knn_cpu_plan, [&] { search_rows(args, tiles, begin, end); });
    });
    return;
  }
  with_point_type(args.points.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_range(parallel_for, args.queries(), kQueriesPerTask, [&](int64_t begin, int64_t end) {
      std::vector<Neighbor<compute_t<T>>> found;
      for (int64_t row = begin; row < end; ++row) {
        search_all<T>(args, KnnQuery::of(args, row), found);
      }
    });
  });
}

}  // namespace torchvox
