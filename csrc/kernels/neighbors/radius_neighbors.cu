// SPDX-License-Identifier: Apache-2.0
//
// radius_neighbors on the GPU: the ball query counts the hits of each row, CUB sums them, and the
// ball query writes the hits. The points are binned once.
#include <cub/device/device_scan.cuh>

#include <optional>

#include "csrc/kernels/neighbors/ball_query/kernels.cuh"
#include "csrc/kernels/neighbors/radius_neighbors.h"

namespace torchvox {
namespace {

struct WideSum {
  __host__ __device__ int64_t operator()(int64_t a, int64_t b) const { return a + b; }
};

struct RadiusWork {
  int32_t* hits;  // [rows]
  int64_t* ends;  // [rows]: running sums of the hits, regardless of the capacity
  size_t storage_bytes = 0;
  void* storage;
  std::optional<CellsWork> cells;

  RadiusWork(const RadiusNeighborsArgs& args, const Target& target, Workspace& workspace)
      : hits(workspace.take<int32_t>(args.ball.rows())),
        ends(workspace.take<int64_t>(args.ball.rows())) {
    sum(args.ball.rows(), nullptr, storage_bytes, nullptr);
    storage = workspace.take<char>(static_cast<int64_t>(storage_bytes));
    const BallQueryArgs ball = args.counting(hits);
    if (make_ball_plan(ball, target) == BallPlan::kCells) cells.emplace(ball, workspace);
  }
  cudaError_t sum(int64_t rows, void* memory, size_t& bytes, cudaStream_t stream) const {
    return cub::DeviceScan::InclusiveScan(memory, bytes, hits, ends, WideSum{}, rows, stream);
  }
};

constexpr int kThreads = 256;

// One thread per row and slot: writes the clamped offset of the row, and -1 to slots after the last
// hit; the first thread writes the number of hits.
__global__ void __launch_bounds__(kThreads)
    offsets_kernel(const __grid_constant__ RadiusNeighborsArgs args, const int64_t* ends) {
  const int64_t rows = args.ball.rows(), hits = rows > 0 ? ends[rows - 1] : 0;
  for (int64_t row = global_thread(); row <= rows; row += global_stride()) {
    args.offsets[row] = row == 0 ? 0 : min(ends[row - 1], args.capacity);
  }
  for (int64_t slot = hits + global_thread(); slot < args.capacity; slot += global_stride()) {
    write_no_neighbor(args, slot);
  }
  if (global_thread() == 0) *args.count = hits;
}

}  // namespace

int64_t workspace_bytes_cuda(const RadiusNeighborsArgs& args, const Target& target) {
  return carved_bytes<RadiusWork>(args, target);
}

cudaError_t launch(const RadiusNeighborsArgs& args, void* memory, const CudaContext& context) {
  auto work = carve<RadiusWork>(memory, args, context.target);
  const CellsWork* const cells = work.cells ? &*work.cells : nullptr;
  const int64_t rows = args.ball.rows();
  BallQueryArgs ball = args.counting(work.hits);
  if (rows > 0) {
    if (cells) TORCHVOX_CUDA_CHECK(make_ball_cells(ball, *cells, context));
    TORCHVOX_CUDA_CHECK(launch_ball_queries(ball, cells, context));
    TORCHVOX_CUDA_CHECK(work.sum(rows, work.storage, work.storage_bytes, context.stream));
  }
  const int64_t items = args.capacity > rows ? args.capacity : rows + 1;
  TORCHVOX_CUDA_CHECK(launch_items(offsets_kernel, items, kThreads, context, args, work.ends));
  if (rows == 0) return cudaSuccess;
  args.write_with(ball);
  return launch_ball_queries(ball, cells, context);
}

}  // namespace torchvox
