// SPDX-License-Identifier: Apache-2.0
//
// knn on the CPU, in tasks of 16 queries: over tiles of a spatial order, or over every point for
// few queries, more axes and doubles. Also the choice of the kernel, from sizes alone.
#include <algorithm>
#include <vector>

#include "csrc/kernels/neighbors/knn/knn.h"
#include "csrc/kernels/spatial/curves.h"

namespace torchvox {
namespace {

// On a GPU building a spatial order takes about as long as this many distances (H200).
constexpr int64_t kScannedPairs = int64_t{1} << 21;
constexpr int64_t kScannedPoints = 1024;
constexpr int64_t kScannedForFew = 512;
// On the host it takes about as long as this many queries that measure every point.
constexpr int64_t kScanningQueries = 8;

// Bits of the distance, then the index: keys have the order that the contract gives neighbors.
// Signed integers, for which vector units have more instructions.
using KnnKey = int64_t;
constexpr KnnKey kNoKey = INT64_MAX;

// The k smallest keys so far. For small k they are kept in order, in one of two rows; for large k,
// 2 k keys are gathered before the larger half is dropped.
class NearestKeys {
 public:
  explicit NearestKeys(int64_t k)
      : k_(k), width_(k <= kOrdered ? (k + kPad - 1) / kPad * kPad : 0) {
    keys_.assign(is_ordered() ? 2 * (kPad + width_) : 2 * k, INT64_MIN);
  }

  void clear() {
    count_ = 0;
    last_ = kNoKey;
    row_ = kPad;
    if (is_ordered()) std::fill_n(keys_.begin() + row_, width_, kNoKey);
  }
  // No point farther away than this can be a neighbor.
  TORCHVOX_INLINE float reach() const {
    return last_ == kNoKey ? INFINITY : bit_cast<float>(static_cast<uint32_t>(last_ >> 32));
  }
  TORCHVOX_INLINE void add(float dist2, uint32_t point) {
    const KnnKey key = KnnKey{bit_cast<int32_t>(dist2)} << 32 | point;
    if (key >= last_) return;
    if (is_ordered()) return insert(key);
    keys_[count_++] = key;
    if (count_ == 2 * k_) drop();
  }
  // Sorts the keys; returns how many there are.
  int64_t finish() {
    if (is_ordered()) {
      const KnnKey* const row = keys_.data() + row_;
      return std::lower_bound(row, row + k_, kNoKey) - row;
    }
    row_ = 0;
    if (count_ > k_) drop();
    std::sort(keys_.begin(), keys_.begin() + count_);
    return count_;
  }
  // After finish().
  KnnKey operator[](int64_t rank) const { return keys_[row_ + rank]; }

 private:
  static constexpr int64_t kOrdered = 64;
  static constexpr int64_t kPad = 8;  // keys of the widest vector

  bool is_ordered() const { return width_ != 0; }

  // Copies one row into the other with the new key in its place: no branch depends on that place.
  // The values before a row are smaller than any key.
  TORCHVOX_INLINE void insert(KnnKey key) {
    const KnnKey* const from = keys_.data() + row_;
    row_ = kPad + (2 * kPad + width_) - row_;
    KnnKey* const to = keys_.data() + row_;
#pragma GCC ivdep
    for (int64_t j = 0; j < width_; ++j) {
      const KnnKey kept = key < from[j] ? key : from[j];
      to[j] = from[j - 1] > kept ? from[j - 1] : kept;
    }
    last_ = to[k_ - 1];
  }
  void drop() {
    std::nth_element(keys_.begin(), keys_.begin() + k_ - 1, keys_.begin() + count_);
    count_ = k_;
    last_ = keys_[k_ - 1];
  }

  int64_t k_, count_ = 0;
  int64_t width_;  // of the two rows; 0: unordered
  int64_t row_ = 0;  // where the current one begins
  KnnKey last_ = kNoKey;
  std::vector<KnnKey> keys_;
};

// All clouds of a call. Tiles and groups of a cloud are numbered from the position of its first
// point divided by their size, plus the number of the cloud: disjoint ranges.
class KnnTilesCpu {
 public:
  static constexpr int kTile = kCpuTile;
  static constexpr int kGroup = 16;
  static constexpr int kGroupPoints = kTile * kGroup;

