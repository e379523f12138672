// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the voxel ops without torch: every output of launch(), bit for bit against
// run_cpu(), and run_cpu() in many parts, tasks run backwards, against one. Exits with the number
// of mismatches.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/voxel/voxelize.h"
#include "tests/cpp/device_buffers.h"

#ifdef TORCHVOX_CUDA
#include <cuda_runtime.h>
#endif

namespace {

using namespace torchvox;

struct Random {
  uint64_t state;
  uint32_t next() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state >> 33);
  }
  double uniform() { return next() / 2147483648.0; }
  int64_t below(int64_t n) { return n > 0 ? static_cast<int64_t>(next() % n) : 0; }
};

Target device;
bool on_device = false;  // a CUDA build on a machine with a GPU

enum Cloud {
  kUniform,
  kClustered,
  kOneVoxel,
  kTwoVoxels,
  kHot,
  kDistinct,
  kNotFinite,
  kOutside,
  kClouds
};

struct Case {
  std::string name;
  int64_t rows = 1000;
  int64_t columns = 4;
  int64_t pad = 0;  // extra elements in a row
  Cloud cloud = kUniform;
  DType dtype = DType::kFloat;
  VoxelizeArgs args;
  std::vector<int64_t> offsets;  // empty: one sample
  std::vector<int64_t> valid;
  bool wide_indices = false;
  int table = -1;
  int ranking = -1;
  int kernels = -1;
  int common = -1;
  bool want_slot = false;
  bool want_arg = false;
  bool want_features = true;
};

double coordinate(Random& random, Cloud cloud, int64_t row, int64_t column, double lo, double hi) {
  const double u = random.uniform();
  if (column >= 3) return u < 0.02 ? (u < 0.01 ? NAN : -0.0) : std::floor(u * 64) / 8 - 4;
  switch (cloud) {
    case kClustered: {
      const double at = lo + (hi - lo) * std::floor(u * 37) / 37;
      return at + random.uniform() * random.uniform() * 0.3;
    }
    case kOneVoxel: return lo + 0.01 * u;
    case kTwoVoxels: return lo + 0.01 * u + (column == 0 && row % 2 ? 0.95 * (hi - lo) : 0);
    case kHot: return random.below(3) ? lo + (hi - lo) * u : lo;
    case kDistinct: {
      const int64_t cell = column == 0 ? row % 40 : column == 1 ? row / 40 % 40 : row / 1600 % 4;
      return lo + cell * 0.2 + 0.1;
    }
    case kNotFinite: return row % 3 == 0 ? (u < 0.5 ? NAN : INFINITY) : lo + (hi - lo) * u;
    case kOutside: return u < 0.5 ? 1e30 : lo - 1 + (hi - lo + 2) * u;
    default: return lo - 0.05 + (hi - lo + 0.1) * u;
  }
}

void put(std::vector<char>& data, DType dtype, int64_t at, double value) {
  store_as(data.data(), dtype, at, dtype == DType::kDouble ? value : static_cast<float>(value));
}

template <class T>
std::vector<char> integers(const std::vector<int64_t>& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

#ifdef TORCHVOX_CUDA
void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(100);
}
#else
#endif

// Memory on one side; filled with a pattern, so that a byte that is not written shows.
class Buffer {
 public:
  Buffer(bool cuda, size_t bytes) : cuda_(cuda), host_(bytes, char(0x5a)) { allocate(); }
  Buffer(bool cuda, std::vector<char> bytes) : cuda_(cuda), host_(std::move(bytes)) { allocate(); }
  ~Buffer() {
#ifdef TORCHVOX_CUDA
    if (cuda_) cudaFree(device_);
#endif
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() { return cuda_ ? device_ : host_.data(); }
  const std::vector<char>& read() {
#ifdef TORCHVOX_CUDA
    if (cuda_ && !host_.empty()) {
      check(cudaMemcpy(host_.data(), device_, host_.size(), cudaMemcpyDeviceToHost), "copy");
    }
#endif
    return host_;
  }

 private:
  void allocate() {
#ifdef TORCHVOX_CUDA
    if (!cuda_) return;
    check(cudaMalloc(&device_, host_.size() + 16), "allocate");
    check(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), "copy");
#endif
  }
  bool cuda_;
  std::vector<char> host_;
  void* device_ = nullptr;
};

// Four workers' worth of chunks, last first.
void backwards(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t step = std::max<int64_t>(1, count / 4);
  for (int64_t end = count; end > 0; end -= step) body(std::max<int64_t>(0, end - step), end);
}

