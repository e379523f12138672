// SPDX-License-Identifier: Apache-2.0
//
// What every algorithm of furthest point sampling shares, on the host and on the device: which
// points a cloud has, which of them are candidates, where a sample is written, where it starts.
#pragma once

#include "csrc/kernels/sampling/fps/furthest_point_sample.h"

namespace torchvox {

// Cloud b of a call: its points, and its slots, which lie inside the outputs.
struct FpsCloud : CandidateCloud {
  int64_t slot;  // its first output slot
  int64_t samples;  // slots that the rules fill; the rest, up to `slots`, hold idx -1, dist2 0
  int64_t slots;
  int64_t index_base;  // added to the index of a point

  static TORCHVOX_HD FpsCloud of(const FpsArgs& args, int64_t b) {
    FpsCloud cloud{CandidateCloud::of(args, b), 0, 0, 0, 0};
    if (args.points.packed) {
      cloud.slot = clamp_index(args.out_offsets[b], 0, args.samples);
      cloud.slots = clamp_index(args.out_offsets[b + 1], cloud.slot, args.samples) - cloud.slot;
      cloud.samples = cloud.slots;
      cloud.index_base = args.local_index ? 0 : cloud.first;
    } else {
      cloud.slot = b * args.samples;
      cloud.slots = args.samples;
      cloud.samples =
          args.counts.given() ? clamp_index(args.counts[b], 0, args.samples) : args.samples;
      cloud.index_base = 0;
    }
    if (cloud.points == 0) cloud.samples = 0;
    return cloud;
  }
};

// The same tests for any number of axes and for doubles, straight from memory.
template <class T>
TORCHVOX_HD bool is_finite_row(const FpsArgs& args, const T* row) {
  for (int64_t axis = 0; axis < args.points.columns; ++axis) {
    if (!is_finite(widen(row[axis]))) return false;
  }
  return true;
}
template <class T>
TORCHVOX_HD bool is_candidate_row(const FpsArgs& args, const T* row) {
  if (!is_finite_row(args, row)) return false;
  return !args.skip_origin || !near_origin(widen(row[0]), widen(row[1]), widen(row[2]));
}
template <class T>
TORCHVOX_HD compute_t<T> dist2_rows(const FpsArgs& args, const T* p, const T* q) {
  using C = compute_t<T>;
  if (args.order == DistOrder::kPn2) {
    const C dx = widen(p[0]) - widen(q[0]), dy = widen(p[1]) - widen(q[1]),
            dz = widen(p[2]) - widen(q[2]);
    return fma_rn(dz, dz, fma_rn(dx, dx, dy * dy));
  }
  C sum = 0;
  for (int64_t axis = 0; axis < args.points.columns; ++axis) {
    const C d = widen(p[axis]) - widen(q[axis]);
    sum = fma_rn(d, d, sum);
  }
  return sum;
}

enum class PointClass { kCandidate, kSkipped, kNonFinite };

// Of any point of any type; the slow way, for starts and exhausted clouds.
TORCHVOX_HD PointClass classify(const FpsArgs& args, const FpsCloud& cloud, uint32_t i) {
  if (args.points.dtype == DType::kDouble) {
    const double* row = static_cast<const double*>(args.points.data) + cloud.base +
        int64_t{i} * args.points.row_stride;
    if (!is_finite_row(args, row)) return PointClass::kNonFinite;
    return is_candidate_row(args, row) ? PointClass::kCandidate : PointClass::kSkipped;
  }
  const int64_t at = cloud.base + i * args.points.row_stride;
  for (int64_t axis = 0; axis < args.points.columns; ++axis) {
    if (!is_finite(load_coordinate(args.points.data, args.points.dtype, at + axis))) {
      return PointClass::kNonFinite;
    }
  }
  if (!args.skip_origin) return PointClass::kCandidate;
  return is_candidate(args, load_point(args, cloud, i)) ? PointClass::kCandidate
                                                        : PointClass::kSkipped;
}

// Start s as the caller gave it, -1 unless it is a finite point of the cloud.
TORCHVOX_HD int64_t given_start(const FpsArgs& args, const FpsCloud& cloud, int64_t s) {
  const int64_t i =
      args.start_idx.given() ? args.start_idx[cloud.number * args.starts + s] : args.start;
  if (i < 0 || i >= cloud.points) return -1;
  return classify(args, cloud, static_cast<uint32_t>(i)) == PointClass::kNonFinite ? -1 : i;
}

// The next non-finite point at or after `cursor`, which moves past it; -1 when there is none.
TORCHVOX_HD int64_t next_nonfinite(const FpsArgs& args, const FpsCloud& cloud, uint32_t& cursor) {
  while (cursor < cloud.points) {
    const uint32_t i = cursor++;
    if (classify(args, cloud, i) == PointClass::kNonFinite) return i;
  }
  return -1;
}

// What a start slot holds when the given start is no valid point and no candidate can stand in.
TORCHVOX_HD int64_t start_without_candidates(const FpsArgs& args, const FpsCloud& cloud,
                                             uint32_t& cursor) {
  if (args.repeat) return 0;
  return args.nonfinite_last ? next_nonfinite(args, cloud, cursor) : -1;
}

template <class C>
TORCHVOX_HD void write_sample(const FpsArgs& args, const FpsCloud& cloud, int64_t s, int64_t i,
                              C dist2) {
  const int64_t at = cloud.slot + s;
  args.idx[at] = static_cast<int32_t>(i < 0 ? -1 : i + cloud.index_base);
  if (args.points.dtype == DType::kDouble) {
    static_cast<double*>(args.dist2)[at] = dist2;
  } else {
    static_cast<float*>(args.dist2)[at] = static_cast<float>(dist2);
  }
}

// dist2 of a start slot that holds point i, found by the rule above when `resolved` is false.
TORCHVOX_HD float start_dist2(const FpsArgs& args, int64_t i, bool resolved) {
  return resolved || (args.repeat && i >= 0) ? bit_cast<float>(0x7f800000u) : 0.0f;
}

TORCHVOX_HD float initial_dist2(const FpsArgs& args) {
  return static_cast<float>(args.init_dist2) + 0.0f;  // never -0, whose bits sort below -1
}

}  // namespace torchvox
