// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/inputs.h"
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"

namespace torchvox::bind {
namespace {

constexpr const char* kOp = "FurthestPointSample";

Call plan_furthest_point_sample(FpsArgs args, Inputs& in) {
  args.points = in.padded("points", "[B, N, D >= 1]", "lengths");
  args.counts = in.indices("counts", "[B]");
  if (const View* const start = in.find("start_idx")) {
    const bool several = start->shape.size() == 2;
    args.start_idx = in.indices("start_idx", several ? "[B, S >= 1]" : "[B]");
    if (several) args.starts = in['S'];
  }
  check(!args.skip_origin || in['D'] == 3, kOp, "points must be [B, N, 3] with skip_origin",
        in['D']);
  if (in['D'] != 3) args.order = DistOrder::kLoop;
  const Shape shape{in['B'], args.samples};
  return call(args, {{Element::kInt32, shape}, {Element::kFloat, shape}}, &FpsArgs::idx,
              &FpsArgs::dist2);
}

}  // namespace

Planner bind_furthest_point_sample(const Attributes& attributes) {
  FpsArgs args;
  args.samples = limit(kOp, attributes, "num_samples", 0);
  const int64_t block = limit(kOp, attributes, "tie_block", 1);
  check(block <= 1024 && (block & (block - 1)) == 0, kOp,
        "tie_block must be a power of two in [1, 1024]", block);
  const bool mmcv = choice<bool>(kOp, attributes, "tie", {{"lowest", false}, {"mmcv", true}});
  args.tie_block = mmcv ? static_cast<int>(block) : 1;
  args.order = dist_order(kOp, attributes);
  args.repeat = choice<bool>(kOp, attributes, "exhausted", {{"distinct", false}, {"repeat", true}});
  args.nonfinite_last =
      choice<bool>(kOp, attributes, "nonfinite", {{"skip", false}, {"last", true}});
  check(!(args.repeat && args.nonfinite_last), kOp,
        "nonfinite must be 'skip' with exhausted='repeat'", "'last'");
  args.skip_origin = attributes.flag("skip_origin");
  if (attributes.has("init_dist2")) args.init_dist2 = attributes.number("init_dist2");
  args.start = attributes.integer("start");
  return planner(kOp, attributes, {"points", "lengths?", "counts?", "start_idx?"}, args,
                 plan_furthest_point_sample);
}

}  // namespace torchvox::bind
