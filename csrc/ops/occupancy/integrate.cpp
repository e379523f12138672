// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/occupancy/integrate/integrate.h"

#include <torch/library.h>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/occupancy/checks.h"
#include "csrc/ops/rays/checks.h"

namespace torchvox {
namespace {

using at::Tensor;

constexpr std::array<const char*, 10> kFlagNames = {
    "end_as_free",        "stop_at_occupied", "exclude_origin",   "exclude_sample", "exclude_ray",
    "exclude_unobserved", "exclude_free",     "exclude_occupied", "lock_min",       "lock_max"};

uint32_t parse_flags(const char* op, const std::optional<c10::List<std::string>>& names) {
  uint32_t flags = 0;
  if (!names) return flags;
  for (const std::string& name : names->vec()) {
    const auto* const found = std::find(kFlagNames.begin(), kFlagNames.end(), name);
    check_value(found != kFlagNames.end(), op,
                "flags must be of 'end_as_free', 'stop_at_occupied', 'exclude_origin', "
                "'exclude_sample', 'exclude_ray', 'exclude_unobserved', 'exclude_free', "
                "'exclude_occupied', 'lock_min' and 'lock_max'",
                "'", name, "'");
    flags |= uint32_t{1} << (found - kFlagNames.begin());
  }
  return flags;
}

Tensor occupancy_integrate_(
    at::TensorList state, const Tensor& points, const Tensor& origins, double voxel_size,
    c10::ArrayRef<double> map_origin, c10::ArrayRef<double> sensor, c10::SymInt max_touched,
    const OptionalTensor& origin_index, const OptionalTensor& num_valid,
    const OptionalTensor& ray_flags, std::optional<c10::ArrayRef<double>> point_cloud_range,
    double min_range, double max_range, std::string_view long_rays, std::string_view rule,
    const std::optional<c10::List<std::string>>& flags, double threshold, std::string_view missing,
    const OptionalTensor& stamp_in, const OptionalTensor& timestamps_in, double time_base) {
  const char* op = "occupancy_integrate_";
  OccupancyIntegrateArgs args;
  args.state = parse_state(op, state);
  check_rays(op, points, origins, origin_index, {}, num_valid, ray_flags);
  check_device(op, "state", state[kTable], points);
  args.rays = parse_map_rays(op, voxel_size, map_origin, point_cloud_range, min_range, max_range,
                             long_rays);
  args.sensor = parse_sensor(op, sensor);
  check_size(max_touched.sym_ge(-1), op, "max_touched must be -1 (the capacity) or more",
             max_touched);
  check_below(max_touched, int64_t{1} << 30, op, "max_touched must be below 2^30", max_touched);
  args.scan = parse_word(op, "rule", rule, "every_ray", "scan");
  args.flags = parse_flags(op, flags);
  args.threshold = parse_threshold(op, threshold);
  args.skip_missing = parse_word(op, "missing", missing, "allocate", "skip");
  check_value(!(args.skip_missing && args.has(kStopAtOccupied)), op,
              "missing must be 'allocate' with the flag 'stop_at_occupied'", "'skip'");
  if (stamp_in) {
    check_type(stamp_in->scalar_type() == at::kInt, op, "stamp must be int32",
               stamp_in->scalar_type());
    check_device(op, "stamp", *stamp_in, points);
    check_size(stamp_in->sym_numel().sym_eq(1), op, "stamp must be [1]", stamp_in->sym_sizes());
  }
  if (timestamps_in) {
    check_type(timestamps_in->scalar_type() == at::kDouble, op, "timestamps must be float64",
               timestamps_in->scalar_type());
    check_device(op, "timestamps", *timestamps_in, points);
    check_value(timestamps_in->dim() == 1, op, "timestamps must be [N] as points are",
                timestamps_in->sym_sizes());
    check_size(timestamps_in->sym_size(0).sym_eq(points.sym_size(0)), op,
               "timestamps must be [N] as points are", timestamps_in->sym_sizes());
  }
  check_value(std::isfinite(time_base), op, "time_base must be finite", time_base);
  const Tensor counts = empty_beside({1, int64_t{kIntegrateCounts}}, at::kLong, points);
  if (!points.is_meta()) {
    const RayTensors tensors(points, origins, origin_index, {}, num_valid, ray_flags);
    tensors.fill(args.rays);
    args.limited = max_touched.expect_int() >= 0;
    args.max_touched = args.limited ? max_touched.expect_int() : args.state.capacity;
    args.stamp = stamp_in ? stamp_in->const_data_ptr<int32_t>() : nullptr;
    const OptionalTensor timestamps = contiguous(timestamps_in);
    if (timestamps) args.timestamps = timestamps->const_data_ptr<double>();
    args.time_base = time_base;
    args.threads = cpu_threads();
    args.counts = counts.mutable_data_ptr<int64_t>();
    run(op, points, args);
  }
  return counts;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add(TORCHVOX_OP(occupancy_integrate_));
  ops.in_place("occupancy_integrate_", mutating);
}

}  // namespace
}  // namespace torchvox