  KnnTilesCpu(const KnnArgs& args, const ParallelFor& parallel_for) {
    const int64_t points =
        args.points.packed ? args.points.rows : args.points.clouds * args.points.rows;
    const int64_t tiles = points / kTile + args.points.clouds;
    for (auto* axis : {&a_, &b_, &c_}) axis->resize(tiles * kTile);
    index_.resize(tiles * kTile);
    // A group always reads the boxes of 16 tiles, also beyond its cloud; those are not used.
    tiles_.assign(tiles + kGroup);
    groups_.assign(points / kGroupPoints + args.points.clouds);
    first_code_.resize(points / kGroupPoints + args.points.clouds);
    clouds_.resize(args.points.clouds);
    if (args.points.packed) skip_shared(args);
    parallel_for(args.points.clouds, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) load(args, b);
    });
  }

  // `bounds` is scratch.
  template <int kNorm>
  TORCHVOX_INLINE void search(int64_t b, const Point3& q, std::vector<float>& bounds,
                              NearestKeys& nearest) const {
    const Cloud& cloud = clouds_[b];
    if (cloud.groups == 0) return;
    const uint32_t* const codes = first_code_.data() + cloud.first_group;
    const uint32_t code = morton_code(q, cloud.low, cloud.scale, kCells);
    const int64_t home = std::upper_bound(codes + 1, codes + cloud.groups, code) - codes - 1;
    search_group<kNorm>(cloud, home, q, nearest);
    if (static_cast<int64_t>(bounds.size()) < cloud.groups) bounds.resize(cloud.groups);
    float* const bound = bounds.data();
    groups_.measure<kNorm>(q, cloud.first_group, cloud.groups,
                           [bound](int64_t i, float d) { bound[i] = d; });
    float reach = nearest.reach();
    for (int64_t g = 0; g < cloud.groups; ++g) {
      if (bound[g] > reach || g == home) continue;
      search_group<kNorm>(cloud, g, q, nearest);
      reach = nearest.reach();
    }
  }

 private:
  struct Cloud {
    uint32_t skipped = 0;  // first points that also belong to earlier clouds
    int64_t count;  // finite points
    int64_t groups;
    int64_t first_tile, first_group;
    float low[3];
    float scale;  // of its Morton codes
  };
  static constexpr uint32_t kCells = 1024;

  // Offsets in disorder make clouds overlap: a point goes to the first of them, so that no two
  // clouds, which threads load at the same time, share a tile.
  void skip_shared(const KnnArgs& args) {
    int64_t end = 0;
    for (int64_t b = 0; b < args.points.clouds; ++b) {
      const KnnCloud cloud = KnnCloud::of(args, b);
      clouds_[b].skipped = static_cast<uint32_t>(clamp_index(end - cloud.first, 0, cloud.points));
      end = std::max(end, cloud.first + cloud.points);
    }
  }

  void load(const KnnArgs& args, int64_t b) {
    const CandidatePoints points = points_to_order(args);
    Cloud& cloud = clouds_[b];
    CandidateCloud place = CandidateCloud::of(points, b);
    place.first += cloud.skipped;
    place.base += cloud.skipped * args.points.row_stride;
    place.points -= cloud.skipped;
    const std::vector<uint32_t> order = spatial_order_cpu(points, place);
    cloud.count = static_cast<int64_t>(order.size());
    cloud.groups = (cloud.count + kGroupPoints - 1) / kGroupPoints;
    cloud.first_tile = place.first / kTile + b;
    cloud.first_group = place.first / kGroupPoints + b;
    const int64_t padded = (cloud.count + kTile - 1) / kTile * kTile;
    for (int64_t i = 0; i < padded; ++i) {
      const int64_t at = cloud.first_tile * kTile + i;
      if (i >= cloud.count) {
        a_[at] = NAN;  // no distance from it is within any reach
        continue;
      }
      const Point3 p = load_point(points, place, order[i]);
      a_[at] = p.a, b_[at] = p.b, c_[at] = p.c;
      index_[at] = order[i] + cloud.skipped;
      tiles_.include(cloud.first_tile + i / kTile, p);
      groups_.include(cloud.first_group + i / kGroupPoints, p);
    }
    find_codes(cloud);
  }

