// SPDX-License-Identifier: Apache-2.0
//
// Entry of group_mlp_max: the gather, a shared MLP and the maximum over each ball in one pass. On
// the GPU 16-bit layers run on tensor cores: prepare.cu packs the layers and computes the features'
// part of the first one, mma.cu everything else, with the matrix products of mma_tiles.cuh.
// group_mlp_max.cu handles other types. CPU, and the choice of the plan: group_mlp_max_cpu.cpp.
#pragma once

#include "csrc/kernels/neighbors/query_and_group.h"

namespace torchvox {

inline constexpr int kMostMlpLayers = 8;

// One layer: max(weight x + bias, 0), both contiguous in the dtype of the output.
struct MlpLayer {
  const void* weight = nullptr;  // [out, in]
  const void* bias = nullptr;  // [out]
  int64_t in = 0, out = 0;
};

// out[row] = maximum over the slots of a row of the layers' output for (p - q, f), where p is the
// point that idx[row, slot] names, f its features and q the query of the row. Only the first
// count[row] slots are read, or one if there are no hits. An index outside the cloud's block stands
// for zeros, including the coordinates.
struct GroupMlpArgs {
  CloudBatch points, query;  // padded, of one dtype and number of columns
  const void* features = nullptr;  // [clouds, points, channels], contiguous
  DType mlp_dtype = DType::kFloat;  // of features, layers and out
  int64_t channels = 0;
  const int32_t* idx = nullptr;  // [clouds * queries, slots], rows idx_stride apart
  int64_t slots = 0, idx_stride = 0;
  const int32_t* count = nullptr;  // [clouds * queries], count_stride apart
  int64_t count_stride = 1;
  bool use_xyz = true, features_first = false;
  double divisor = 0;  // of the relative coordinates; 0: none
  int layers = 0;
  MlpLayer layer[kMostMlpLayers];
  void* out = nullptr;  // [clouds * queries, layer[layers - 1].out]

  TORCHVOX_HD int64_t rows() const { return query.total_rows(); }
};

TORCHVOX_KERNEL(GroupMlpArgs);

// CUDA, 16-bit layers: 0 portable, 1 tensor cores. These differ in rounding.
inline const PlanOverride group_mlp_plan{"group_mlp"};
inline const PlanOverride group_mlp_cpu_plan{"group_mlp_cpu"};  // see run_vectorized()

// Slots of a row that can change its maximum: not the repeated ones that fill it up.
TORCHVOX_HD int64_t used_slots(const GroupMlpArgs& args, int64_t row) {
  const int64_t hits = args.count[row * args.count_stride];
  if (args.slots == 0) return 0;
  return hits < 1 ? 1 : (hits < args.slots ? hits : args.slots);
}

// Where a slot reads from.
struct MlpSlot {
  int64_t point;  // element of its coordinates, or -1 if the index is outside
  int64_t query;  // element of the query's coordinates
  int64_t feature;  // row of its features

  static TORCHVOX_HD MlpSlot of(const GroupMlpArgs& args, int64_t row, int64_t slot) {
    const int64_t b = row / args.query.rows, i = args.idx[row * args.idx_stride + slot];
    const bool inside = i >= 0 && i < args.points.rows;
    return {inside ? b * args.points.cloud_stride + i * args.points.row_stride : -1,
            b * args.query.cloud_stride + (row - b * args.query.rows) * args.query.row_stride,
            b * args.points.rows + i};
  }
};

// Coordinate `axis` of a slot minus that of its query, as one rounded difference.
template <class C>
TORCHVOX_HD C relative_coordinate(const GroupMlpArgs& args, const MlpSlot& from, int64_t axis) {
  const C p =
      from.point < 0 ? C{0} : load_wide<C>(args.points.dtype, args.points.data, from.point + axis);
  const C q = load_wide<C>(args.points.dtype, args.query.data, from.query + axis);
  const C relative = round_to(args.points.dtype, p - q);
  if (args.divisor == 0) return relative;
  return round_to(args.points.dtype, relative / static_cast<C>(args.divisor));
}

// Input `column` of the first layer for a slot, in the order of its weights.
template <class T>
TORCHVOX_HD compute_t<T> mlp_input(const GroupMlpArgs& args, const MlpSlot& from, int64_t column) {
  using C = compute_t<T>;
  const int64_t dims = args.use_xyz ? args.points.columns : 0;
  const int64_t axis = args.features_first ? column - args.channels : column;
  if (axis >= 0 && axis < dims) {
    // Differences are taken in the type of the points, then rounded to that of the sums.
    return args.points.dtype == DType::kDouble
        ? static_cast<C>(relative_coordinate<double>(args, from, axis))
        : static_cast<C>(relative_coordinate<float>(args, from, axis));
  }
  if (from.point < 0) return 0;
  const int64_t channel = args.features_first ? column : column - dims;
  return widen(static_cast<const T*>(args.features)[from.feature * args.channels + channel]);
}

// A layer's output from its sum: max(sum, 0), or the one quiet NaN, rounded to T.
template <class T, class C>
TORCHVOX_HD C mlp_output(C sum) {
  return widen(narrow<T>(is_nan(sum) ? quiet(sum) : (sum > 0 ? sum : C{0})));
}
// The larger of two outputs; NaN counts as the largest.
template <class C>
TORCHVOX_HD C larger_output(C a, C b) {
  return b > a || is_nan(b) ? b : a;
}

// The first columns of coordinates and of features in the weights of the first layer.
TORCHVOX_HD int64_t first_axis_column(const GroupMlpArgs& args) {
  return args.features_first ? args.channels : 0;
}
TORCHVOX_HD int64_t first_feature_column(const GroupMlpArgs& args) {
  return args.use_xyz && !args.features_first ? args.points.columns : 0;
}

// The layout of the layers for the tensor-core kernels, one block of bytes: biases and the weights
// of the coordinates as floats, then the weights of the other layers in the chunks of
// mma_tiles.cuh. All layers except the last are `width` groups of 32 channels wide, padded with
// zeros.
struct MlpPacked {
  int width = 0, last_groups = 0;
  int bias[kMostMlpLayers] = {};  // first float of a layer's bias
  int axes = 0;  // first float of the coordinates' weights, one axis after another
  int floats = 0;
  int chunk[kMostMlpLayers] = {};  // first 16-byte chunk of a layer, from the begin of the block
  int chunks = 0;  // of the whole block, including the floats

  int64_t bytes() const { return int64_t{16} * chunks; }
};

inline constexpr int kMlpThreads = 256;  // per block of the tensor-core kernels
inline constexpr int kMlpTileRows = 16;  // slots per tile of the portable kernel
inline constexpr int kMostResidentWidth = 4;  // groups; up to this, all layers must be resident

struct GroupMlpPlan {
  bool tensor_cores = false;
  MlpPacked packed;
  int resident_chunks = 0;  // the first chunks of the block that shared memory holds
  int shared_bytes = 0;
  int shared_limit = 0;  // the same for all calls, since several threads may set it for a kernel
  int blocks = 0;

  // Portable kernel.
  int tile = 0;  // rows
  int64_t widest = 0;  // channels of its two buffers
  bool in_shared = false;
};

GroupMlpPlan make_group_mlp_plan(const GroupMlpArgs& args, const Target& target);

}  // namespace torchvox
