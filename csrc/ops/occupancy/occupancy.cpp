// SPDX-License-Identifier: Apache-2.0
//
// The ops that edit a map: occupancy_integrate_ adds rays to it, occupancy_insert_ regions;
// occupancy_decay_ lowers their log-odds, and occupancy_remove_ takes them out. And those that read
// it: occupancy_query, occupancy_crop, occupancy_raycast, occupancy_extract.
#include <limits>

#include "csrc/kernels/occupancy/edit.h"
#include "csrc/kernels/occupancy/integrate/integrate.h"
#include "csrc/kernels/occupancy/read.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/occupancy/checks.h"
#include "csrc/ops/rays/checks.h"
#include "csrc/ops/voxel/args.h"

namespace torchvox {
namespace {

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

// Standard deviation of ranges in meters, adaptation, samples of a distribution, log-odds below
// which a voxel that is hit forgets its samples, and how many it must have for that.
Ndt parse_ndt(const char* op, std::optional<c10::ArrayRef<double>> given, double voxel_size,
              const Sensor& sensor) {
  Ndt ndt;
  if (!given) return ndt;
  const c10::ArrayRef<double> v = *given;
  bool good = v.size() == 5 && v[0] > 0 && v[1] >= 0 && v[1] <= 1 && v[2] >= 1 && v[4] >= 1;
  for (const double x : v) good = good && std::isfinite(x);
  check_value(
      good, op,
      "ndt must be (noise > 0 m, adaptation from 0 to 1, samples >= 1, reset log-odds, reset "
      "samples >= 1)",
      v);
  ndt.noise = v[0] / voxel_size;
  ndt.eta = v[1] / 2;
  ndt.least_samples = v[2];
  ndt.reset = v[3];
  ndt.reset_samples = v[4];
  ndt.lowest = static_cast<double>(sensor.clamp_min - sensor.clamp_max) / kLogOddsUnit;
  return ndt;
}

Tensor occupancy_integrate_(
    at::TensorList state, const Tensor& points, const Tensor& origins, double voxel_size,
    c10::ArrayRef<double> map_origin, c10::ArrayRef<double> sensor, c10::SymInt max_touched,
    const OptionalTensor& origin_index, const OptionalTensor& num_valid,
    const OptionalTensor& ray_flags, std::optional<c10::ArrayRef<double>> point_cloud_range,
    double min_range, double max_range, std::string_view long_rays, std::string_view rule,
    const std::optional<c10::List<std::string>>& flags, double threshold, std::string_view missing,
    const OptionalTensor& stamp, const OptionalTensor& timestamps, double time_base,
    std::optional<c10::ArrayRef<double>> ndt, const OptionalTensor& intensity,
    std::optional<c10::ArrayRef<double>> intensity_range) {
  const char* op = "occupancy_integrate_";
  OccupancyIntegrateArgs args;
  args.state = parse_state(op, state);
  Inputs in(op);
  add_rays(in, points, origins, origin_index, {}, num_valid, ray_flags);
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
  in.add("stamp", stamp, Dtypes::kInt32, "[] or [1]");
  in.add("timestamps", timestamps, Dtypes::kFloat64, "[N]");
  in.add("intensity", intensity, Dtypes::kFloat32, "[N]");
  check_value(std::isfinite(time_base), op, "time_base must be finite", time_base);
  const auto is_on = [&](int k) { return state[k].sym_size(0) != 0; };
  check_value(is_on(kSampleCov) == ndt.has_value(), op,
              "ndt must be given if and only if sample_cov of the state has rows",
              ndt ? "it without rows" : "rows without it");
  check_value(!(ndt && args.scan), op, "rule must be 'every_ray' with ndt", "'", rule, "'");
  args.ndt = parse_ndt(op, ndt, voxel_size, args.sensor);
  check_value(intensity.has_value() == intensity_range.has_value(), op,
              "intensity and intensity_range must be given together", "one of them");
  check_value(is_on(kIntensity) || !intensity, op,
              "intensity must be left out where intensity of the state has no rows", "it");
  check_value(!is_on(kIntensity) || intensity || args.has(kEndAsFree) || args.has(kExcludeSample),
              op, "intensity must be given where intensity of the state has rows", "none");
  if (intensity_range) {
    const c10::ArrayRef<double> v = *intensity_range;
    check_value(v.size() == 2 && std::isfinite(v[1] - v[0]) && v[0] < v[1], op,
                "intensity_range must be two finite numbers, the lower one first", v);
    args.dark = v[0];
    args.span = v[1] - v[0];
  }
  const Tensor counts = output(args.counts, {1, int64_t{kIntegrateCounts}}, points);
  if (points.is_meta()) return counts;
  const Clouds packed(points, {}, num_valid);
  Memory memory;
  put_rays(args.rays, memory, packed, origins, origin_index, ray_flags);
  args.limited = max_touched.expect_int() >= 0;
  args.max_touched = args.limited ? max_touched.expect_int() : args.state.capacity;
  args.stamp = memory.of<int32_t>(stamp);
  args.timestamps = memory.of<double>(timestamps);
  args.time_base = time_base;
  args.intensity = memory.of<float>(intensity);
  args.threads = cpu_threads();
  run(op, points, args);
  return counts;
}

constexpr std::array kLayers = {kRegionStamp, kLogOdds,   kHitMiss,     kTouch,
                                kTraversal,   kSampleRow, kSampleCount, kSampleMean,
                                kSampleCov,   kIntensity, kPasses};

void check_layers(const char* op, at::TensorList state, const Tensor& keys, at::TensorList layers) {
  check_value(layers.empty() || layers.size() == kLayers.size(), op,
              "layers must be none or (region_stamp, logodds, hit_miss, touch, traversal, "
              "sample_row, sample_count, sample_mean, sample_cov, intensity, passes)",
              layers.size(), " tensors");
  if (layers.empty()) return;
  const Tensor& counts = layers[6];
  const c10::SymInt rows = keys.sym_size(0),
                    sample_rows = counts.defined() && counts.dim() > 0 ? counts.sym_size(0) : 0;
  const auto empty = [&](int k) { return state[k].sym_size(0) == 0; };
  for (size_t i = 0; i < layers.size(); ++i) {
    const int k = kLayers[i];
    // Of a state without room it is unknown which layers are off.
    const bool known = !empty(kRegionKey) || (k >= kSampleRow && !empty(kSampleCount));
    const bool off = k > kLogOdds && empty(k == kSampleRow ? kSampleCount : k) &&
        (known || layers[i].sym_numel() == 0);
    check_part(op, k, layers[i], "layers", state[0],
               off                     ? c10::SymInt(0)
                   : k >= kSampleCount ? sample_rows
                                       : rows);
  }
}

// The pointer of a tensor that is only read, in a struct whose other users write.
template <class T>
T* read_only(const Tensor& tensor) {
  return const_cast<T*>(tensor.const_data_ptr<T>());
}

Tensor occupancy_insert_(at::TensorList state, const Tensor& keys_in, at::TensorList layers_in,
                         c10::ArrayRef<double> sensor, std::string_view merge,
                         const OptionalTensor& num_valid) {
  const char* op = "occupancy_insert_";
  InsertArgs args;
  args.state = parse_state(op, state);
  Inputs in(op);
  in.add("keys", keys_in, Dtypes::kInt64, "[K]");
  check_device(op, "keys", keys_in, "the state", state[0]);
  check_below(in["K"], kIndexLimit, op, "keys must have K < 2^31 elements", in["K"]);
  check_layers(op, state, keys_in, layers_in);
  args.sensor = parse_sensor(op, sensor);
  args.merge = parse_choice<Merge>(
      op, "merge", merge,
      {{"add", Merge::kAdd}, {"replace", Merge::kReplace}, {"keep", Merge::kKeep}});
  in.add("num_valid", num_valid, Dtypes::kIndices, "[] or [1]");
  const Tensor counts = output(args.counts, {1, int64_t{kStateCounts}}, state[0]);
  if (counts.is_meta()) return counts;
  const Tensor keys = keys_in.contiguous();
  check_apart(op, "keys", keys, state);
  std::vector<Tensor> layers;
  for (const Tensor& layer : layers_in) {
    layers.push_back(layer.contiguous());
    check_apart(op, "layers", layers.back(), state);
  }
  args.given.region_key = read_only<int64_t>(keys);
  args.given.capacity = keys.size(0);
  if (!layers.empty()) {
    args.given.region_stamp = read_only<int32_t>(layers[0]);
    args.given.logodds = read_only<int16_t>(layers[1]);
    args.given.hit_miss = read_only<int32_t>(layers[2]);
    args.given.touch = read_only<int32_t>(layers[3]);
    args.given.traversal = read_only<int64_t>(layers[4]);
    args.given.sample_row = read_only<int32_t>(layers[5]);
    args.given.samples = {read_only<int32_t>(layers[6]),  read_only<float>(layers[7]),
                          read_only<float>(layers[8]),    read_only<float>(layers[9]),
                          read_only<int32_t>(layers[10]), layers[6].size(0)};
  }
  Memory memory;
  args.num_valid = memory.indices(num_valid);
  run(op, state[0], args);
  return counts;
}

std::tuple<Tensor, Tensor> occupancy_decay_(at::TensorList state, int64_t factor, int64_t step,
                                            int64_t forget, const OptionalTensor& mask) {
  const char* op = "occupancy_decay_";
  DecayArgs args;
  args.state = parse_state(op, state);
  check_value(factor >= 0 && factor <= 65536, op, "factor must be from 0 to 65536", factor);
  check_value(step >= 0, op, "step must be 0 or more", step);
  check_mask(op, mask, state);
  const Tensor empty = output(args.empty, {state[kRegionKey].sym_size(0)}, state[0]);
  const Tensor counts = output(args.counts, {1, int64_t{kStateCounts}}, state[0]);
  if (counts.is_meta()) return {empty, counts};
  Memory memory;
  args.mask = memory.of<bool>(mask);
  args.factor = factor;
  args.step = step;
  args.forget = forget;
  run(op, state[0], args);
  return {empty, counts};
}

Tensor occupancy_remove_(at::TensorList state, const Tensor& mask) {
  const char* op = "occupancy_remove_";
  RemoveArgs args;
  args.state = parse_state(op, state);
  check_mask(op, mask, state);
  const Tensor counts = output(args.counts, {1, int64_t{kStateCounts}}, state[0]);
  if (counts.is_meta()) return counts;
  Memory memory;
  args.mask = memory.of<bool>(mask);
  run(op, state[0], args);
  return counts;
}

void parse_lookup(const char* op, OccupancyLookup& lookup, at::TensorList state, double voxel_size,
                  c10::ArrayRef<double> map_origin, double threshold, std::optional<double> fill) {
  lookup.state = parse_state(op, state);
  lookup.frame = parse_map_rays(op, voxel_size, map_origin);
  lookup.threshold = parse_threshold(op, threshold);
  lookup.fill = quiet(static_cast<float>(fill.value_or(std::numeric_limits<double>::quiet_NaN())));
}

std::tuple<Tensor, Tensor> occupancy_query(at::TensorList state, const Tensor& points,
                                           double voxel_size, c10::ArrayRef<double> map_origin,
                                           const OptionalTensor& num_valid, double threshold,
                                           std::optional<double> fill) {
  const char* op = "occupancy_query";
  OccupancyQueryArgs args;
  parse_lookup(op, args, state, voxel_size, map_origin, threshold, fill);
  Inputs in(op);
  add_points(in, points);
  check_device(op, "state", state[kTable], points);
  add_batch(in, {}, num_valid);
  const Tensor logodds = output(args.logodds, {in["N"]}, points);
  const Tensor label = output(args.label, {in["N"]}, points);
  if (points.is_meta()) return {logodds, label};
  const Clouds packed(points, {}, num_valid);
  args.points = packed.view;
  run(op, points, args);
  return {logodds, label};
}

std::tuple<Tensor, Tensor> occupancy_crop(at::TensorList state, double voxel_size,
                                          c10::ArrayRef<double> map_origin,
                                          c10::ArrayRef<double> cell_size,
                                          c10::ArrayRef<double> point_cloud_range,
                                          const OptionalTensor& poses, double threshold,
                                          std::optional<double> fill) {
  const char* op = "occupancy_crop";
  OccupancyCropArgs args;
  parse_lookup(op, args, state, voxel_size, map_origin, threshold, fill);
  args.grid = parse_voxel_grid(op, cell_size, point_cloud_range);
  Inputs in(op);
  if (poses) {
    in.add("poses", poses, Dtypes::kFloats, "[B, 3, 4]");
    check_device(op, "poses", *poses, "the state", state[kTable]);
  } else {
    in.add_size("B", 1);
  }
  check_keys(op, args.grid, in["B"]);
  const auto [nx, ny, nz] = args.grid.cells;
  const Tensor& beside = state[kTable];
  const Tensor logodds = output(args.logodds, {in["B"], nz, ny, nx}, beside);
  const Tensor label = output(args.label, {in["B"], nz, ny, nx}, beside);
  if (beside.is_meta()) return {logodds, label};
  Memory memory;
  args.crops = in["B"].expect_int();
  args.poses = memory.of(poses);
  if (poses) args.pose_type = dtype_of(poses->scalar_type());
  run(op, beside, args);
  return {logodds, label};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> occupancy_raycast(
    at::TensorList state, const Tensor& points, const Tensor& origins, double voxel_size,
    c10::ArrayRef<double> map_origin, const OptionalTensor& origin_index,
    const OptionalTensor& num_valid, double threshold, bool stop_unknown, double solid_angle) {
  const char* op = "occupancy_raycast";
  OccupancyRaycastArgs args;
  args.state = parse_state(op, state);
  Inputs in(op);
  add_rays(in, points, origins, origin_index, {}, num_valid, {});
  check_device(op, "state", state[kTable], points);
  args.rays = parse_map_rays(op, voxel_size, map_origin);
  args.threshold = parse_threshold(op, threshold);
  check_value(std::isfinite(solid_angle) && solid_angle >= 0, op,
              "solid_angle must be finite and >= 0", solid_angle);
  const c10::SymInt n = in["N"];
  const Tensor distance = output(args.distance, {n}, points);
  const Tensor unseen = output(args.unseen, {n}, points);
  const Tensor status = output(args.status, {n}, points);
  const Tensor indices = output(args.indices, {n, 4}, points);
  const Tensor unknown = output(args.unknown, {n}, points);
  if (points.is_meta()) return {distance, unseen, status, indices, unknown};
  const Clouds packed(points, {}, num_valid);
  Memory memory;
  put_rays(args.rays, memory, packed, origins, origin_index, {});
  args.stop_unknown = stop_unknown;
  args.solid_angle = solid_angle;
  run(op, points, args);
  return {distance, unseen, status, indices, unknown};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> occupancy_extract(at::TensorList state,
                                                                     c10::SymInt max_out,
                                                                     std::string_view select,
                                                                     double threshold) {
  const char* op = "occupancy_extract";
  OccupancyExtractArgs args;
  args.state = parse_state(op, state);
  check_count(op, "max_out", max_out);
  args.select = parse_choice<OccupancySelect>(op, "select", select,
                                              {{"occupied", OccupancySelect::kOccupied},
                                               {"free", OccupancySelect::kFree},
                                               {"observed", OccupancySelect::kObserved}});
  args.threshold = parse_threshold(op, threshold);
  const Tensor& beside = state[kTable];
  const Tensor logodds = output(args.logodds, {max_out}, beside);
  const Tensor mean = output(args.mean, {max_out, 3}, beside);
  const Tensor indices = output(args.indices, {max_out, 4}, beside);
  const Tensor num_samples = output(args.num_samples, {max_out}, beside);
  const Tensor counts = output(args.counts, {1, int64_t{kStateCounts}}, beside);
  if (!beside.is_meta()) {
    args.max_out = max_out.expect_int();
    run(op, beside, args);
  }
  return {logodds, mean, indices, num_samples, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add_in_place("occupancy_integrate_", occupancy_integrate_);
  ops.add_in_place("occupancy_insert_", occupancy_insert_);
  ops.add_in_place("occupancy_decay_", occupancy_decay_);
  ops.add_in_place("occupancy_remove_", occupancy_remove_);
  ops.add("occupancy_query", occupancy_query, not_differentiable());
  ops.add("occupancy_crop", occupancy_crop, not_differentiable());
  ops.add("occupancy_raycast", occupancy_raycast, not_differentiable());
  ops.add("occupancy_extract", occupancy_extract, not_differentiable());
}

}  // namespace
}  // namespace torchvox