  // Where each group begins on the Morton curve. It affects speed only, not results.
  void find_codes(Cloud& cloud) {
    float high[3];
    const auto extent = [&](const std::vector<float>& lows, const std::vector<float>& highs,
                            int axis) {
      const auto low = lows.begin() + cloud.first_group, top = highs.begin() + cloud.first_group;
      cloud.low[axis] = cloud.groups == 0 ? 0.0f : *std::min_element(low, low + cloud.groups);
      high[axis] = cloud.groups == 0 ? 0.0f : *std::max_element(top, top + cloud.groups);
    };
    extent(groups_.low_a, groups_.high_a, 0);
    extent(groups_.low_b, groups_.high_b, 1);
    extent(groups_.low_c, groups_.high_c, 2);
    cloud.scale = scale_of(cloud.low, high, kCells);
    for (int64_t g = 0; g < cloud.groups; ++g) {
      const int64_t begin = cloud.first_tile * kTile + g * kGroupPoints;
      const int64_t end = begin + std::min<int64_t>(kGroupPoints, cloud.count - g * kGroupPoints);
      uint32_t& first = first_code_[cloud.first_group + g] = UINT32_MAX;
      for (int64_t at = begin; at < end; ++at) {
        const Point3 p{a_[at], b_[at], c_[at]};
        first = std::min(first, morton_code(p, cloud.low, cloud.scale, kCells));
      }
    }
  }

  // Searches the tiles of a group, nearest first.
  template <int kNorm>
  TORCHVOX_INLINE void search_group(const Cloud& cloud, int64_t group, const Point3& q,
                                    NearestKeys& nearest) const {
    const int64_t first = cloud.first_tile + group * kGroup;
    const int64_t count =
        std::min<int64_t>(kGroup, (cloud.count + kTile - 1) / kTile - group * kGroup);
    float bound[kGroup];
    tiles_.measure<kNorm>(q, first, kGroup, [&bound](int64_t i, float d) { bound[i] = d; });
    uint32_t turn[kGroup];  // bounds with the number of the tile in their lowest bits, sorted
    int within = 0;
    for (int t = 0; t < count; ++t) {
      if (bound[t] > nearest.reach()) continue;
      const uint32_t key =
          (float_bits(bound[t]) & ~uint32_t{kGroup - 1}) | static_cast<uint32_t>(t);
      int at = within++;
      for (; at > 0 && turn[at - 1] > key; --at) turn[at] = turn[at - 1];
      turn[at] = key;
    }
    for (int i = 0; i < within; ++i) {
      const int t = static_cast<int>(turn[i] % kGroup);
      if (bound[t] <= nearest.reach()) search_tile<kNorm>(first + t, q, nearest);
    }
  }

  template <int kNorm>
  TORCHVOX_INLINE void search_tile(int64_t tile, const Point3& q, NearestKeys& nearest) const {
    const float *pa = a_.data() + tile * kTile, *pb = b_.data() + tile * kTile,
                *pc = c_.data() + tile * kTile;
    const uint32_t* index = index_.data() + tile * kTile;
    const float reach = nearest.reach();
    float d[kTile];
    uint8_t near[kTile];
#pragma GCC ivdep
    for (int i = 0; i < kTile; ++i) {
      d[i] = norm_of<kNorm>(pa[i] - q.a, pb[i] - q.b, pc[i] - q.c);
      near[i] = d[i] <= reach;
    }
    for (int word = 0; word < kTile / 8; ++word) {
      uint64_t hits;
      std::memcpy(&hits, near + 8 * word, 8);
      for (; hits != 0; hits &= hits - 1) {
        const int i = 8 * word + __builtin_ctzll(hits) / 8;
        nearest.add(d[i], index[i]);
      }
    }
  }

  std::vector<float> a_, b_, c_;
  std::vector<uint32_t> index_;
  CpuBoxes tiles_, groups_;
  std::vector<uint32_t> first_code_;  // of the groups
  std::vector<Cloud> clouds_;
};

constexpr int64_t kQueriesPerTask = 16;

template <class C>
struct Neighbor {
  C dist2;
  uint32_t point;

  bool operator<(const Neighbor& other) const {
    return dist2 < other.dist2 || (dist2 == other.dist2 && point < other.point);
  }
};

