// SPDX-License-Identifier: Apache-2.0
//
// group_mlp_max on the CPU, in tasks of 16 balls: 64 slots at a time go through all layers between
// two buffers, the sums of four rows by 128 bytes of outputs in registers. Also the plan of the
// GPU, from sizes alone: which kernel, the layout of the packed layers, blocks and shared memory.
#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"

namespace torchvox {
namespace {

constexpr int64_t kChannels = 32;  // per group
constexpr int64_t kChunkBytes = 16;
constexpr int64_t kGroupPairChunks = 128;  // of the weights between two groups
constexpr int kWidths[] = {1, 2, 3, 4, 8};
constexpr int64_t kMostChunks = int64_t{1} << 24;

int64_t groups_of(int64_t channels) { return (channels + kChannels - 1) / kChannels; }

MlpPacked pack_layout(const GroupMlpArgs& args, int width) {
  MlpPacked packed;
  packed.width = width;
  const int last = args.layers - 1;
  packed.last_groups = last == 0 ? width : static_cast<int>(groups_of(args.layer[last].out));
  int floats = 0;
  for (int l = 0; l < args.layers; ++l) {
    packed.bias[l] = floats;
    floats += static_cast<int>(kChannels) * (l == last ? packed.last_groups : width);
  }
  packed.axes = floats;
  packed.floats = floats + 3 * static_cast<int>(kChannels) * width;
  packed.chunks = packed.floats / 4;
  packed.chunk[0] = packed.chunks;
  for (int l = 1; l < args.layers; ++l) {
    packed.chunk[l] = packed.chunks;
    packed.chunks +=
        static_cast<int>(kGroupPairChunks) * width * (l == last ? packed.last_groups : width);
  }
  return packed;
}

// Whether the tensor cores can run a call; fills in the plan.
bool plan_tensor_cores(const GroupMlpArgs& args, const Target& target, GroupMlpPlan& plan) {
  if (target.compute_capability < 80) return false;
  if (args.mlp_dtype != DType::kHalf && args.mlp_dtype != DType::kBFloat16) return false;
  if (args.use_xyz && args.points.columns != 3) return false;
  if (args.points.dtype != DType::kFloat && args.points.dtype != args.mlp_dtype) return false;
  const int last = args.layers - 1;
  int64_t widest = 1;
  for (int l = 0; l <= last; ++l) {
    if (l < last || last == 0) widest = std::max(widest, groups_of(args.layer[l].out));
    if (args.layer[l].out > kMostChunks) return false;
  }
  const int64_t prepared = groups_of(args.channels) * kGroupPairChunks * kChunkBytes;
  if (prepared + kChannels * 4 > target.shared_bytes) return false;  // with the bias
  for (const int width : kWidths) {
    if (width < widest) continue;
    if (width * groups_of(args.layer[last].out) * kGroupPairChunks > kMostChunks) return false;
    const MlpPacked packed = pack_layout(args, width);
    const int64_t best = int64_t{kMlpThreads / 32} * packed.last_groups * 64;
    int64_t resident = packed.floats / 4;
    for (int l = 1; l <= last; ++l) {
      const int64_t end = l == last ? packed.chunks : packed.chunk[l + 1];
      if (end * kChunkBytes + best <= target.shared_bytes) resident = end;
    }
    if (resident * kChunkBytes + best > target.shared_bytes) return false;
    if (width <= kMostResidentWidth && resident < packed.chunks) continue;
    plan.packed = packed;
    plan.resident_chunks = static_cast<int>(resident);
    plan.shared_bytes = static_cast<int>(resident * kChunkBytes + best);
    const int resident_blocks =
        width <= 2 && 2 * (plan.shared_bytes + 1024) <= target.shared_bytes + 1024 ? 2 : 1;
    plan.blocks = static_cast<int>(std::min<int64_t>(
        int64_t{resident_blocks} * std::max(target.multiprocessors, 1), args.rows()));
    return true;
  }
  return false;
}

void plan_portable(const GroupMlpArgs& args, const Target& target, GroupMlpPlan& plan) {
  plan.widest = args.layer[0].in;
  for (int l = 0; l < args.layers; ++l) plan.widest = std::max(plan.widest, args.layer[l].out);
  const int64_t value = args.mlp_dtype == DType::kDouble ? 8 : 4;
  plan.tile = kMlpTileRows;
  const int64_t bytes = 2 * plan.tile * plan.widest * value;
  plan.in_shared = bytes <= target.shared_bytes;
  plan.shared_bytes = plan.in_shared ? static_cast<int>(bytes) : 0;
  const int64_t per_multiprocessor =
      plan.in_shared ? std::clamp<int64_t>(target.shared_bytes / (bytes + 1024), 1, 8) : 2;
  plan.blocks = static_cast<int>(
      std::min<int64_t>(per_multiprocessor * std::max(target.multiprocessors, 1), args.rows()));
}

constexpr int64_t kBallsPerTask = 16;
constexpr int64_t kTileRows = 64;  // slots that go through all layers together
constexpr int64_t kBlockRows = 4;
constexpr int64_t kBlockBytes = 128;  // of outputs

// The layers for the host's loops: weights [in, padded out] and biases, widened, outputs padded
// with zeros to whole blocks.
template <class C>
struct WideLayers {
  static constexpr int64_t kBlock = kBlockBytes / sizeof(C);

