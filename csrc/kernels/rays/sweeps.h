// SPDX-License-Identifier: Apache-2.0
//
// Entries of merge_sweeps, crop_points and unpack_points, and their arithmetic.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/rays/transform_points.h"
#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

inline constexpr int kMostSweeps = 64, kMostBoxes = 32, kMostFields = 64;

// float32 or float64 numbers; null: the argument was not given.
struct Reals {
  const void* data = nullptr;
  DType dtype = DType::kDouble;
  // body(numbers) with a pointer of their type.
  template <class Body>
  TORCHVOX_HD auto visit(const Body& body) const {
    return dtype == DType::kDouble ? body(static_cast<const double*>(data))
                                   : body(static_cast<const float*>(data));
  }
  TORCHVOX_HD double operator[](int64_t i) const {
    return visit([&](const auto* numbers) -> double { return numbers[i]; });
  }
};

// Boxes (x0, y0, z0, x1, y1, z1) whose inside is dropped; the bounds are outside.
struct DropBoxes {
  int count = 0;
  float bounds[kMostBoxes][6] = {};

  TORCHVOX_HD bool contain(const float p[3]) const {
    bool in_any = false;
    for (int box = 0; box < count; ++box) {
      bool inside = true;
      for (int k = 0; k < 3; ++k) inside &= p[k] > bounds[box][k] && p[k] < bounds[box][k + 3];
      in_any |= inside;
    }
    return in_any;
  }
};

// Columns of counts [1 + clouds, ..], whose row 0 is the whole call; the first column is the sum of
// the others.
enum SweepCount { kSweepRows, kSweepKept, kSweepInBox, kSweepNotFinite, kSweepCounts };
enum CropCount { kCropRows, kCropKept, kCropOutside, kCropInBox, kCropNotFinite, kCropCounts };

template <int kColumns>
TORCHVOX_HD void count_rows(int32_t* counts, int64_t cloud, int column, int32_t n) {
  for (int64_t row = 0; n != 0 && row <= cloud + 1; row += cloud + 1) {
    atomic_add(&counts[row * kColumns], n);
    atomic_add(&counts[row * kColumns + column], n);
  }
}

struct MergeSweepsArgs {
  CloudBatch sweeps;  // padded float32, one per slot
  Reals poses;  // [slots, num_knots, 3, 4]
  IndexArray order;  // [positions]: slots; not given: all
  int64_t positions = 0;  // at most kMostSweeps
  Reals age;  // [slots], the last column of the output
  Reals times;  // [slots, rows of a sweep]; not given: a sweep has one pose
  int64_t time_strides[2];  // in elements
  Reals knots;  // [slots, num_knots], ascending
  int64_t num_knots = 1;  // two or more with times
  DropBoxes boxes;
  float* points = nullptr;  // [rows(), columns()]
  int32_t* num_points = nullptr;  // [1]
  int32_t* counts = nullptr;  // [1 + slots, kSweepCounts]

  TORCHVOX_HD int64_t rows() const { return positions * sweeps.rows; }
  TORCHVOX_HD int64_t columns() const { return sweeps.columns + (age.data ? 1 : 0); }
};
TORCHVOX_KERNEL_WITHOUT_WORKSPACE(MergeSweepsArgs);

// The sweep at a position of the output, without rows where `order` names no slot; `first`: the
// rows of those before it.
struct Sweep {
  int32_t slot, rows, first;
};
TORCHVOX_HD Sweep sweep_at(const MergeSweepsArgs& args, int64_t position) {
  const int64_t slot = args.order.given() ? args.order[position] : position;
  if (slot < 0 || slot >= args.sweeps.clouds) return {};
  return {static_cast<int32_t>(slot), static_cast<int32_t>(args.sweeps.cloud(slot).points), 0};
}

// Where row i of `rows` goes, before which `kept` are kept: behind those, or, where it is not kept,
// to the end, in front of the others that are not. So the rows of any range fill two ranges.
TORCHVOX_HD int64_t packed_row(bool keeps, int64_t kept, int64_t i, int64_t rows) {
  return keeps ? kept : rows - 1 - (i - kept);
}

// Moves row i of a slot to the target frame, to NaN where it is dropped; returns its column of the
// counts.
TORCHVOX_HD SweepCount move_point(const MergeSweepsArgs& args, int64_t slot, int64_t i,
                                  const float p[3], float q[3]) {
  for (int k = 0; k < 3; ++k) q[k] = bit_cast<float>(0x7fc00000u);
  const bool deskews = args.times.data != nullptr;
  const double time =
      deskews ? args.times[slot * args.time_strides[0] + i * args.time_strides[1]] : 0;
  if (!is_finite_row(p, 3) || !is_finite(time)) return kSweepNotFinite;
  if (args.boxes.contain(p)) return kSweepInBox;
  int64_t pose = slot * args.num_knots;
  double share = 0;
  if (deskews) {
    share = args.knots.visit([&](const auto* knots) {
      pose = last_where(pose, pose + args.num_knots - 1,
                        [&](int64_t k) { return static_cast<double>(knots[k]) <= time; });
      const double first = knots[pose], step = knots[pose + 1] - first;
      const double part = step > 0 ? (time - first) / step : 0;
      return part > 0 ? (part < 1 ? part : 1) : 0;
    });
  }
  const double from[3] = {p[0], p[1], p[2]};
  float moved[3];
  args.poses.visit([&](const auto* poses) {
    const auto under = [&](int64_t matrix, int axis) {
      double row[4];
      for (int k = 0; k < 4; ++k) row[k] = poses[matrix * 12 + axis * 4 + k];
      return transform(row, from);
    };
    for (int axis = 0; axis < 3; ++axis) {
      double to = under(pose, axis);
      if (deskews) to = to + share * (under(pose + 1, axis) - to);
      moved[axis] = static_cast<float>(to);
    }
  });
  if (!is_finite_row(moved, 3)) return kSweepNotFinite;
  for (int k = 0; k < 3; ++k) q[k] = moved[k];
  return kSweepKept;
}

