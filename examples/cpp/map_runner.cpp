// SPDX-License-Identifier: Apache-2.0
//
// Scans and their poses to an occupancy map, without Python:
//   map_runner cpu|cuda voxel_size columns poses.txt map.pt scan.bin...
// poses.txt has 12 numbers a scan, as KITTI's: the rows of a [3, 4] matrix from the frame of the
// sensor to that of the map. The map is that of torchvox.OccupancyMap(voxel_size), bit for bit;
// map.pt holds its region keys [n] int64, ascending, and log-odds [n, 512] int16, as its .npz does.
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "program.h"

namespace {

using State = std::vector<at::Tensor>;
enum Part { kTable, kKey, kStamp, kStatus, kLogOdds };
enum Count { kRays = 0, kVisits = 6, kTouched = 8, kNew = 9, kInUse = 10, kOverflow = 11 };

// An empty map: docs/occupancy.md has its tensors. Layers that are off have no rows.
State make_state(int64_t capacity, at::Device device) {
  int64_t entries = 1;
  while (entries < 2 * capacity) entries *= 2;
  const auto full = [&](at::IntArrayRef shape, int64_t fill, at::ScalarType type) {
    return at::full(shape, fill, at::TensorOptions(type).device(device));
  };
  State state(kLogOdds + 1);
  state[kTable] = full({entries}, std::numeric_limits<int32_t>::max(), at::kInt);
  state[kKey] = full({capacity}, -1, at::kLong);
  state[kStamp] = full({capacity}, 0, at::kInt);
  state[kStatus] = full({8}, 0, at::kLong);
  state[kStatus][0] = 1;  // the version of the layout
  state[kLogOdds] = full({capacity, 512}, std::numeric_limits<int16_t>::min(), at::kShort);
  const at::ScalarType whole = at::kInt, real = at::kFloat;
  const std::vector<std::pair<std::vector<int64_t>, at::ScalarType>> off{
      {{0, 512, 2}, whole}, {{0, 512}, whole},   {{0, 512}, at::kLong},
      {{0}, whole},         {{0, 512}, whole},   {{0, 512, 3}, real},
      {{0, 512, 6}, real},  {{0, 512, 2}, real}, {{0, 512, 2}, whole}};
  for (const auto& [shape, type] : off) state.push_back(full(shape, 0, type));
  return state;
}

void grow(State& state, int64_t capacity) {
  State larger = make_state(capacity, state[kKey].device());
  for (size_t i = kKey; i < state.size(); ++i) {
    larger[i].narrow(0, 0, state[i].size(0)).copy_(state[i]);
  }
  larger[kStatus][3] = 0;  // calls are let in again
  torchvox::occupancy_remove_(larger, larger[kKey].lt(-1));  // none; it builds the table
  state = std::move(larger);
}

double log_odds(double probability) { return std::log(probability / (1 - probability)); }

// The preset "ohm": a hit, a miss, the least and the most that a map believes.
const std::vector<double> kSensor{log_odds(0.9), log_odds(0.45), log_odds(0.1192029),
                                  log_odds(0.971)};
const std::vector<double> kOrigin{0, 0, 0};

// A call writes all or nothing, and says what it needs: with that room it is made again.
std::vector<int64_t> integrate(State& state, const at::Tensor& points, const at::Tensor& origin,
                               double voxel_size) {
  for (;;) {
    const at::Tensor counts =
        torchvox::occupancy_integrate_(state, points, origin, voxel_size, kOrigin, kSensor).cpu();
    const auto* first = counts.const_data_ptr<int64_t>();
    if (first[kOverflow] == 0) return {first, first + counts.size(1)};
    const int64_t capacity = state[kKey].size(0);
    grow(state, std::max({first[kTouched], first[kNew] + first[kInUse], capacity * 3 / 2}));
  }
}

at::Tensor read_poses(const std::string& path, int64_t scans) {
  std::ifstream file(path);
  const std::vector<double> numbers{std::istream_iterator<double>(file), {}};
  if (!file.eof() || static_cast<int64_t>(numbers.size()) != 12 * scans) {
    throw std::runtime_error(path + " must be 12 numbers for each of " + std::to_string(scans) +
                             " scans, got " + std::to_string(numbers.size()));
  }
  return at::tensor(numbers).view({scans, 3, 4});
}

void map(const std::vector<std::string>& arguments) {
  const double voxel_size = std::stod(arguments[1]);
  const int64_t columns = std::stol(arguments[2]);
  const std::vector<std::string> paths{arguments.begin() + 5, arguments.end()};
  const auto scans = static_cast<int64_t>(paths.size());
  const at::Tensor known = read_poses(arguments[3], scans).to(at::Device(arguments[0]));
  State state = make_state(1024, known.device());
  for (size_t i = 0; i < paths.size(); ++i) {
    const at::Tensor pose = known.narrow(0, static_cast<int64_t>(i), 1);
    const at::Tensor scan = read_cloud(paths[i], columns).to(known.device());
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor points = torchvox::transform_points(scan, pose);
    // What hits space that was free has moved there: ask before the scan enters.
    const at::Tensor label =
        std::get<1>(torchvox::occupancy_query(state, points, voxel_size, kOrigin));
    const std::vector<int64_t> counts = integrate(state, points, pose.select(2, 3), voxel_size);
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    std::cout << paths[i] << ": " << counts[kRays] << " rays, " << counts[kVisits] << " visits, "
              << counts[kInUse] << " regions, " << label.eq(0).sum().item<int64_t>()
              << " points in space that was free, " << spent.count() << " ms\n";
  }
  const auto regions = state[kStatus][1].item<int64_t>();
  const auto [keys, order] = state[kKey].narrow(0, 0, regions).sort();
  write_outputs({keys.cpu(), state[kLogOdds].index_select(0, order).cpu()}, arguments[4]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string usage = "map_runner cpu|cuda voxel_size columns poses.txt map.pt scan.bin...";
  return run_program({argv, argv + argc}, usage, map);
}
