// SPDX-License-Identifier: Apache-2.0
//
// The grouping step of query_and_group on the CPU, in tasks of rows; and radius_neighbors, two
// passes of the ball query over points prepared once.
#include <algorithm>

#include "csrc/kernels/neighbors/query_and_group.h"
#include "csrc/kernels/neighbors/radius_neighbors.h"

namespace torchvox {
namespace {

// The fast path for float: the same steps without testing types for every coordinate.
bool subtract_floats(const QueryAndGroupArgs& args, const GroupSlot& from, int64_t at) {
  if (!args.plain_floats() || from.point < 0) return false;
  const float* p = static_cast<const float*>(args.points.data) + from.point;
  const float* q = static_cast<const float*>(args.query.data) + from.query;
  float* out = static_cast<float*>(args.grouped) + at + args.first_axis();
  for (int64_t axis = 0; axis < args.points.columns; ++axis) out[axis] = quiet(p[axis] - q[axis]);
  return true;
}

template <class Word>
void group_row(const QueryAndGroupArgs& args, int64_t row) {
  const int64_t b = divide(row, args.query.rows), columns = args.columns();
  for (int64_t slot = 0; slot < args.slots; ++slot) {
    const GroupSlot from = GroupSlot::of(args, row, b, slot);
    const int64_t at = (row * args.slots + slot) * columns;
    if (args.use_xyz && !subtract_floats(args, from, at))
      group_coordinates(args, from, 0, 1, args.grouped, at);
    Word* to = static_cast<Word*>(args.grouped) + at + args.first_channel();
    if (from.point < 0) {
      std::fill_n(to, args.channels, Word{});
    } else {
      std::copy_n(static_cast<const Word*>(args.features) + from.features, args.channels, to);
    }
  }
}

}  // namespace

void run_cpu(const QueryAndGroupArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t columns = args.columns();
  with_word(bytes_of(args.grouped_dtype), [&](auto word) {
    for_each_index(parallel_for, args.points.clouds * args.query.rows,
                   group_items_per_task(args.slots * columns),
                   [&](int64_t row) { group_row<decltype(word)>(args, row); });
  });
}

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
