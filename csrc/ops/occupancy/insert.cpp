// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/occupancy/insert.h"

#include <torch/library.h>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/core/device.h"
#include "csrc/ops/occupancy/checks.h"

namespace torchvox {
namespace {

using at::Tensor;

InsertMode parse_mode(const char* op, std::string_view merge) {
  check_value(merge == "add" || merge == "replace" || merge == "keep", op,
              "merge must be 'add', 'replace' or 'keep'", "'", merge, "'");
  return merge == "add" ? InsertMode::kAdd
      : merge == "keep" ? InsertMode::kKeep
                        : InsertMode::kReplace;
}

// What `layers` has one tensor of each: rows as the state has them.
constexpr int kLayerParts[] = {kRegionStamp, kLogOdds, kHitMiss};

void check_layers(const char* op, at::TensorList state, const Tensor& keys, at::TensorList layers) {
  check_value(layers.empty() || layers.size() == std::size(kLayerParts), op,
              "layers must be none or (region_stamp, logodds, hit_miss)", layers.size(),
              " tensors");
  for (size_t k = 0; k < layers.size(); ++k) {
    const Tensor &layer = layers[k], &part = state[kLayerParts[k]];
    const auto& [name, type, type_name, shape] = kStateTensors[kLayerParts[k]];
    check_given(op, "layers", layer);
    check_type(layer.scalar_type() == type, op, {name, " of layers must be ", type_name},
               layer.scalar_type());
    check_device(op, name, layer, "the state", state[0]);
    const Rule rule{name, " of layers must have K rows as the state has them, or 0 as the state"};
    check_value(layer.dim() == part.dim(), op, rule, layer.sym_sizes());
    for (int64_t axis = 1; axis < part.dim(); ++axis) {
      check_size(layer.sym_size(axis).sym_eq(part.sym_size(axis)), op, rule, layer.sym_sizes());
    }
    // Of a state without room nobody knows which layers are on.
    const bool off = kLayerParts[k] == kHitMiss && part.sym_size(0) == 0 &&
        (state[kRegionKey].sym_size(0) != 0 || layer.sym_size(0) == 0);
    const c10::SymInt rows = off ? c10::SymInt(0) : keys.sym_size(0);
    check_size(layer.sym_size(0).sym_eq(rows), op, rule, layer.sym_sizes());
  }
}

// The pointer of a tensor that is only read, in a struct whose other users write.
template <class T>
T* read_only(const Tensor& tensor) {
  return const_cast<T*>(tensor.const_data_ptr<T>());
}

Tensor occupancy_insert_(at::TensorList state, const Tensor& keys_in, at::TensorList layers_in,
                         c10::ArrayRef<double> sensor, std::string_view merge,
                         const OptionalTensor& num_valid_in) {
  const char* op = "occupancy_insert_";
  InsertArgs args;
  args.state = parse_state(op, state);
  check_type(keys_in.scalar_type() == at::kLong, op, "keys must be int64", keys_in.scalar_type());
  check_device(op, "keys", keys_in, "the state", state[0]);
  check_value(keys_in.dim() == 1, op, "keys must be [K]", keys_in.sym_sizes());
  check_below(keys_in.sym_size(0), kIndexLimit, op, "keys must have K < 2^31 elements",
              keys_in.sym_size(0));
  check_layers(op, state, keys_in, layers_in);
  args.sensor = parse_sensor(op, sensor);
  args.mode = parse_mode(op, merge);
  if (num_valid_in) {
    check_integers(op, "num_valid", *num_valid_in);
    check_device(op, "num_valid", *num_valid_in, "the state", state[0]);
    check_size(num_valid_in->sym_numel().sym_eq(1), op, "num_valid must be one number",
               num_valid_in->sym_sizes());
  }
  const Tensor counts = empty_beside({1, int64_t{kStateCounts}}, at::kLong, state[0]);
  if (counts.is_meta()) return counts;
  const Tensor keys = keys_in.contiguous();
  check_apart(op, "keys", keys, state);
  std::vector<Tensor> layers;
  for (const Tensor& layer : layers_in) {
    layers.push_back(layer.contiguous());
    check_apart(op, "layers", layers.back(), state);
  }
  const OptionalTensor num_valid = contiguous(num_valid_in);
  args.given.region_key = read_only<int64_t>(keys);
  args.given.capacity = keys.size(0);
  if (!layers.empty()) {
    args.given.region_stamp = read_only<int32_t>(layers[0]);
    args.given.logodds = read_only<int16_t>(layers[1]);
    args.given.hit_miss = read_only<int32_t>(layers[2]);
  }
  args.num_valid = index_array(num_valid);
  args.counts = counts.mutable_data_ptr<int64_t>();
  run(op, state[0], args);
  return counts;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add(TORCHVOX_OP(occupancy_insert_));
  ops.in_place("occupancy_insert_", mutating);
}

}  // namespace
}  // namespace torchvox
