// SPDX-License-Identifier: Apache-2.0
//
// The spatial order of a cloud on the CPU: a radix sort of Morton codes, then median splits of
// chunks of 1,024 points down to tiles.
#include <algorithm>

#include "csrc/kernels/spatial/candidates.h"
#include "csrc/kernels/spatial/curves.h"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {
namespace {

constexpr int kAxisBits = 10;  // bits per axis of a Morton code
constexpr int64_t kUnordered = 2 * kCpuTile;  // too few points to be worth an order
constexpr int64_t kChunk = 1024;

struct Item {
  uint32_t key, index;
};

struct Local {
  Point3 p;
  uint32_t index;
};

// Median splits along the longest axis, down to single tiles.
void split(Local* begin, Local* end) {
  if (end - begin <= kCpuTile) return;
  Point3 low = begin->p, high = begin->p;
  for (const Local* item = begin; item != end; ++item) {
    low.a = std::min(low.a, item->p.a), high.a = std::max(high.a, item->p.a);
    low.b = std::min(low.b, item->p.b), high.b = std::max(high.b, item->p.b);
    low.c = std::min(low.c, item->p.c), high.c = std::max(high.c, item->p.c);
  }
  const float a = high.a - low.a, b = high.b - low.b, c = high.c - low.c;
  // The left part is a power of two of tiles, so that tiles start at splits.
  int64_t left = kCpuTile;
  while (2 * left < end - begin) left *= 2;
  const auto by = [&](float Point3::*axis) {
    std::nth_element(begin, begin + left, end,
                     [axis](const Local& x, const Local& y) { return x.p.*axis < y.p.*axis; });
  };
  if (a >= b && a >= c) {
    by(&Point3::a);
  } else if (b >= c) {
    by(&Point3::b);
  } else {
    by(&Point3::c);
  }
  split(begin, begin + left);
  split(begin + left, end);
}

}  // namespace

std::vector<uint32_t> spatial_order_cpu(const CandidatePoints& args, const CandidateCloud& cloud) {
  std::vector<Item> items;
  items.reserve(cloud.points);
  float low[3] = {INFINITY, INFINITY, INFINITY}, high[3] = {-INFINITY, -INFINITY, -INFINITY};
  for (uint32_t i = 0; i < cloud.points; ++i) {
    const Point3 p = load_point(args, cloud, i);
    if (!is_candidate(args, p)) continue;
    const float axes[3] = {p.a, p.b, p.c};
    for (int axis = 0; axis < 3; ++axis) {
      low[axis] = std::min(low[axis], axes[axis]);
      high[axis] = std::max(high[axis], axes[axis]);
    }
    items.push_back({0, i});
  }
  const int64_t count = static_cast<int64_t>(items.size());
  std::vector<uint32_t> order(count);
  if (count > kUnordered) {
    constexpr uint32_t kCells = 1u << kAxisBits;
    const float scale = scale_of(low, high, kCells);
    for (Item& item : items) {
      item.key = morton_code(load_point(args, cloud, item.index), low, scale, kCells);
    }
    std::vector<Item> other(items.size());
    const Item* const sorted = radix_sort(items.data(), other.data(), count, 3 * kAxisBits);
    std::vector<Local> chunk;
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const int64_t size = std::min(kChunk, count - begin);
      chunk.resize(size);
      for (int64_t i = 0; i < size; ++i) {
        const uint32_t index = sorted[begin + i].index;
        chunk[i] = {load_point(args, cloud, index), index};
      }
      split(chunk.data(), chunk.data() + size);
      for (int64_t i = 0; i < size; ++i) order[begin + i] = chunk[i].index;
    }
  } else {
    for (int64_t i = 0; i < count; ++i) order[i] = items[i].index;
  }
  return order;
}

}  // namespace torchvox
