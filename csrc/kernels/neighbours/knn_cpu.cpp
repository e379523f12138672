// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "csrc/kernels/neighbours/knn_common.h"

namespace torchvox {

#ifdef TORCHVOX_CUDA
int64_t knn_cuda_workspace_bytes(const KnnArgs& args, const Target& target);
#endif

namespace {

constexpr int64_t kQueriesPerTask = 16;

template <class C>
struct Neighbour {
  C dist2;
  uint32_t point;

  bool operator<(const Neighbour& other) const {
    return dist2 < other.dist2 || (dist2 == other.dist2 && point < other.point);
  }
};

// Any number of axes, any dtype and norm: measures every point. `found` is scratch.
template <class T>
void search_all(const KnnArgs& args, const KnnQuery& query,
                std::vector<Neighbour<compute_t<T>>>& found) {
  using C = compute_t<T>;
  const T* const q = static_cast<const T*>(args.query) + query.at;
  const T* const points = static_cast<const T*>(args.points) + query.first;
  found.clear();
  const uint32_t count = query.points > 0 && is_finite_row(q, args.dims) ? query.points : 0;
  for (uint32_t i = 0; i < count; ++i) {
    const T* const p = points + i * args.point_stride;
    if (is_finite_row(p, args.dims)) found.push_back({row_distance(args, p, q), i});
  }
  const int64_t kept = std::min<int64_t>(args.k, static_cast<int64_t>(found.size()));
  if (kept < static_cast<int64_t>(found.size())) {
    std::nth_element(found.begin(), found.begin() + kept, found.end());
  }
  std::sort(found.begin(), found.begin() + kept);
  for (int64_t j = 0; j < kept; ++j) {
    write_neighbour(args, query, j, found[j].dist2, found[j].point);
  }
  for (int64_t j = kept; j < args.k; ++j) {
    write_neighbour(args, query, j, no_distance<C>(), kNoNeighbour);
  }
}

}  // namespace

int64_t workspace_bytes(const KnnArgs& args, const Target& target) {
#ifdef TORCHVOX_CUDA
  if (target.cuda) return knn_cuda_workspace_bytes(args, target);
#endif
  (void)args, (void)target;
  return 0;  // the host's scratch is as large as a cloud, and lives as long
}

void run_cpu(const KnnArgs& args, void*, const ParallelFor& parallel_for) {
  if (args.k == 0) return;
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t tasks = (args.queries() + kQueriesPerTask - 1) / kQueriesPerTask;
    parallel_for(tasks, [&](int64_t begin, int64_t end) {
      std::vector<Neighbour<compute_t<T>>> found;
      const int64_t last = std::min(end * kQueriesPerTask, args.queries());
      for (int64_t row = begin * kQueriesPerTask; row < last; ++row) {
        search_all<T>(args, KnnQuery::of(args, row), found);
      }
    });
  });
}

}  // namespace torchvox
