// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv on the GPU: the choice of a plan, and an order of the rows where none is given.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace {

struct Plan {
  int64_t (*bytes)(const SparseConvArgs& args, const Target& target);
  cudaError_t (*launch)(const SparseConvArgs& args, bool follows, void* memory,
                        const CudaContext& context);
  bool is_exact;

  static Plan of(const SparseConvArgs& args, const Target& target) {
    const bool halves = args.dtype == DType::kHalf || args.dtype == DType::kBFloat16;
    const int64_t plan = sparse_tensor_cores_plan.value();
    if (!halves || target.compute_capability < 80 || plan == 0) {
      return {sparse_exact_bytes, launch_sparse_exact, true};
    }
#ifdef TORCHVOX_HOPPER
    // With few channels, blocks of mma.sync, which are smaller, keep more rows in flight.
    if (plan != 1 && takes_hopper(target) &&
        std::min(args.in_channels, args.out_channels) > (args.schedule ? 16 : 32)) {
      return {sparse_hopper_bytes, launch_sparse_hopper, false};
    }
#endif
    return {sparse_mma_bytes, launch_sparse_mma, false};
  }
};

struct Work {
  bool sorts;  // where sorted rows save more than the sort costs, about 9 us
  SparseOrderWork sort;
  int32_t* schedule;  // or its order alone; null: not made
  char* rest;  // of the plan

  Work(const SparseConvArgs& args, const Plan& plan, const Target& target, Workspace& workspace)
      : sorts(pays(args, plan)), sort(sorts ? args.table.rows : 0, workspace), schedule(nullptr) {
    const int64_t rows = args.table.rows;
    const bool makes = !args.schedule && (sorts || !plan.is_exact);
    if (makes) {
      schedule = workspace.take<int32_t>(
          plan.is_exact ? rows : SparseSchedule::length(args.table.volume, rows));
    }
    rest = workspace.take<char>(plan.bytes(args, target));
  }

 private:
  static bool pays(const SparseConvArgs& args, const Plan& plan) {
    if (args.schedule) return false;
    if (sparse_order_plan.value() != kAutomatic) return sparse_order_plan.value() == 1;
    const int64_t least = plan.is_exact ? 32 : 48;  // channels
    return args.table.volume > 1 && args.table.rows >= 4096 &&
        args.in_channels * args.out_channels >= least * least;
  }
};

}  // namespace

int64_t workspace_bytes_cuda(const SparseConvArgs& args, const Target& target) {
  return carved_bytes<Work>(args, Plan::of(args, target), target);
}
cudaError_t launch(const SparseConvArgs& args, void* memory, const CudaContext& context) {
  const SparseTable& table = args.table;
  if (table.rows * args.out_channels == 0) return cudaSuccess;
  const Plan plan = Plan::of(args, context.target);
  const auto work = carve<Work>(memory, args, plan, context.target);
  SparseConvArgs call = args;
  if (work.schedule) call.schedule = work.schedule;
  if (work.sorts) {
    TORCHVOX_CUDA_CHECK(launch_order(table, args.kernel_size, work.sort, work.schedule, context));
  }
  if (work.schedule && !plan.is_exact) {
    const SparseSchedule schedule(table.volume, table.rows, work.schedule);
    TORCHVOX_CUDA_CHECK(launch_tiles(table, schedule, work.sorts, context));
  }
  return plan.launch(call, work.schedule != nullptr, work.rest, context);
}

}  // namespace torchvox
