// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/inputs.h"
#include "csrc/kernels/neighbors/ball_query/ball_query.h"
#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"
#include "csrc/kernels/neighbors/query_and_group.h"

namespace torchvox::bind {
namespace {

template <class Args>
void check_types(const Args& args, const Inputs& in) {
  check(args.query.dtype == args.points.dtype, in.op(), "query must have the type of points",
        "another");
}

// Padded points and queries of a batch.
template <class Args>
void add_clouds(Args& args, Inputs& in, bool with_lengths = true) {
  args.points = in.padded("points", "[B, N, D >= 1]", with_lengths ? "lengths" : nullptr);
  args.query = in.padded("query", "[B, M, D]", with_lengths ? "query_lengths" : nullptr);
  check_types(args, in);
}

struct BallOptions {
  BallQueryArgs args;
  double radius = 0, min_radius = 0;
  double radius2 = -1;  // below 0: not given
  bool closed = false;
};

Call plan_ball_query(BallOptions options, Inputs& in) {
  BallQueryArgs& args = options.args;
  if (in.find("batch_offsets") == nullptr) {
    add_clouds(args, in);
  } else {
    check(in.find("query_batch_offsets") != nullptr, in.op(),
          "query_batch_offsets must be given with batch_offsets", "none");
    args.points = in.packed("points", "[N, D >= 1]", "batch_offsets");
    args.query = in.packed("query", "[M, D]", "query_batch_offsets");
    check_types(args, in);
  }
  if (in['D'] != 3) args.order = DistOrder::kLoop;
  args.radius[0] = ball_radius(args.points.dtype, options.radius,
                               options.radius2 < 0 ? nullptr : &options.radius2, options.min_radius,
                               args.core, options.closed);
  args.radius[0].k = args.slots;
  Shape rows = in.find("query")->shape;
  rows.pop_back();
  Shape slots = rows;
  slots.push_back(args.slots);
  return call(args, {{Element::kFloat, slots}, int32(slots), int32(rows)}, &BallQueryArgs::dist2,
              &BallQueryArgs::idx, &BallQueryArgs::count);
}

struct GroupOptions {
  QueryAndGroupArgs args;
  std::vector<double> radii;
  std::vector<int64_t> ks;
  DistOrder order = DistOrder::kPn2;
  bool closed = false;
};

// The balls of a row, kMostRadii at a time.
void find_neighbors(const GroupOptions& options, int32_t* idx, int32_t* count, const Host& host) {
  BallQueryArgs balls;
  balls.points = options.args.points;
  balls.query = options.args.query;
  balls.order = balls.points.columns == 3 ? options.order : DistOrder::kLoop;
  balls.slots = options.args.slots;
  balls.idx = idx;
  balls.counts = static_cast<int64_t>(options.ks.size());
  int64_t slot = 0;
  for (size_t first = 0; first < options.ks.size(); first += kMostRadii) {
    balls.radii = static_cast<int>(std::min(options.ks.size() - first, size_t{kMostRadii}));
    balls.count = count + first;
    for (int r = 0; r < balls.radii; ++r) {
      const size_t ball = first + static_cast<size_t>(r);
      balls.radius[r] =
          ball_radius(balls.points.dtype, options.radii[ball], nullptr, 0, 0, options.closed);
      balls.radius[r].k = options.ks[ball];
      balls.radius[r].slot = slot;
      slot += options.ks[ball];
    }
    run(balls, host);
  }
}

Call plan_query_and_group(GroupOptions options, Inputs& in) {
  QueryAndGroupArgs& args = options.args;
  add_clouds(args, in);
  args.grouped_dtype = args.points.dtype;
  args.features = in.floats("features", "[B, N, C]", &args.grouped_dtype);
  args.channels = args.features != nullptr ? in['C'] : 0;
  check(args.features != nullptr || args.use_xyz, in.op(), "features must be given without use_xyz",
        "none");
  const Shape shape{in['B'], in['M'], args.slots};
  Shape grouped = shape, count = shape;
  grouped.push_back(args.columns());
  count.back() = static_cast<int64_t>(options.ks.size());
  return {{{element_of(args.grouped_dtype), grouped}, int32(shape), int32(count)},
          [options](std::span<void* const> out, const Host& host) {
            QueryAndGroupArgs own = options.args;
            auto* const idx = static_cast<int32_t*>(out[1]);
            find_neighbors(options, idx, static_cast<int32_t*>(out[2]), host);
            own.grouped = out[0];
            own.idx = idx;
            run(own, host);
          }};
}

Call plan_group_mlp_max(GroupMlpArgs args, Inputs& in) {
  const char* const op = in.op();
  add_clouds(args, in, false);
  const auto weights = in.list("weights"), biases = in.list("biases");
  check(!weights.empty() && weights.size() <= size_t{kMostMlpLayers}, op,
        "weights must be 1 to 8 tensors", weights.size());
  check(biases.size() == weights.size(), op, "biases must be one tensor a weight", biases.size());
  args.mlp_dtype = float_type(op, "weights", weights[0]);
  args.features = in.floats_of("features", "[B, N, C]", args.mlp_dtype);
  args.channels = args.features != nullptr ? in['C'] : 0;
  args.idx = in.data<int32_t>("idx", "[B, M, K]");
  args.count = in.data<int32_t>("count", "[B, M]");
  args.slots = args.idx_stride = in['K'];
  int64_t columns = args.channels + (args.use_xyz ? in['D'] : 0);
  args.layers = static_cast<int>(weights.size());
  for (size_t k = 0; k < weights.size(); ++k) {
    const View &weight = weights[k], &bias = biases[k];
    in.set('I', columns);
    in.set('O', -1);
    in.check_layout("weights", weight, "[O, I]");
    in.check_layout("biases", bias, "[O]");
    check(weight.element == weights[0].element && bias.element == weights[0].element, op,
          "weights and biases must have one type", "two");
    args.layer[k] = {weight.data, bias.data, columns, in['O']};
    columns = in['O'];
  }
  return call(args, {{weights[0].element, {in['B'], in['M'], columns}}}, &GroupMlpArgs::out);
}

}  // namespace

Planner bind_ball_query(const Attributes& attributes) {
  const char* op = "BallQuery";
  BallOptions options;
  BallQueryArgs& args = options.args;
  options.radius = attributes.number("radius");
  if (attributes.has("radius2")) options.radius2 = attributes.number("radius2");
  options.min_radius = attributes.number("min_radius");
  options.closed = attributes.flag("closed");
  args.core = attributes.number("core_dist2");
  args.pad = choice<bool>(op, attributes, "fill", {{"first", false}, {"pad", true}});
  args.order = dist_order(op, attributes);
  args.slots = limit(op, attributes, "k", 0);
  args.local_index = attributes.flag("local_index");
  return planner(
      op, attributes,
      {"points", "query", "lengths?", "query_lengths?", "batch_offsets?", "query_batch_offsets?"},
      options, plan_ball_query);
}

Planner bind_query_and_group(const Attributes& attributes) {
  const char* op = "QueryAndGroup";
  GroupOptions options;
  QueryAndGroupArgs& args = options.args;
  options.radii = attributes.numbers("radii");
  options.ks = attributes.integers("ks");
  options.closed = attributes.flag("closed");
  options.order = dist_order(op, attributes);
  args.use_xyz = attributes.flag("use_xyz");
  args.features_first = attributes.flag("features_first");
  const size_t radii = options.radii.size();
  check(radii >= 1 && radii <= size_t{kMostGroupedRadii}, op, "radii must be 1 to 8 numbers",
        radii);
  check(options.ks.size() == radii, op, "ks must be one number a radius", options.ks.size());
  for (size_t r = 0; r < radii; ++r) {
    check(options.ks[r] >= 0 && options.ks[r] < kIndexLimit, op, "ks must be in [0, 2^31)",
          options.ks[r]);
    args.slots += options.ks[r];
    if (!attributes.flag("normalize_xyz")) continue;
    args.radii.end[r] = args.slots;
    args.radii.radius[args.radii.count++] = options.radii[r];
  }
  return planner(op, attributes, {"points", "query", "features?", "lengths?", "query_lengths?"},
                 options, plan_query_and_group);
}

Planner bind_group_mlp_max(const Attributes& attributes) {
  GroupMlpArgs args;
  args.use_xyz = attributes.flag("use_xyz");
  args.features_first = attributes.flag("features_first");
  if (attributes.has("normalize_radius")) args.divisor = attributes.number("normalize_radius");
  return planner("GroupMlpMax", attributes,
                 {"points", "query", "features?", "idx", "count", "weights[]", "biases[]"}, args,
                 plan_group_mlp_max);
}

}  // namespace torchvox::bind
