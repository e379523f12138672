// SPDX-License-Identifier: Apache-2.0
//
// Exact nearest neighbors on the host, pruned by boxes on two levels: tiles of 64 points, groups
// of 16 tiles. A query first searches the group in whose stretch of the Morton curve it lies, then
// those whose boxes are still within reach: of their tiles, the few that may hold a neighbor. The
// loops are plain and over structures of arrays, so that the compiler turns them into the widest
// vectors of the chosen instruction set.
#pragma once

#include <algorithm>
#include <vector>

#include "csrc/kernels/neighbors/knn/common.h"
#include "csrc/kernels/spatial/candidates.h"

namespace torchvox {

// Bits of the distance, then the index: keys order as the contract orders neighbors, as signed
// integers too, for which processors have more instructions.
using KnnKey = int64_t;
inline constexpr KnnKey kNoKey = INT64_MAX;

// The k smallest keys so far. Few are kept in order, in one of two rows; of many, twice as many as
// wanted are gathered before the larger half is dropped.
class KnnFound {
 public:
  explicit KnnFound(int64_t k) : k_(k), width_(k <= kOrdered ? (k + kPad - 1) / kPad * kPad : 0) {
    keys_.assign(is_ordered() ? 2 * (kPad + width_) : 2 * k, INT64_MIN);
  }

  void clear() {
    count_ = 0;
    last_ = kNoKey;
    row_ = kPad;
    if (is_ordered()) std::fill_n(keys_.begin() + row_, width_, kNoKey);
  }
  // No point farther away is a neighbor.
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
  // Leaves the keys in order; gives how many there are.
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

  // From one row into the other, every key past the new one a place further: no branch depends on
  // where it belongs. What lies before a row is smaller than any key.
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
// point divided by their size, plus its number: ranges that never overlap.
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
    // A group reads the boxes of 16 tiles, of the next cloud too; those are not used.
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
  TORCHVOX_INLINE void search(int64_t b, const Point3& q, std::vector<float>& bounds,
                              KnnFound& found) const {
    const Cloud& cloud = clouds_[b];
    if (cloud.groups == 0) return;
    const uint32_t* const codes = first_code_.data() + cloud.first_group;
    const uint32_t code = morton_code(q, cloud.low, cloud.scale, kCells);
    const int64_t home = std::upper_bound(codes + 1, codes + cloud.groups, code) - codes - 1;
    search_group(cloud, home, q, found);
    if (static_cast<int64_t>(bounds.size()) < cloud.groups) bounds.resize(cloud.groups);
    float* const bound = bounds.data();
    groups_.measure(q, cloud.first_group, cloud.groups,
                    [bound](int64_t i, float d) { bound[i] = d; });
    float reach = found.reach();
    for (int64_t g = 0; g < cloud.groups; ++g) {
      if (bound[g] > reach || g == home) continue;
      search_group(cloud, g, q, found);
      reach = found.reach();
    }
  }

 private:
  struct Cloud {
    uint32_t skipped = 0;  // of its first points, which belong to clouds before it
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

  // Where each group begins on the Morton curve. A wrong answer would cost speed only.
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

  // The tiles of a group, nearest first.
  TORCHVOX_INLINE void search_group(const Cloud& cloud, int64_t group, const Point3& q,
                                    KnnFound& found) const {
    const int64_t first = cloud.first_tile + group * kGroup;
    const int64_t count =
        std::min<int64_t>(kGroup, (cloud.count + kTile - 1) / kTile - group * kGroup);
    float bound[kGroup];
    tiles_.measure(q, first, kGroup, [&bound](int64_t i, float d) { bound[i] = d; });
    uint32_t turn[kGroup];  // a bound without its lowest bits, and the tile in their place
    int within = 0;
    for (int t = 0; t < count; ++t) {
      if (bound[t] > found.reach()) continue;
      const uint32_t key =
          (float_bits(bound[t]) & ~uint32_t{kGroup - 1}) | static_cast<uint32_t>(t);
      int at = within++;
      for (; at > 0 && turn[at - 1] > key; --at) turn[at] = turn[at - 1];
      turn[at] = key;
    }
    for (int i = 0; i < within; ++i) {
      const int t = static_cast<int>(turn[i] % kGroup);
      if (bound[t] <= found.reach()) search_tile(first + t, q, found);
    }
  }

  TORCHVOX_INLINE void search_tile(int64_t tile, const Point3& q, KnnFound& found) const {
    const float *pa = a_.data() + tile * kTile, *pb = b_.data() + tile * kTile,
                *pc = c_.data() + tile * kTile;
    const uint32_t* index = index_.data() + tile * kTile;
    const float reach = found.reach();
    float d[kTile];
    uint8_t near[kTile];
#pragma GCC ivdep
    for (int i = 0; i < kTile; ++i) {
      d[i] = dist2(pa[i] - q.a, pb[i] - q.b, pc[i] - q.c);
      near[i] = d[i] <= reach;
    }
    for (int word = 0; word < kTile / 8; ++word) {
      uint64_t hits;
      std::memcpy(&hits, near + 8 * word, 8);
      for (; hits != 0; hits &= hits - 1) {
        const int i = 8 * word + __builtin_ctzll(hits) / 8;
        found.add(d[i], index[i]);
      }
    }
  }

  std::vector<float> a_, b_, c_;
  std::vector<uint32_t> index_;
  CpuBoxes tiles_, groups_;
  std::vector<uint32_t> first_code_;  // of the groups
  std::vector<Cloud> clouds_;
};

}  // namespace torchvox
