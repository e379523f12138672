// SPDX-License-Identifier: Apache-2.0
//
// The state of a map and the model of a sensor, checked and turned into what kernels take.
#pragma once

#include "csrc/kernels/occupancy/state.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

struct StateTensor {
  const char* name;
  at::ScalarType type;
  const char* type_name;
  int dims;  // of [rows, 512, columns], as far as it goes
  int columns;
  const char* shape;
};
// In the order of enum StatePart.
inline constexpr StateTensor kStateTensors[kStateParts] = {
    {"table", at::kInt, "int32", 1, 0, "[H], a power of two of 2 C or more"},
    {"region_key", at::kLong, "int64", 1, 0, "[C]"},
    {"region_stamp", at::kInt, "int32", 1, 0, "one row per region, [..]"},
    {"status", at::kLong, "int64", 1, 0, "[8]"},
    {"logodds", at::kShort, "int16", 2, 0, "one row per region, [.., 512]"},
    {"hit_miss", at::kInt, "int32", 3, 2, "one row per region or none, [.., 512, 2]"},
    {"touch", at::kInt, "int32", 2, 0, "one row per region or none, [.., 512]"},
    {"traversal", at::kLong, "int64", 2, 0, "one row per region or none, [.., 512]"},
    {"sample_row", at::kInt, "int32", 1, 0, "one row per region, none without samples, [..]"},
    {"sample_count", at::kInt, "int32", 2, 0, "[D, 512]"},
    {"sample_mean", at::kFloat, "float32", 3, 3, "as sample_count, [D, 512, 3]"},
    {"sample_cov", at::kFloat, "float32", 3, 6, "as sample_count or without rows, [D, 512, 6]"},
    {"intensity", at::kFloat, "float32", 3, 2, "as sample_count or without rows, [D, 512, 2]"},
    {"passes", at::kInt, "int32", 3, 2,
     "as sample_count or, always without sample_cov, without rows, [D, 512, 2]"},
};

// Part `k` of `list` beside the state, with so many rows.
inline void check_part(const char* op, int k, const Tensor& tensor, const char* list,
                       const Tensor& state, const c10::SymInt& rows) {
  const auto& [name, type, type_name, dims, columns, shape] = kStateTensors[k];
  check_given(op, name, tensor);
  check_type(tensor.scalar_type() == type, op, {name, " of ", list, " must be ", type_name},
             tensor.scalar_type());
  check_device(op, name, tensor, "the state", state);
  const Rule rule{name, " of ", list, " must be ", shape};
  check_value(tensor.dim() == dims, op, rule, tensor.sym_sizes());
  for (int axis = 0; axis < dims; ++axis) {
    const c10::SymInt size = axis == 0 ? rows : axis == 1 ? kRegionVoxels : columns;
    check_size(tensor.sym_size(axis).sym_eq(size), op, rule, tensor.sym_sizes());
  }
}

// That contiguous tensors share no byte; of those without memory nothing is known.
inline void check_apart(const char* op, const char* name, const Tensor& tensor,
                        const char* other_name, const Tensor& other) {
  if (tensor.is_meta() || other.is_meta() || tensor.numel() == 0 || other.numel() == 0) return;
  const auto* const a = static_cast<const char*>(tensor.const_data_ptr());
  const auto* const b = static_cast<const char*>(other.const_data_ptr());
  check_value(a + tensor.nbytes() <= b || b + other.nbytes() <= a, op,
              {name, " must share no memory with ", other_name, " of the state"}, "an overlap");
}
inline void check_apart(const char* op, const char* name, const Tensor& tensor,
                        at::TensorList state) {
  for (int k = 0; k < kStateParts; ++k) {
    check_apart(op, name, tensor, kStateTensors[k].name, state[k]);
  }
}