// Any number of axes, any dtype and norm: measures every point. `nearest` is scratch.
template <class T>
void search_all(const KnnArgs& args, int64_t row, std::vector<Neighbor<compute_t<T>>>& nearest) {
  using C = compute_t<T>;
  const CloudBatch::Place query = args.query.find(row);
  const KnnCloud cloud = query.cloud < 0 ? KnnCloud{} : KnnCloud::of(args, query.cloud);
  const T* const q = static_cast<const T*>(args.query.data) + query.element;
  const T* const points = static_cast<const T*>(args.points.data) + cloud.base;
  nearest.clear();
  const uint32_t count =
      cloud.points > 0 && is_finite_row(q, args.points.columns) ? cloud.points : 0;
  for (uint32_t i = 0; i < count; ++i) {
    const T* const p = points + i * args.points.row_stride;
    if (is_finite_row(p, args.points.columns)) nearest.push_back({row_distance(args, p, q), i});
  }
  const int64_t kept = std::min<int64_t>(args.k, static_cast<int64_t>(nearest.size()));
  if (kept < static_cast<int64_t>(nearest.size())) {
    std::nth_element(nearest.begin(), nearest.begin() + kept, nearest.end());
  }
  std::sort(nearest.begin(), nearest.begin() + kept);
  for (int64_t j = 0; j < kept; ++j) {
    write_neighbor(args, row, j, nearest[j].dist2, nearest[j].point, cloud.index_base);
  }
  for (int64_t j = kept; j < args.k; ++j) write_none<C>(args, row, j);
}

template <int kNorm>
TORCHVOX_INLINE void search_rows(const KnnArgs& args, const KnnTilesCpu& tiles, int64_t begin,
                                 int64_t end) {
  NearestKeys nearest(args.k);
  std::vector<float> bounds;
  for (int64_t row = begin; row < end; ++row) {
    const CloudBatch::Place query = args.query.find(row);
    KnnCloud cloud{};
    int64_t count = 0;
    if (query.cloud >= 0) {
      cloud = KnnCloud::of(args, query.cloud);
      const Point3 q = load_axes(args, args.query.data, query.element);
      nearest.clear();
      if (is_finite(q)) tiles.search<kNorm>(query.cloud, q, bounds, nearest);
      count = nearest.finish();
    }
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t point = static_cast<uint32_t>(nearest[j]);
      write_neighbor(args, row, j, bit_cast<float>(static_cast<uint32_t>(nearest[j] >> 32)), point,
                     cloud.index_base);
    }
    for (int64_t j = count; j < args.k; ++j) write_none<float>(args, row, j);
  }
}

}  // namespace

KnnKernel choose_knn_kernel(const KnnArgs& args, const Target& target) {
  const int64_t forced = knn_kernel_plan.value();
  const KnnKernel wanted = static_cast<KnnKernel>(forced);
  if (!is_fast(args)) return target.cuda ? KnnKernel::kSelect : KnnKernel::kScan;
  if (!target.cuda) {
    if (forced != kAutomatic) return wanted == KnnKernel::kTiles ? wanted : KnnKernel::kScan;
    return args.query.rows < kScanningQueries && !args.points.packed ? KnnKernel::kScan
                                                                     : KnnKernel::kTiles;
  }
  if (args.k > kMostListed || args.points.clouds == 0 || wanted == KnnKernel::kSelect) {
    return KnnKernel::kSelect;
  }
  if (args.points.packed || wanted == KnnKernel::kTiles) return KnnKernel::kTiles;
  const bool small = (args.k <= kFewListed && args.points.rows <= kScannedForFew) ||
      (args.points.rows <= kScannedPoints && args.queries() * args.points.rows <= kScannedPairs);
  return small || wanted == KnnKernel::kScan ? KnnKernel::kScan : KnnKernel::kTiles;
}

int64_t workspace_bytes_cpu(const KnnArgs&) {
  return 0;  // the host's scratch is as large as a cloud, and lives as long
}

void run_cpu(const KnnArgs& args, void*, const ParallelFor& parallel_for) {
  if (args.k == 0 || args.queries() == 0) return;
  if (choose_knn_kernel(args, Target{}) == KnnKernel::kTiles) {
    const KnnTilesCpu tiles(args, parallel_for);
    for_each_range(parallel_for, args.queries(), kQueriesPerTask, [&](int64_t begin, int64_t end) {
      with_norm(args, [&](auto norm) {
        run_vectorized(knn_cpu_plan, [&] { search_rows<norm>(args, tiles, begin, end); });
      });
    });
    return;
  }
  with_point_type(args.points.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_range(parallel_for, args.queries(), kQueriesPerTask, [&](int64_t begin, int64_t end) {
      std::vector<Neighbor<compute_t<T>>> nearest;
      for (int64_t row = begin; row < end; ++row) {
        search_all<T>(args, row, nearest);
      }
    });
  });
}

}  // namespace torchvox
