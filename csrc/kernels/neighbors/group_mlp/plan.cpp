// SPDX-License-Identifier: Apache-2.0
//
// The plan of group_mlp_max, from sizes alone: which kernel, the layout of the packed layers,
// blocks and shared memory.
#include "csrc/kernels/neighbors/group_mlp/rule.h"

#include <algorithm>

namespace torchvox {
namespace {

constexpr int64_t kChannels = 32;  // of a group
constexpr int64_t kChunkBytes = 16;
constexpr int64_t kGroupPairChunks = 128;  // weights between two groups
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

// True when the tensor cores can run it; fills in how.
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
  if (prepared + kChannels * 4 > target.shared_bytes) return false;  // and a bias
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

}  // namespace

GroupMlpPlan make_group_mlp_plan(const GroupMlpArgs& args, const Target& target) {
  GroupMlpPlan plan;
  plan.shared_limit = target.shared_bytes;
  const bool wanted = group_mlp_plan.value() != 0;
  plan.tensor_cores = wanted && plan_tensor_cores(args, target, plan);
  if (!plan.tensor_cores) plan_portable(args, target, plan);
  return plan;
}

}  // namespace torchvox
