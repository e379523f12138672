// SPDX-License-Identifier: Apache-2.0
//
// occupancy_insert_ adds regions to a map, occupancy_decay_ lowers their log-odds, and
// occupancy_remove_ takes them out.
#include "csrc/kernels/occupancy/decay.h"
#include "csrc/kernels/occupancy/insert.h"
#include "csrc/kernels/occupancy/remove.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/occupancy/checks.h"

namespace torchvox {
namespace {

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

TORCHVOX_REGISTER_OPS(ops) {
  ops.add_in_place("occupancy_insert_", occupancy_insert_);
  ops.add_in_place("occupancy_decay_", occupancy_decay_);
  ops.add_in_place("occupancy_remove_", occupancy_remove_);
}

}  // namespace
}  // namespace torchvox
