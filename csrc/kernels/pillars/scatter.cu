// SPDX-License-Identifier: Apache-2.0
//
// pillar_scatter and its gradient on the GPU: one group of lanes per cell writes the row or zeros,
// each byte once, in words of up to 16 bytes. The gradient: one thread per value.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/pillars/prepare.cuh"
#include "csrc/kernels/pillars/scatter.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One group of canvas.lanes lanes per cell: reads the cell's row from the table and writes that
// row's features to the canvas, or zeros.
template <class Piece>
__global__ void __launch_bounds__(kThreads) scatter_kernel(CanvasZeros canvas, const Piece* feats) {
  wait_for_previous();
  const int64_t pieces = canvas.row_bytes / static_cast<int64_t>(sizeof(Piece));
  const int lane = static_cast<int>(global_thread() % canvas.lanes);
  for (int64_t cell = global_thread() / canvas.lanes; cell < canvas.cells;
       cell += global_stride() / canvas.lanes) {
    const uint32_t row = canvas.table[cell];
    Piece* to = static_cast<Piece*>(canvas.canvas) + cell * pieces;
    for (int64_t piece = lane; piece < pieces; piece += canvas.lanes) {
      to[piece] = row == kNoRow ? Piece{} : feats[row * pieces + piece];
    }
  }
}

// One thread per value of grad_feats, channels fastest: the gradient of the row's cell, or 0 where
// the cell took its values from another row.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(PillarScatterBackwardArgs args, const uint32_t* table) {
  wait_for_previous();
  for (int64_t i = global_thread(); i < args.rows.rows * args.channels; i += global_stride()) {
    const int64_t row = i / args.channels, channel = i % args.channels;
    const int64_t cell = args.rows.cell(row);
    Element value{};
    if (cell >= 0 && table[cell] == static_cast<uint32_t>(row)) {
      const int64_t at = args.rows.strided(cell, channel, args.grad_strides);
      value = static_cast<const Element*>(args.grad)[at];
    }
    static_cast<Element*>(args.grad_feats)[i] = value;
  }
}

cudaError_t enter_rows(const PillarRows& rows, uint32_t* table, const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(launch_clear_cells(table, rows.cells(), context));
  return launch_enter_rows(rows, table, context);
}

template <class Piece>
cudaError_t launch_scatter(const PillarScatterArgs& args, const CanvasZeros& canvas,
                           const CudaContext& context) {
  return launch_items_after(scatter_kernel<Piece>, canvas.threads(), kThreads, context, canvas,
                            static_cast<const Piece*>(args.feats));
}

}  // namespace

cudaError_t launch(const PillarScatterArgs& args, void* memory, const CudaContext& context) {
  uint32_t* table = static_cast<uint32_t*>(memory);
  const CanvasZeros canvas(args.canvas, table, args.rows.cells(), args.channels, args.dtype);
  if (canvas.cells * canvas.row_bytes == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(enter_rows(args.rows, table, context));
  // The tensor of features may be a view that starts at any element.
  const bool aligned = reinterpret_cast<uintptr_t>(args.feats) % 16 == 0;
  if (aligned && canvas.piece_bytes == 16) return launch_scatter<uint4>(args, canvas, context);
  return with_word(bytes_of(args.dtype), [&](auto word) {
    return launch_scatter<decltype(word)>(args, canvas, context);
  });
}

cudaError_t launch(const PillarScatterBackwardArgs& args, void* memory,
                   const CudaContext& context) {
  uint32_t* table = static_cast<uint32_t*>(memory);
  if (args.rows.rows * args.channels == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(enter_rows(args.rows, table, context));
  return with_word(bytes_of(args.dtype), [&](auto word) {
    return launch_items_after(gather_kernel<decltype(word)>, args.rows.rows * args.channels,
                              kThreads, context, args, table);
  });
}

}  // namespace torchvox
