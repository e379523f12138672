// SPDX-License-Identifier: Apache-2.0
//
// radius_neighbors on the CPU: two passes of the ball query over points prepared once.
#include <algorithm>

#include "csrc/kernels/neighbors/radius_neighbors.h"

namespace torchvox {
namespace {

struct Room {
  int32_t* hits;  // [rows]
  void* ball;

  Room(const RadiusNeighborsArgs& args, Workspace& workspace)
      : hits(workspace.take<int32_t>(args.ball.rows())),
        ball(workspace.take<char>(workspace_bytes_cpu(args.counting(nullptr)))) {}
};

}  // namespace

int64_t workspace_bytes_cpu(const RadiusNeighborsArgs& args) { return carved_bytes<Room>(args); }

void run_cpu(const RadiusNeighborsArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto room = carve<Room>(memory, args);
  const int64_t rows = args.ball.rows();
  BallQueryArgs ball = args.counting(room.hits);
  int64_t hits = 0;
  run_ball_cpu(ball, room.ball, parallel_for, [&] {
    for (int64_t row = 0; row < rows; ++row) {
      args.offsets[row] = std::min(hits, args.capacity);
      hits += room.hits[row];
    }
    args.write_with(ball);
    args.offsets[rows] = std::min(hits, args.capacity);
  });
  *args.count = hits;
  const int64_t written = args.offsets[rows];
  for_each_index(parallel_for, args.capacity - written, 4096,
                 [&](int64_t i) { write_no_neighbor(args, written + i); });
}

}  // namespace torchvox
