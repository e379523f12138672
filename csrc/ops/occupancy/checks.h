// SPDX-License-Identifier: Apache-2.0
//
// The state of a map and the model of a sensor, checked and turned into what kernels take.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <vector>

#include "csrc/kernels/occupancy/state.h"
#include "csrc/ops/core/checks.h"

namespace torchvox {

struct StateTensor {
  const char* name;
  at::ScalarType type;
  const char* type_name;
  const char* shape;
};
// In the order of enum StatePart.
inline constexpr StateTensor kStateTensors[kStateParts] = {
    {"table", at::kInt, "int32", "[H], a power of two of 2 C or more"},
    {"region_key", at::kLong, "int64", "[C]"},
    {"region_stamp", at::kInt, "int32", "[C]"},
    {"status", at::kLong, "int64", "[8]"},
    {"logodds", at::kShort, "int16", "[C, 512]"},
    {"hit_miss", at::kInt, "int32", "[C, 512, 2], or of 0 rows"},
};

// Whether no byte belongs to both; of tensors without memory nothing is known.
inline bool are_apart(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_meta() || b.is_meta() || a.numel() == 0 || b.numel() == 0) return true;
  const auto* const first = static_cast<const char*>(a.const_data_ptr());
  const auto* const second = static_cast<const char*>(b.const_data_ptr());
  return first + a.nbytes() <= second || second + b.nbytes() <= first;
}
// Of an argument that is contiguous.
inline void check_apart(const char* op, const char* name, const at::Tensor& tensor,
                        at::TensorList state) {
  for (int k = 0; k < kStateParts; ++k) {
    check_value(are_apart(tensor, state[k]), op, {name, " must share no memory with the state"},
                "that of ", kStateTensors[k].name);
  }
}

// Pointers are null, and C and H those that are known, on meta tensors.
inline OccupancyState parse_state(const char* op, at::TensorList state) {
  check_value(state.size() == kStateParts, op,
              "state must be (table, region_key, region_stamp, status, logodds, hit_miss)",
              state.size(), " tensors");
  for (int k = 0; k < kStateParts; ++k) {
    const auto& [name, type, type_name, shape] = kStateTensors[k];
    check_given(op, "state", state[k]);
    check_type(state[k].scalar_type() == type, op, {name, " of the state must be ", type_name},
               state[k].scalar_type());
    check_device(op, name, state[k], "the state's table", state[0]);
  }
  const auto check_shape = [&](int k, auto... sizes) {
    const at::Tensor& tensor = state[k];
    const Rule rule{kStateTensors[k].name, " of the state must be ", kStateTensors[k].shape};
    check_value(tensor.dim() == sizeof...(sizes), op, rule, tensor.sym_sizes());
    int axis = 0;
    (check_size(tensor.sym_size(axis++).sym_eq(sizes), op, rule, tensor.sym_sizes()), ...);
  };
  const c10::SymInt capacity = state[kRegionKey].dim() == 1 ? state[kRegionKey].sym_size(0) : 0;
  const c10::SymInt table_size = state[kTable].dim() == 1 ? state[kTable].sym_size(0) : 0;
  const at::Tensor& hit_miss = state[kHitMiss];
  const bool counts_hits = hit_miss.dim() != 3 || hit_miss.sym_size(0) != 0;
  check_shape(kRegionKey, capacity);
  check_shape(kRegionStamp, capacity);
  check_shape(kStatus, c10::SymInt(kStatusWords));
  check_shape(kLogOdds, capacity, c10::SymInt(kRegionVoxels));
  check_shape(kHitMiss, counts_hits ? capacity : c10::SymInt(0), c10::SymInt(kRegionVoxels),
              c10::SymInt(2));
  check_shape(kTable, table_size);
  check_below(capacity, int64_t{kNoSlot}, op, "region_key of the state must have C < 2^31 - 1 rows",
              capacity);
  OccupancyState view;
  view.capacity = capacity.maybe_as_int().value_or(0);
  view.table_size = table_size.maybe_as_int().value_or(2 * view.capacity + 2);
  const Rule rule{"table of the state must be ", kStateTensors[kTable].shape};
  check_value(view.table_size >= 2 && view.table_size >= 2 * view.capacity, op, rule, table_size);
  check_value(!table_size.maybe_as_int() || (view.table_size & (view.table_size - 1)) == 0, op,
              rule, table_size);
  for (int k = 0; k < kStateParts; ++k) {
    check_value(state[k].is_contiguous(), op,
                {kStateTensors[k].name, " of the state must be contiguous"}, "strides ",
                state[k].sym_strides());
    for (int j = 0; j < k; ++j) {
      check_value(are_apart(state[k], state[j]), op,
                  {kStateTensors[k].name, " of the state must share no memory with ",
                   kStateTensors[j].name},
                  "tensors that overlap");
    }
  }
  if (state[0].is_meta()) return view;
  view.table = reinterpret_cast<uint32_t*>(state[kTable].mutable_data_ptr<int32_t>());
  view.region_key = state[kRegionKey].mutable_data_ptr<int64_t>();
  view.region_stamp = state[kRegionStamp].mutable_data_ptr<int32_t>();
  view.status = state[kStatus].mutable_data_ptr<int64_t>();
  view.logodds = state[kLogOdds].mutable_data_ptr<int16_t>();
  view.hit_miss = counts_hits ? hit_miss.mutable_data_ptr<int32_t>() : nullptr;
  return view;
}

// (hit, miss, clamp_min, clamp_max) in log-odds, to units, half away from zero.
inline Sensor parse_sensor(const char* op, c10::ArrayRef<double> sensor) {
  constexpr double kLargest = 31.9;
  check_value(sensor.size() == 4, op, "sensor must be (hit, miss, clamp_min, clamp_max)", sensor);
  for (const double log_odds : sensor) {
    check_value(std::fabs(log_odds) <= kLargest, op, "sensor must be log-odds from -31.9 to 31.9",
                sensor);
  }
  check_value(sensor[0] >= 0 && sensor[1] <= 0, op, "sensor must have hit >= 0 and miss <= 0",
              sensor);
  check_value(sensor[2] < sensor[3], op, "sensor must have clamp_min < clamp_max", sensor);
  const auto units = [&](int k) {
    return static_cast<int32_t>(std::round(sensor[k] * kLogOddsUnit));
  };
  return {units(0), units(1), units(2), units(3)};
}

inline double parse_threshold(const char* op, double threshold) {
  check_value(std::isfinite(threshold), op, "threshold must be finite", threshold);
  return threshold;
}

// Bools [C] of regions.
inline void check_mask(const char* op, const at::Tensor& mask, at::TensorList state) {
  check_type(mask.scalar_type() == at::kBool, op, "mask must be bool", mask.scalar_type());
  check_device(op, "mask", mask, "the state", state[0]);
  check_value(mask.dim() == 1, op, "mask must be [C] as region_key is", mask.sym_sizes());
  check_size(mask.sym_size(0).sym_eq(state[kRegionKey].sym_size(0)), op,
             "mask must be [C] as region_key is", mask.sym_sizes());
}

}  // namespace torchvox