template <class Args>
void execute(const Args& args, bool cuda) {
  Target target;
#ifdef TORCHVOX_CUDA
  if (cuda) {
    CudaContext context;
    context.target = device;
    Buffer workspace(true, static_cast<size_t>(workspace_bytes(args, context.target)));
    check(launch(args, workspace.data(), context), "launch");
    check(cudaDeviceSynchronize(), "run");
    return;
  }
#endif
  (void)cuda;
  Buffer workspace(false, static_cast<size_t>(workspace_bytes(args, target)));
  run_cpu(args, workspace.data(), backwards);
}

using Outputs = std::vector<std::pair<const char*, std::vector<char>>>;

// `parts`: see Plan::kVoxelParts.
Outputs run_voxelize(const Case& c, const std::vector<char>& points, bool cuda, int64_t parts) {
  set_plan_override(Plan::kVoxelParts, parts);
  set_plan_override(Plan::kVoxelTable, c.table);
  set_plan_override(Plan::kVoxelRanking, c.ranking);
  set_plan_override(Plan::kVoxelKernels, c.kernels);
  set_plan_override(Plan::kVoxelCommon, c.common);
  VoxelizeArgs args = c.args;
  Buffer data(cuda, points);
  Buffer offsets(cuda,
                 c.wide_indices ? integers<int64_t>(c.offsets) : integers<int32_t>(c.offsets));
  Buffer valid(cuda, c.wide_indices ? integers<int64_t>(c.valid) : integers<int32_t>(c.valid));
  args.points.data = data.data();
  args.points.dtype = c.dtype;
  args.points.rows = c.rows;
  args.points.columns = c.columns;
  args.points.row_stride = c.columns + c.pad;
  args.points.batches = c.offsets.empty() ? 1 : static_cast<int64_t>(c.offsets.size()) - 1;
  if (!c.offsets.empty()) args.points.offsets = {offsets.data(), c.wide_indices};
  if (!c.valid.empty()) args.points.num_valid = {valid.data(), c.wide_indices};
  args.grid.x_major = args.order == VoxelOrder::kXyz;

  const size_t capacity = static_cast<size_t>(args.capacity());
  Buffer features(cuda, capacity * args.row_values() * bytes_of(args.out_dtype));
  Buffer indices(cuda, capacity * 16), num_points(cuda, capacity * 4);
  Buffer point_voxel(cuda, c.rows * 4), point_slot(cuda, c.rows * 4);
  Buffer counts(cuda, (args.points.batches + 1) * kVoxelCounts * 4);
  Buffer arg(cuda, capacity * c.columns * 4);
  if (c.want_features) args.features = features.data();
  args.indices = static_cast<int32_t*>(indices.data());
  args.num_points = static_cast<int32_t*>(num_points.data());
  args.point_voxel = static_cast<int32_t*>(point_voxel.data());
  args.counts = static_cast<int32_t*>(counts.data());
  if (c.want_slot) args.point_slot = static_cast<int32_t*>(point_slot.data());
  if (c.want_arg) args.arg = static_cast<int32_t*>(arg.data());
  execute(args, cuda);
  return {{"features", features.read()},
          {"indices", indices.read()},
          {"num_points", num_points.read()},
          {"point_voxel", point_voxel.read()},
          {"point_slot", point_slot.read()},
          {"counts", counts.read()},
          {"arg", arg.read()},
          {"points", data.read()}};
}

int compare(const std::string& name, const Outputs& got, const Outputs& want) {
  for (size_t k = 0; k < want.size(); ++k) {
    const auto& a = got[k].second;
    const auto& b = want[k].second;
    if (a == b) continue;
    size_t at = 0;
    while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
    std::fprintf(stderr, "MISMATCH %s: %s differs at byte %zu of %zu (expected %zu bytes)\n",
                 name.c_str(), want[k].first, at, a.size(), b.size());
    return 1;
  }
  return 0;
}

