// SPDX-License-Identifier: Apache-2.0
//
// voxel_sum, voxel_mean and voxel_mean_of_sums on the GPU. perm is cut into pieces of 32 places,
// whatever rows they belong to, so that a row of a million points takes no longer than a million
// rows of one:
//
//   add     one thread a piece and column. A row that lies within a piece is stored; what a piece
//           has of any other goes, by integer atomics, to the sums of the piece where it begins
//   finish  rows that cross pieces from these sums; 0 where a row has no point
#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/filter/exact_sum.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPiece = 32;

int64_t pieces_of(const VoxelSumArgs& args) { return ceil_div<int64_t>(args.points, kPiece); }

int64_t crossing_bytes(const VoxelSumArgs& args) {
  return with_value_type(args.type, [&](auto type) {
    return pieces_of(args) * args.columns * static_cast<int64_t>(sizeof(ExactSum<decltype(type)>));
  });
}

// The row that owns a place, if any does: the last one that begins at it or before.
__device__ __forceinline__ int64_t row_at(const VoxelSumArgs& args, int64_t place) {
  return last_where(int64_t{0}, args.rows,
                    [&](int64_t row) { return args.begin_of(row) <= place; });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const __grid_constant__ VoxelSumArgs args, int64_t items, ExactSum<T>* crossing) {
  for (int64_t item = global_thread(); item < items; item += global_stride()) {
    const int64_t piece = item / args.columns, column = item - piece * args.columns;
    const int64_t first = piece * kPiece;
    const int64_t last = first + kPiece < args.points ? first + kPiece : args.points;
    int64_t row = row_at(args, first), begin = args.begin_of(row), end = args.end_of(row);
    ExactSum<T> sum;
    const auto leave = [&] {
      if (begin >= first && end <= last) {
        args.store(row, column, sum, end - begin);
        return;
      }
      uint64_t* const words = crossing[begin / kPiece * args.columns + column].words;
      for (int k = 0; k < kSumWords<T>; ++k) {
        if (sum.words[k] != 0) atomic_add(&words[k], sum.words[k]);
      }
    };
    for (int64_t place = first; place < last; ++place) {
      if (place >= end) {
        if (end > begin && end > first) leave();
        sum = {};
        do {
          if (++row == args.rows) break;
          begin = args.begin_of(row);
          end = args.end_of(row);
        } while (end <= place);
        if (row == args.rows) break;
      }
      if (place >= begin) args.add(place, column, &sum);
    }
    if (row < args.rows && end > begin && begin < last && end > first) leave();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const __grid_constant__ VoxelSumArgs args, int64_t items,
                  const ExactSum<T>* crossing) {
  const int64_t elements = args.rows * args.columns;
  for (int64_t at = global_thread(); at < elements || at < items; at += global_stride()) {
    const int64_t of = at / args.columns, column = at - of * args.columns;
    if (at < elements && args.end_of(of) <= args.begin_of(of)) {
      args.store(of, column, ExactSum<T>{}, 0);
    }
    if (at >= items) continue;
    // The one row that begins in this piece and does not end in it.
    const int64_t first = of * kPiece, end_of_piece = first + kPiece;
    const int64_t last = (end_of_piece < args.points ? end_of_piece : args.points) - 1;
    const int64_t row = row_at(args, last), begin = args.begin_of(row), end = args.end_of(row);
    if (begin >= first && begin <= last && end > end_of_piece) {
      args.store(row, column, crossing[at], end - begin);
    }
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const VoxelSumArgs& args, const Target&) {
  return crossing_bytes(args);
}

cudaError_t launch(const VoxelSumArgs& args, void* workspace, const CudaContext& context) {
  if (args.rows == 0 || args.columns == 0) return cudaSuccess;
  const int64_t items = pieces_of(args) * args.columns;
  if (items > 0) {
    const size_t bytes = static_cast<size_t>(crossing_bytes(args));
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(workspace, 0, bytes, context.stream));
  }
  return with_value_type(args.type, [&](auto type) {
    using T = decltype(type);
    ExactSum<T>* const crossing = static_cast<ExactSum<T>*>(workspace);
    TORCHVOX_CUDA_CHECK(
        launch_items(add_kernel<T>, items, kThreads, context, args, items, crossing));
    const int64_t elements = args.rows * args.columns;
    return launch_items(finish_kernel<T>, elements > items ? elements : items, kThreads, context,
                        args, items, static_cast<const ExactSum<T>*>(crossing));
  });
}

cudaError_t launch(const VoxelMeanOfSumsArgs& args, void*, const CudaContext& context) {
  return with_value_type(args.type, [&](auto type) {
    return launch_elements<mean_of_sums<decltype(type)>>(args, args.rows * args.columns, context);
  });
}

}  // namespace torchvox
