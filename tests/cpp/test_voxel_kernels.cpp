// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the voxel ops without torch: every output of launch(), bit for bit against
// run_cpu(), and run_cpu() in many partitions, tasks run backwards, against one. Exits with the
// number of mismatches.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"
#include "tests/cpp/device_buffers.h"
#include "tests/cpp/voxel_cases.h"

#ifdef TORCHVOX_CUDA
#include <cuda_runtime.h>
#endif

namespace {

using namespace torchvox;
using namespace torchvox::testing;

Target device;
bool on_device = false;  // a CUDA build on a machine with a GPU

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

// `partitions`: see voxel_partitions_plan.
Outputs run_voxelize(const Case& c, const std::vector<char>& points, bool cuda,
                     int64_t partitions) {
  set_plan_override("voxel_partitions", partitions);
  set_plan_override("voxel_table", c.table);
  set_plan_override("voxel_ranking", c.ranking);
  set_plan_override("voxel_kernels", c.kernels);
  set_plan_override("voxel_common", c.common);
  VoxelizeArgs args = c.args;
  Buffer data(cuda, points);
  Buffer offsets(cuda,
                 c.wide_indices ? integers<int64_t>(c.offsets) : integers<int32_t>(c.offsets));
  Buffer valid(cuda, c.wide_indices ? integers<int64_t>(c.valid) : integers<int32_t>(c.valid));
  args.points.data = data.data();
  args.points.dtype = c.dtype;
  args.points.packed = true;
  args.points.rows = c.rows;
  args.points.columns = c.columns;
  args.points.row_stride = c.columns + c.pad;
  args.points.clouds = c.offsets.empty() ? 1 : static_cast<int64_t>(c.offsets.size()) - 1;
  if (!c.offsets.empty()) args.points.offsets = {offsets.data(), c.wide_indices};
  if (!c.valid.empty()) args.points.lengths = {valid.data(), c.wide_indices};
  args.grid.x_major = args.order == VoxelOrder::kXyz;

  const size_t capacity = static_cast<size_t>(args.capacity());
  Buffer features(cuda, capacity * args.row_values() * bytes_of(args.out_dtype));
  Buffer indices(cuda, capacity * 16), num_points(cuda, capacity * 4);
  Buffer point_voxel(cuda, c.rows * 4), point_slot(cuda, c.rows * 4);
  Buffer counts(cuda, (args.points.clouds + 1) * kVoxelCounts * 4);
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
  for (const int64_t partitions : {2, 5, 16}) {
    const std::string name = c.name + " (" + std::to_string(partitions) + " partitions)";
    failures += compare(name, run_voxelize(c, points, false, partitions), want);
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

}  // namespace

int main(int argc, char** argv) {
  on_device = find_device(device);
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  const int random_cases = quick ? 48 : argc > 1 ? std::atoi(argv[1]) : 160;
  int failures = 0, done = 0;
  for (const Case& c : fixed_cases(quick)) {
    const int failed = run_case(c, 17);
    failures += c.name.empty() ? 0 : failed;
    ++done;
  }
  Random random{20240607};
  for (int number = 0; number < random_cases; ++number, ++done) {
    const Case c = random_case(random, number);
    if (quick && c.rows > 3000) continue;
    failures += run_case(c, 1000 + number);
  }
  std::printf("%d cases (%s), %d mismatches\n", done, on_device ? "CUDA and CPU" : "CPU", failures);
  return failures > 125 ? 125 : failures;
}
