// SPDX-License-Identifier: Apache-2.0
//
// A map's state and its sensor as arguments of ops, checked and turned into what kernels take.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <string>

#include "csrc/kernels/occupancy/log_odds.h"
#include "csrc/ops/core/checks.h"
#include "csrc/ops/core/device.h"

namespace torchvox {

// The tensors of a state, in order. One of 512 voxels a region may be off: it has no rows.
struct StateTensor {
  const char* name;
  at::ScalarType type;
  const char* shape;
  std::vector<int64_t> row;  // sizes behind the first one
  bool optional = false;
};
inline const std::array<StateTensor, 6> kStateTensors = {{
    {"table", at::kInt, "[H], H = 2^k >= 2 * C", {}},
    {"region_key", at::kLong, "[C]", {}},
    {"region_stamp", at::kInt, "[C]", {}},
    {"status", at::kLong, "[8]", {}},
    {"logodds", at::kShort, "[C, 512]", {kRegionVoxels}},
    {"hit_miss", at::kInt, "[C, 512, 2] or [0, 512, 2]", {kRegionVoxels, 2}, true},
}};
enum StateIndex { kTable, kRegionKey, kRegionStamp, kStatus, kLogOdds, kHitMiss };

inline OccupancyState parse_state(const char* op, at::TensorList state) {
  constexpr size_t kTensors = kStateTensors.size();
  check_value(state.size() == kTensors, op,
              "state must be the 6 tensors of torchvox.occupancy_state()", state.size());
  check_value(state[kRegionKey].dim() == 1, op, "state[1] (region_key) must be [C]",
              state[kRegionKey].sym_sizes());
  const c10::SymInt capacity = state[kRegionKey].sym_size(0);
  check_below(capacity, int64_t{1} << 30, op, "state[1] (region_key) must have C < 2^30 rows",
              capacity);
  for (size_t i = 0; i < kTensors; ++i) {
    const at::Tensor& tensor = state[i];
    const StateTensor& wanted = kStateTensors[i];
    const std::string name = "state[" + std::to_string(i) + "] (" + wanted.name + ")";
    check_type(tensor.scalar_type() == wanted.type, op,
               {name.c_str(), " must be ", c10::toString(wanted.type)}, tensor.scalar_type());
    check_device(op, name.c_str(), tensor, "state[1]", state[kRegionKey]);
    const Rule shape{name.c_str(), " must be ", wanted.shape};
    check_value(tensor.dim() == static_cast<int64_t>(1 + wanted.row.size()), op, shape,
                tensor.sym_sizes());
    for (size_t d = 0; d < wanted.row.size(); ++d) {
      check_size(tensor.sym_size(static_cast<int64_t>(d) + 1).sym_eq(wanted.row[d]), op, shape,
                 tensor.sym_sizes());
    }
    const c10::SymInt rows = tensor.sym_size(0);
    if (i == kStatus) {
      check_size(rows.sym_eq(kStatusWords), op, shape, tensor.sym_sizes());
    } else if (i == kTable) {
      check_size(rows.sym_ge(2 * capacity) & rows.sym_ge(1), op, shape, tensor.sym_sizes());
      if (const auto size = rows.maybe_as_int()) {
        check_value((*size & (*size - 1)) == 0, op, shape, tensor.sym_sizes());
      }
    } else if (wanted.optional) {
      check_size(rows.sym_eq(capacity) | rows.sym_eq(0), op, shape, tensor.sym_sizes());
    } else {
      check_size(rows.sym_eq(capacity), op, shape, tensor.sym_sizes());
    }
    check_value(tensor.is_contiguous(), op, {name.c_str(), " must be contiguous"},
                tensor.sym_strides());
  }
  OccupancyState view;
  if (state[kTable].is_meta()) return view;
  for (size_t i = 0; i < kTensors; ++i) {
    for (size_t k = 0; k < i; ++k) {
      const auto begin = [&](size_t t) {
        return static_cast<const char*>(state[t].const_data_ptr());
      };
      const bool apart = state[i].numel() == 0 || state[k].numel() == 0 ||
          begin(i) + state[i].nbytes() <= begin(k) || begin(k) + state[k].nbytes() <= begin(i);
      check_value(apart, op, "the tensors of state must not overlap", "state[", k, "] over state[",
                  i, "]");
    }
  }
  view.table = reinterpret_cast<uint32_t*>(state[kTable].mutable_data_ptr<int32_t>());
  view.table_size = state[kTable].size(0);
  view.region_key = state[kRegionKey].mutable_data_ptr<int64_t>();
  view.region_stamp = state[kRegionStamp].mutable_data_ptr<int32_t>();
  view.status = state[kStatus].mutable_data_ptr<int64_t>();
  view.logodds = state[kLogOdds].mutable_data_ptr<int16_t>();
  view.capacity = state[kRegionKey].size(0);
  if (state[kHitMiss].size(0) > 0) view.hit_miss = state[kHitMiss].mutable_data_ptr<int32_t>();
  return view;
}

// Log-odds (hit, miss, clamp_min, clamp_max), rounded to 1/1024, half away from zero.
inline Sensor parse_sensor(const char* op, c10::ArrayRef<double> sensor) {
  check_value(sensor.size() == 4, op, "sensor must be (hit, miss, clamp_min, clamp_max)", sensor);
  for (const double logodds : sensor) {
    check_value(std::fabs(logodds) <= 31.9, op, "sensor must be log-odds between -31.9 and 31.9",
                sensor);
  }
  check_value(sensor[0] >= 0, op, "sensor must have hit >= 0", sensor[0]);
  check_value(sensor[1] <= 0, op, "sensor must have miss <= 0", sensor[1]);
  check_value(sensor[2] < sensor[3], op, "sensor must have clamp_min below clamp_max", sensor[2],
              " and ", sensor[3]);
  const auto units = [](double x) { return static_cast<int32_t>(std::round(x * 1024)); };
  return {units(sensor[0]), units(sensor[1]), units(sensor[2]), units(sensor[3])};
}

inline double parse_threshold(const char* op, double threshold) {
  check_value(std::isfinite(threshold), op, "threshold must be finite", threshold);
  return threshold;
}

}  // namespace torchvox