  int64_t padded[kMostMlpLayers];
  C* weight[kMostMlpLayers];
  C* bias[kMostMlpLayers];
  int64_t widest;

  WideLayers(const GroupMlpArgs& args, Workspace& workspace) : widest(args.layer[0].in) {
    for (int l = 0; l < args.layers; ++l) {
      padded[l] = (args.layer[l].out + kBlock - 1) / kBlock * kBlock;
      weight[l] = workspace.take<C>(args.layer[l].in * padded[l]);
      bias[l] = workspace.take<C>(padded[l]);
      widest = std::max(widest, padded[l]);
    }
  }

  template <class T>
  void fill(const GroupMlpArgs& args, const ParallelFor& parallel_for) const {
    for (int l = 0; l < args.layers; ++l) {
      const MlpLayer& layer = args.layer[l];
      const auto value = [&](const void* data, int64_t out, int64_t at) {
        return out < layer.out ? widen(static_cast<const T*>(data)[at]) : C{0};
      };
      for (int64_t o = 0; o < padded[l]; ++o) bias[l][o] = value(layer.bias, o, o);
      for_each_index(parallel_for, layer.in, 64, [&](int64_t i) {
        for (int64_t o = 0; o < padded[l]; ++o) {
          weight[l][i * padded[l] + o] = value(layer.weight, o, o * layer.in + i);
        }
      });
    }
  }
};

// A vector of 64 bytes, the widest of the instruction sets: others process it in parts, and unlike
// an array its sums stay in registers.
template <class C>
struct Values {
  static constexpr int kCount = 64 / sizeof(C);
  typedef C Vector __attribute__((vector_size(64)));
  Vector at;

