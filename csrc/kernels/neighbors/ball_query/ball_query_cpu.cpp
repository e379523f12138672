// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/instruction_set.h"
#include "csrc/kernels/neighbors/ball_query/rows_cpu.h"

namespace torchvox {

namespace {

constexpr int64_t kRowsPerTask = 32;

inline void rows(const CpuBall& ball, int64_t begin, int64_t end) {
  const BallQueryArgs& args = ball.args;
  RowState state;
  for (int64_t row = begin; row < end; ++row) {
    const BallQuery query = BallQuery::of(args, row);
    const BallCloud cloud =
        query.cloud < 0 ? BallCloud{0, 0, 0, 0} : BallCloud::of(args, query.cloud);
    if (args.generic()) {
      if (args.dtype == DType::kDouble) {
        generic_row<double>(args, cloud, query, row);
      } else {
        generic_row<float>(args, cloud, query, row);
      }
      continue;
    }
    const Point3 q = load_row(args, args.query, query.base);
    if (ball.cells && cloud.points > 0 && !is_nan(q.a)) {
      cells_row(ball, query.cloud, cloud, q, row, state);
    } else {
      scan_row(ball, cloud, q, row);
    }
  }
}

// One definition, compiled for three instruction sets. Without FMA every fma is a call of libm,
// with the same bits.
using Rows = void (*)(const CpuBall&, int64_t, int64_t);

void rows_baseline(const CpuBall& ball, int64_t begin, int64_t end) { rows(ball, begin, end); }
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"), flatten)) void rows_avx2(const CpuBall& ball, int64_t begin,
                                                            int64_t end) {
  rows(ball, begin, end);
}
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"),
               flatten)) void
rows_avx512(const CpuBall& ball, int64_t begin, int64_t end) {
  rows(ball, begin, end);
}
#endif
Rows choose_rows() {
#if defined(__x86_64__) && defined(__GNUC__)
  switch (instruction_set(Plan::kBallCpu)) {
    case 2: return rows_avx512;
    case 1: return rows_avx2;
    default: break;
  }
#endif
  return rows_baseline;
}

}  // namespace

int64_t workspace_bytes_cpu(const BallQueryArgs& args) {
  Workspace workspace;
  CpuBall(args, make_ball_plan(args, Target{}), workspace);
  return workspace.bytes();
}

void run_cpu(const BallQueryArgs& args, void* memory, const ParallelFor& parallel_for) {
  const BallPlan plan = make_ball_plan(args, Target{});
  Workspace workspace(memory);
  const CpuBall ball(args, plan, workspace);
  if (plan != BallPlan::kGeneric) load_points(ball, parallel_for);
  if (ball.cells) fill_cells(ball);
  const Rows rows_of = choose_rows();
  parallel_for((args.rows() + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t first, int64_t last) {
    rows_of(ball, first * kRowsPerTask, std::min(last * kRowsPerTask, args.rows()));
  });
}

}  // namespace torchvox