int run_case(const Case& c, uint64_t seed) {
  Random random{seed};
  std::vector<char> points(static_cast<size_t>(c.rows * (c.columns + c.pad) * bytes_of(c.dtype)));
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t column = 0; column < c.columns + c.pad; ++column) {
      const int axis = static_cast<int>(std::min<int64_t>(column, 2));
      put(points, c.dtype, row * (c.columns + c.pad) + column,
          coordinate(random, c.cloud, row, column, c.args.grid.lo[axis], c.args.grid.hi[axis]));
    }
  }
  const Outputs want = run_voxelize(c, points, false, 1);
  int failures = 0;
  for (const int64_t parts : {2, 5, 16}) {
    const std::string name = c.name + " (" + std::to_string(parts) + " parts)";
    failures += compare(name, run_voxelize(c, points, false, parts), want);
  }
  if (!on_device) return failures;
  Case each = c;
  for (each.kernels = 0; each.kernels <= 1; ++each.kernels) {
    for (each.common = 0; each.common <= 1; ++each.common) {
      const std::string name = c.name + (each.kernels == 1 ? " (fused)" : " (separate)") +
          (each.common == 1 ? " (common)" : "");
      failures += compare(name, run_voxelize(each, points, true, 1), want);
    }
  }
  return failures;
}

VoxelGrid small_grid() {
  VoxelGrid grid;
  const float lo[3] = {-4, -4, -1}, hi[3] = {4, 4, 1}, size[3] = {0.2f, 0.2f, 0.5f};
  for (int axis = 0; axis < 3; ++axis) {
    grid.lo[axis] = lo[axis];
    grid.hi[axis] = hi[axis];
    grid.size[axis] = size[axis];
    grid.cells[axis] = static_cast<int32_t>(cells_on_axis(lo[axis], hi[axis], size[axis]));
  }
  return grid;
}

// Mostly one point a voxel.
VoxelGrid fine_grid() {
  VoxelGrid grid = small_grid();
  for (int axis = 0; axis < 3; ++axis) {
    grid.size[axis] = 1.f / 64;
    grid.cells[axis] =
        static_cast<int32_t>(cells_on_axis(grid.lo[axis], grid.hi[axis], grid.size[axis]));
  }
  return grid;
}

// Keys far past 32 bits.
VoxelGrid large_grid() {
  VoxelGrid grid = small_grid();
  for (int axis = 0; axis < 3; ++axis) {
    grid.size[axis] = 1.f / (1 << 17);
    grid.cells[axis] =
        static_cast<int32_t>(cells_on_axis(grid.lo[axis], grid.hi[axis], grid.size[axis]));
  }
  return grid;
}

// The corners that a random draw would miss.
std::vector<Case> fixed_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, auto change) {
    Case c;
    c.name = name;
    c.args.grid = small_grid();
    c.args.max_points = 5;
    c.args.max_voxels = 300;
    c.args.reduce = VoxelReduce::kMean;
    change(c);
    cases.push_back(c);
  };
  add("no points", [](Case& c) { c.rows = 0; });
  add("no points, no caps", [](Case& c) { c.rows = 0, c.args.max_voxels = -1; });
  add("one point", [](Case& c) { c.rows = 1; });
  add("no samples", [](Case& c) { c.offsets = {0}, c.args.max_voxels = -1; });
  add("no samples, sorted", [](Case& c) { c.offsets = {0}, c.args.order = VoxelOrder::kZyx; });
  add("no voxels wanted", [](Case& c) { c.args.max_voxels = 0, c.want_slot = true; });
  add("no points wanted", [](Case& c) { c.args.max_points = 0, c.want_slot = true; });
  add("no points wanted, copy",
      [](Case& c) { c.args.max_points = 0, c.args.reduce = VoxelReduce::kNone; });
  add("decreasing offsets", [](Case& c) {
    c.offsets = {900, 100, 500, -7, 5000};
    c.name = "";  // unspecified result: only run
  });
  for (const Cloud cloud : {kUniform, kClustered, kHot}) {
    for (const VoxelReduce reduce : {VoxelReduce::kMean, VoxelReduce::kNone}) {
      add("many points", [&](Case& c) {
        c.rows = 600000;
        c.cloud = cloud;
        c.args.reduce = reduce;
        c.args.max_points = reduce == VoxelReduce::kNone ? 4 : 32;
        c.args.max_voxels = -1;
        if (cloud == kUniform) c.args.grid = fine_grid();
      });
    }
  }
  for (const int64_t rows : {4096, 4097, 20000, 70000}) {
    for (const Cloud cloud : {kOneVoxel, kTwoVoxels}) {
      for (const VoxelReduce reduce : {VoxelReduce::kMean, VoxelReduce::kMax, VoxelReduce::kNone}) {
        for (const int64_t cap : {int64_t{-1}, int64_t{10}, int64_t{1000}}) {
          if (reduce == VoxelReduce::kNone && cap < 0) continue;
          add("huge voxels", [&](Case& c) {
            c.rows = rows;
            c.cloud = cloud;
            c.args.reduce = reduce;
            c.args.max_points = cap;
            c.args.max_voxels = reduce == VoxelReduce::kNone ? 4 : -1;
            c.want_slot = c.want_arg = cap != 10;
            c.want_arg = c.want_arg && reduce == VoxelReduce::kMax;
          });
        }
      }
    }
  }
  return cases;
}