// On meta tensors pointers are null, and sizes those that are known.
inline OccupancyState parse_state(const char* op, at::TensorList state) {
  check_value(state.size() == kStateParts, op,
              "state must be (table, region_key, region_stamp, status, logodds, hit_miss, touch, "
              "traversal, sample_row, sample_count, sample_mean, sample_cov, intensity, passes)",
              state.size(), " tensors");
  const auto rows = [&](int k) {
    return state[k].defined() && state[k].dim() > 0 ? state[k].sym_size(0) : c10::SymInt(0);
  };
  const c10::SymInt capacity = rows(kRegionKey), entries = rows(kTable);
  const c10::SymInt sample_rows = rows(kSampleCount);
  const bool samples = sample_rows != 0;
  const auto is_on = [&](int k) {
    return k < kHitMiss || (k == kSampleRow || k == kSampleMean ? samples : rows(k) != 0);
  };
  for (int k = 0; k < kStateParts; ++k) {
    check_part(op, k, state[k], "the state", state[0],
               k == kTable             ? entries
                   : k == kStatus      ? kStatusWords
                   : !is_on(k)         ? c10::SymInt(0)
                   : k >= kSampleCount ? sample_rows
                                       : capacity);
    const char* const name = kStateTensors[k].name;
    check_value(state[k].is_contiguous(), op, {name, " of the state must be contiguous"},
                "strides ", state[k].sym_strides());
    for (int j = 0; j < k; ++j) check_apart(op, name, state[k], kStateTensors[j].name, state[j]);
  }
  check_below(capacity, kNoSlot, op, "region_key of the state must be [C] with C < 2^31 - 1",
              capacity);
  check_below(sample_rows, kNoSlot, op,
              "sample_count of the state must be [D, 512] with D < 2^31 - 1", sample_rows);
  check_value(!is_on(kPasses) || is_on(kSampleCov), op,
              {"passes of the state must be ", kStateTensors[kPasses].shape}, "both");
  OccupancyState view;
  view.capacity = capacity.maybe_as_int().value_or(0);
  view.samples.rows = sample_rows.maybe_as_int().value_or(0);
  view.table_size = entries.maybe_as_int().value_or(power_of_two_from(2 * view.capacity + 2));
  const int64_t size = view.table_size;
  check_value(size >= 2 && size >= 2 * view.capacity && (size & (size - 1)) == 0, op,
              {"table of the state must be ", kStateTensors[kTable].shape}, entries);
  if (state[0].is_meta()) return view;
  view.table = reinterpret_cast<uint32_t*>(state[kTable].mutable_data_ptr<int32_t>());
  view.region_key = state[kRegionKey].mutable_data_ptr<int64_t>();
  view.region_stamp = state[kRegionStamp].mutable_data_ptr<int32_t>();
  view.status = state[kStatus].mutable_data_ptr<int64_t>();
  view.logodds = state[kLogOdds].mutable_data_ptr<int16_t>();
  if (is_on(kHitMiss)) view.hit_miss = state[kHitMiss].mutable_data_ptr<int32_t>();
  if (is_on(kTouch)) view.touch = state[kTouch].mutable_data_ptr<int32_t>();
  if (is_on(kTraversal)) view.traversal = state[kTraversal].mutable_data_ptr<int64_t>();
  if (!samples) return view;
  view.sample_row = state[kSampleRow].mutable_data_ptr<int32_t>();
  view.samples.count = state[kSampleCount].mutable_data_ptr<int32_t>();
  view.samples.mean = state[kSampleMean].mutable_data_ptr<float>();
  if (is_on(kSampleCov)) view.samples.cov = state[kSampleCov].mutable_data_ptr<float>();
  if (is_on(kIntensity)) view.samples.intensity = state[kIntensity].mutable_data_ptr<float>();
  if (is_on(kPasses)) view.samples.passes = state[kPasses].mutable_data_ptr<int32_t>();
  return view;
}

// (hit, miss, clamp_min, clamp_max) in log-odds, to units, half away from zero.
inline Sensor parse_sensor(const char* op, c10::ArrayRef<double> sensor) {
  constexpr double kLargest = 31.9;
  check_value(sensor.size() == 4, op, "sensor must be (hit, miss, clamp_min, clamp_max)", sensor);
  int32_t units[4];
  for (int k = 0; k < 4; ++k) {
    check_value(std::fabs(sensor[k]) <= kLargest, op, "sensor must be log-odds from -31.9 to 31.9",
                sensor);
    units[k] = static_cast<int32_t>(std::round(sensor[k] * kLogOddsUnit));
  }
  check_value(sensor[0] >= 0 && sensor[1] <= 0, op, "sensor must have hit >= 0 and miss <= 0",
              sensor);
  check_value(sensor[2] < sensor[3], op, "sensor must have clamp_min < clamp_max", sensor);
  return {units[0], units[1], units[2], units[3]};
}

inline double parse_threshold(const char* op, double threshold) {
  check_value(std::isfinite(threshold), op, "threshold must be finite", threshold);
  return threshold;
}

// Bools [C] of regions.
inline void check_mask(const char* op, const OptionalTensor& mask, at::TensorList state) {
  Inputs in(op);
  in.add_size("C", state[kRegionKey].sym_size(0), "region_key");
  in.add("mask", mask, Dtypes::kBool, "[C]");
  if (mask) check_device(op, "mask", *mask, "the state", state[0]);
}

}  // namespace torchvox
