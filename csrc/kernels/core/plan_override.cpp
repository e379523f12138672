// SPDX-License-Identifier: Apache-2.0
//
// The forced plans of the process, and their names.
#include "csrc/kernels/core/plan_override.h"

#include <atomic>

namespace torchvox {
namespace {

// Stored less kAutomatic, so that zero-initialized means automatic.
std::atomic<int64_t> overrides[static_cast<int>(Plan::kCount)];

}  // namespace

int64_t plan_override(Plan plan) {
  return overrides[static_cast<int>(plan)].load(std::memory_order_relaxed) + kAutomatic;
}

void set_plan_override(Plan plan, int64_t value) {
  overrides[static_cast<int>(plan)].store(value - kAutomatic, std::memory_order_relaxed);
}

const char* plan_name(Plan plan) {
  switch (plan) {
    case Plan::kVoxelTable: return "voxel_table";
    case Plan::kVoxelRanking: return "voxel_ranking";
    case Plan::kVoxelPartitions: return "voxel_parts";
    case Plan::kVoxelKernels: return "voxel_kernels";
    case Plan::kVoxelCommon: return "voxel_common";
    case Plan::kFpsKernel: return "fps_kernel";
    case Plan::kFpsThreads: return "fps_threads";
    case Plan::kFpsPointsPerThread: return "fps_points_per_thread";
    case Plan::kFpsMembers: return "fps_members";
    case Plan::kFpsCpu: return "fps_cpu";
    case Plan::kBevTable: return "bev_table";
    case Plan::kBallKernel: return "ball_kernel";
    case Plan::kBallCpu: return "ball_cpu";
    case Plan::kGroupMlp: return "group_mlp";
    case Plan::kGroupMlpCpu: return "group_mlp_cpu";
    case Plan::kKnnKernel: return "knn_kernel";
    case Plan::kKnnOrder: return "knn_order";
    case Plan::kKnnCpu: return "knn_cpu";
    case Plan::kInverseIndex: return "slot_lists";
    case Plan::kInterpolateCpu: return "interpolate_cpu";
    case Plan::kNmsOrder: return "nms_order";
    case Plan::kDecodeKernels: return "detect_kernels";
    case Plan::kPillarLists: return "pillar_lists";
    case Plan::kPillarCommon: return "pillar_common";
    case Plan::kPillarCpu: return "pillar_cpu";
    case Plan::kCount: break;
  }
  return "";
}

}  // namespace torchvox