  static TORCHVOX_INLINE void load(const C* from, Values& to) { memcpy(&to.at, from, 64); }
  // to = x * weight + to, rounded once, as fma_rn.
  static TORCHVOX_INLINE void add_product(C x, const Values& weight, Values& to) {
#pragma GCC unroll 16
    for (int j = 0; j < kCount; ++j) to.at[j] = fma_rn(x, weight.at[j], to.at[j]);
  }
};

// to[r][o] = output of layer l for kBlockRows rows of `from`, all of its outputs.
template <class T, class C>
TORCHVOX_INLINE void layer_of_rows(const WideLayers<C>& wide, int l, int64_t in, const C* from,
                                   C* to) {
  constexpr int64_t kBlock = WideLayers<C>::kBlock;
  const int64_t out = wide.padded[l], step = wide.widest;
  for (int64_t o = 0; o < out; o += kBlock) {
    Values<C> sum[kBlockRows][2], weight[2];
    for (int half = 0; half < 2; ++half) {
      Values<C>::load(wide.bias[l] + o + half * Values<C>::kCount, sum[0][half]);
      for (int64_t r = 1; r < kBlockRows; ++r) sum[r][half] = sum[0][half];
    }
    for (int64_t i = 0; i < in; ++i) {
      const C* weights = wide.weight[l] + i * out + o;
      Values<C>::load(weights, weight[0]);
      Values<C>::load(weights + Values<C>::kCount, weight[1]);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kBlockRows; ++r) {
        const C x = from[r * step + i];
        Values<C>::add_product(x, weight[0], sum[r][0]);
        Values<C>::add_product(x, weight[1], sum[r][1]);
      }
    }
    for (int64_t r = 0; r < kBlockRows; ++r) {
      C values[kBlock];
      memcpy(values, sum[r], sizeof(values));
      for (int64_t j = 0; j < kBlock; ++j) to[r * step + o + j] = mlp_output<T>(values[j]);
    }
  }
}

template <class T>
TORCHVOX_INLINE void balls(const GroupMlpArgs& args, const WideLayers<compute_t<T>>& wide,
                           int64_t begin, int64_t end) {
  using C = compute_t<T>;
  std::vector<C> buffers(2 * kTileRows * wide.widest);
  const int64_t last = args.layer[args.layers - 1].out;
  std::vector<C> best(last);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t slots = used_slots(args, row);
    std::fill(best.begin(), best.end(), C{0});
    for (int64_t first = 0; first < slots; first += kTileRows) {
      const int64_t rows = std::min(kTileRows, slots - first);
      C *from = buffers.data(), *to = from + kTileRows * wide.widest;
      for (int64_t r = 0; r < rows; ++r) {
        const MlpSlot slot = MlpSlot::of(args, row, first + r);
        for (int64_t column = 0; column < args.layer[0].in; ++column) {
          from[r * wide.widest + column] = mlp_input<T>(args, slot, column);
        }
      }
      for (int l = 0; l < args.layers; ++l) {
        for (int64_t r = 0; r < rows; r += kBlockRows) {
          layer_of_rows<T>(wide, l, args.layer[l].in, from + r * wide.widest, to + r * wide.widest);
        }
        std::swap(from, to);
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < last; ++o) {
          best[o] = larger_output(best[o], from[r * wide.widest + o]);
        }
      }
    }
    for (int64_t o = 0; o < last; ++o)
      static_cast<T*>(args.out)[row * last + o] = narrow<T>(best[o]);
  }
}

template <class T>
void run_typed(const GroupMlpArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto wide = carve<WideLayers<compute_t<T>>>(memory, args);
  wide.template fill<T>(args, parallel_for);
  for_each_range(parallel_for, args.rows(), kBallsPerTask, [&](int64_t begin, int64_t end) {
    run_vectorized(group_mlp_cpu_plan, [&] { balls<T>(args, wide, begin, end); });
  });
}

}  // namespace

GroupMlpPlan make_group_mlp_plan(const GroupMlpArgs& args, const Target& target) {
  GroupMlpPlan plan;
  plan.shared_limit = target.shared_bytes;
  plan.tensor_cores = group_mlp_plan.value() != 0 && plan_tensor_cores(args, target, plan);
  if (!plan.tensor_cores) plan_portable(args, target, plan);
  return plan;
}

int64_t workspace_bytes_cpu(const GroupMlpArgs& args) {
  Workspace workspace;
  with_compute_type(args.mlp_dtype,
                    [&](auto real) { WideLayers<decltype(real)>(args, workspace); });
  return workspace.bytes();
}

void run_cpu(const GroupMlpArgs& args, void* memory, const ParallelFor& parallel_for) {
  with_point_type(args.mlp_dtype,
                  [&](auto type) { run_typed<decltype(type)>(args, memory, parallel_for); });
}

}  // namespace torchvox