// Row i of a slot.
TORCHVOX_HD const float* sweep_row(const MergeSweepsArgs& args, int64_t slot, int64_t i) {
  return static_cast<const float*>(args.sweeps.data) + args.sweeps.place(slot, i).element;
}

// Column c of the output, of a row that moves to q.
TORCHVOX_HD float merged_value(const MergeSweepsArgs& args, int64_t slot, const float* in,
                               const float q[3], int64_t c) {
  if (c < 3) return q[c];
  return c < args.sweeps.columns ? in[c] : quiet(static_cast<float>(args.age[slot]));
}

inline constexpr int64_t kCropTile = 256;  // rows of a block on the GPU

struct CropPointsArgs {
  CloudBatch points;  // float32: padded, or one packed cloud
  DropBoxes range, boxes;  // one at most, outside of which rows are dropped; lower bounds are in it
  int64_t finite_columns = 3;  // that must be finite
  float* out = nullptr;  // [clouds, points.rows, points.columns]
  int32_t* num_points = nullptr;  // [clouds]
  int32_t* counts = nullptr;  // [1 + clouds, kCropCounts]

  TORCHVOX_HD int64_t tiles() const { return points.rows / kCropTile + 1; }  // of a cloud
  TORCHVOX_HD const float* row(int64_t cloud, int64_t i) const {
    return static_cast<const float*>(points.data) + points.place(cloud, i).element;
  }
  // The column of a row in the counts, kCropRows for one that is no point.
  TORCHVOX_HD CropCount column(int64_t cloud, int64_t i) const {
    if (i >= points.cloud(cloud).points) return kCropRows;
    const float* const p = row(cloud, i);
    if (!is_finite_row(p, finite_columns)) return kCropNotFinite;
    for (int k = 0; k < 3 * range.count; ++k) {
      if (p[k] < range.bounds[0][k] || p[k] >= range.bounds[0][k + 3]) return kCropOutside;
    }
    return boxes.contain(p) ? kCropInBox : kCropKept;
  }
};
// A ticket and a status per tile.
TORCHVOX_KERNEL_WITH_WORKSPACE(CropPointsArgs, 8 * (1 + args.points.clouds * args.tiles()));

struct UnpackPointsArgs {
  struct Field {
    int32_t offset;
    char kind;  // i, u or f, little-endian
    uint8_t bytes;
  };
  const uint8_t* data = nullptr;
  int64_t clouds = 1, cloud_stride = 0;
  int64_t points = 0, point_step = 1;  // of a cloud; strides and steps in bytes
  int64_t columns = 0;  // at most kMostFields
  Field fields[kMostFields];
  const double *shift = nullptr, *scale = nullptr;  // [columns], or null
  float* out = nullptr;  // [clouds, points, columns]
};

// The bytes of a field in the low bits.
TORCHVOX_HD uint64_t field_bits(const uint8_t* at, int bytes) {
#ifdef __CUDA_ARCH__
  // The aligned words that hold a byte of it: two loads of a float at any address, not four.
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto* const words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
  const int skipped = static_cast<int>(address & 3), shift = 8 * skipped;
  const uint32_t low = words[0], middle = skipped + bytes > 4 ? words[1] : 0;
  const uint32_t high = skipped + bytes > 8 ? words[2] : 0;
  const uint64_t bits =
      uint64_t{__funnelshift_r(middle, high, shift)} << 32 | __funnelshift_r(low, middle, shift);
  return bits & ~uint64_t{0} >> (64 - 8 * bytes);
#else
  uint64_t bits = 0;
  for (int k = 0; k < bytes; ++k) bits |= uint64_t{at[k]} << 8 * k;
  return bits;
#endif
}

// Writes one value of one point.
TORCHVOX_HD void unpack_value(const UnpackPointsArgs& args, int64_t i) {
  const int64_t point = divide(i, args.columns), c = i - point * args.columns;
  const bool dense = args.cloud_stride == args.points * args.point_step;
  const int64_t cloud = dense ? 0 : divide(point, args.points);
  const auto field = args.fields[c];
  const uint64_t bits =
      field_bits(args.data + cloud * args.cloud_stride +
                     (point - cloud * args.points) * args.point_step + field.offset,
                 field.bytes);
  const int unused = 64 - 8 * field.bytes;
  double value;
  if (field.kind == 'f') {
    value = unused ? bit_cast<float>(uint32_t(bits)) : bit_cast<double>(bits);
  } else if (field.kind == 'i') {
    value = static_cast<double>(bit_cast<int64_t>(bits << unused) >> unused);
  } else {
    value = static_cast<double>(bits);
  }
  if (args.shift) value = value - args.shift[c];
  if (args.scale) value = value * args.scale[c];
  args.out[i] = quiet(static_cast<float>(value));
}
TORCHVOX_MAP(UnpackPointsArgs, unpack_value, args.clouds* args.points* args.columns, 4096, 256);

}  // namespace torchvox
