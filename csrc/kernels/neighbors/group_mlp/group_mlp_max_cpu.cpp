// SPDX-License-Identifier: Apache-2.0
//
// group_mlp_max on the CPU, in tasks of 16 balls: 64 slots at a time go through all layers between
// two buffers, the sums of four rows by 128 bytes of outputs in registers.
#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/kernels/neighbors/group_mlp/rule.h"

namespace torchvox {
namespace {

constexpr int64_t kBallsPerTask = 16;
constexpr int64_t kTileRows = 64;  // slots that go through all layers together
constexpr int64_t kBlockRows = 4;
constexpr int64_t kBlockBytes = 128;  // of outputs

// What the host's loops read instead of the layers: weights [in, padded out] and biases, widened,
// outputs filled up with zeros to whole blocks.
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

// The widest vector of the instruction sets: the others take it in parts, and its sums stay in
// registers, which arrays of them do not.
template <class C>
struct Lanes {
  static constexpr int kCount = 64 / sizeof(C);
  typedef C Vector __attribute__((vector_size(64)));
  Vector at;

  static TORCHVOX_INLINE void load(const C* from, Lanes& to) { memcpy(&to.at, from, 64); }
  // to = x * weight + to, rounded once, as fma_rn.
  static TORCHVOX_INLINE void add_product(C x, const Lanes& weight, Lanes& to) {
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
    Lanes<C> sum[kBlockRows][2], weight[2];
    for (int half = 0; half < 2; ++half) {
      Lanes<C>::load(wide.bias[l] + o + half * Lanes<C>::kCount, sum[0][half]);
      for (int64_t r = 1; r < kBlockRows; ++r) sum[r][half] = sum[0][half];
    }
    for (int64_t i = 0; i < in; ++i) {
      const C* weights = wide.weight[l] + i * out + o;
      Lanes<C>::load(weights, weight[0]);
      Lanes<C>::load(weights + Lanes<C>::kCount, weight[1]);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kBlockRows; ++r) {
        const C x = from[r * step + i];
        Lanes<C>::add_product(x, weight[0], sum[r][0]);
        Lanes<C>::add_product(x, weight[1], sum[r][1]);
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
  Workspace workspace(memory);
  const WideLayers<compute_t<T>> wide(args, workspace);
  wide.template fill<T>(args, parallel_for);
  for_each_range(parallel_for, args.rows(), kBallsPerTask, [&](int64_t begin, int64_t end) {
    run_vectorized(group_mlp_cpu_plan, [&] { balls<T>(args, wide, begin, end); });
  });
}

}  // namespace

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
