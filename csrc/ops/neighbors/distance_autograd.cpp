// SPDX-License-Identifier: Apache-2.0
//
// The distances of knn, three_nn and ball_query have one gradient, to both point sets: it follows
// from the indices, and the counts of balls, alone.
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/gradient_limit.h"

namespace torchvox {
namespace {

void check_distance_gradient(const Call& call) {
  const c10::SymInt k = call.has("k") ? call["k"].toSymInt() : c10::SymInt(3);
  check_gradient_limit_of(call.op(), call.tensor("points"), -2, call.tensor("query"), -2, k);
}

// The gradient takes offsets where indices are local to their cloud.
bool has_local_indices(const Call& call) {
  return call["local_index"].toBool() && CallLayout(call).clouds.packed();
}

auto offsets_of_local_indices(const char* name) {
  return [name](const Call& call) { return has_local_indices(call) ? call[name] : c10::IValue(); };
}

TORCHVOX_REGISTER_OPS(ops) {
  for (const char* op : {"ball_query", "knn", "three_nn"}) {
    ops.differentiable(
        op,
        {.backward = "_neighbor_distance_backward",
         .derived = {{"batch_offsets", offsets_of_local_indices("batch_offsets")},
                     {"query_batch_offsets", offsets_of_local_indices("query_batch_offsets")},
                     {"local_index", has_local_indices}},
         .prepare = check_distance_gradient});
  }
}

}  // namespace
}  // namespace torchvox