Case random_case(Random& random, int number) {
  Case c;
  c.name = "random " + std::to_string(number);
  const int64_t rows[] = {1, 31, 33, 700, 1024, 1025, 3000, 9000, 30000};
  const int64_t caps[] = {-1, 0, 1, 5, 10, 32, 33, 64, 200};
  const DType types[] = {DType::kFloat, DType::kFloat, DType::kHalf, DType::kBFloat16,
                         DType::kDouble};
  c.rows = rows[random.below(number % 8 == 0 ? 9 : 7)];
  c.columns = 3 + random.below(random.below(4) ? 4 : 20);
  c.pad = random.below(2) * random.below(4);
  c.cloud = static_cast<Cloud>(random.below(kClouds));
  c.dtype = types[random.below(5)];
  c.args.grid = random.below(5) ? small_grid() : large_grid();
  c.args.grid.check_range = random.below(2);
  c.args.order = static_cast<VoxelOrder>(random.below(3));
  c.args.reduce = static_cast<VoxelReduce>(random.below(5));
  c.args.out_dtype = random.below(2) ? c.dtype : types[random.below(5)];
  c.args.center_relative = random.below(3) == 0;
  c.args.max_points = caps[random.below(9)];
  if (c.args.reduce == VoxelReduce::kNone && c.args.max_points < 0) c.args.max_points = 7;
  c.args.max_voxels = random.below(2) ? -1 : (random.below(2) ? random.below(50) : 900);
  c.want_slot = random.below(2);
  c.want_arg = c.args.is_best() && random.below(2);
  c.want_features = random.below(8) != 0;
  c.wide_indices = random.below(2);
  const bool few = c.args.grid.cells_per_sample() > 1000000 || random.below(3);
  const int64_t batches = random.below(2) ? 1 + random.below(few ? 6 : 600) : 0;
  if (batches > 0) {
    for (int64_t b = 0; b <= batches; ++b) c.offsets.push_back(random.below(c.rows + 1));
    std::sort(c.offsets.begin(), c.offsets.end());
    if (random.below(2)) c.offsets.front() = 0;
    if (random.below(2)) c.offsets.back() = c.rows + random.below(3);
  }
  if (random.below(3) == 0) {
    for (int64_t b = 0; b < std::max<int64_t>(1, batches); ++b) {
      c.valid.push_back(random.below(c.rows / std::max<int64_t>(1, batches) + 4) - 1);
    }
  }
  if (random.below(4) == 0) {  // the usual call, which has kernels of its own
    c.columns = 4;
    c.pad = 0;
    c.dtype = DType::kFloat;
    c.args.order = VoxelOrder::kFirst;
    c.args.reduce = random.below(2) ? VoxelReduce::kMean : VoxelReduce::kNone;
    c.args.max_points = 1 + random.below(64);
    c.args.center_relative = c.want_slot = c.want_arg = false;
    c.want_features = true;
    c.offsets.clear();
    c.valid.clear();
  }
  c.table = static_cast<int>(random.below(4)) - 1;
  if (c.table == 0 && c.args.grid.cells_per_sample() > 1000000) c.table = -1;
  c.ranking = static_cast<int>(random.below(3)) - 1;
  if (c.ranking == 0 && c.args.grid.cells_per_sample() > 1000000) c.ranking = -1;
  return c;
}

}  // namespace

int main(int argc, char** argv) {
  on_device = find_device(device);
  const int random_cases = argc > 1 ? std::atoi(argv[1]) : 160;
  int failures = 0, done = 0;
  for (const Case& c : fixed_cases()) {
    const int failed = run_case(c, 17);
    failures += c.name.empty() ? 0 : failed;
    ++done;
  }
  Random random{20240607};
  for (int number = 0; number < random_cases; ++number, ++done) {
    failures += run_case(random_case(random, number), 1000 + number);
  }
  std::printf("%d cases (%s), %d mismatches\n", done, on_device ? "CUDA and CPU" : "CPU", failures);
  return failures > 125 ? 125 : failures;
}
