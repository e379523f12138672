// SPDX-License-Identifier: Apache-2.0
//
// Detection kernels without torch. Host results against a few plain lines that follow the contract;
// with a GPU, its results against the host's, bit for bit. `--bench` times graph replays.
#include <algorithm>
#include <cstdio>
#include <functional>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/detection/decode_nms/rule.h"
#include "tests/cpp/check.h"
#include "tests/cpp/detection_cases.h"

using namespace torchvox;
using testing::check;
using testing::check_same;

namespace {

DecodeResult on_host(const DecodeCase& c) {
  DecodeResult result;
  testing::run_on_host(c.bind(nullptr, result), testing::backward_for);
  return result;
}

// Scores of all candidates that pass, best first: what the rows of a call without NMS hold.
void check_selection(DecodeCase c) {
  c.args.circle = true;  // thins out nothing: no distance is at most -1
  std::fill_n(c.args.nms_threshold, kMostClasses, -1.0f);
  c.args.has_range = false;
  const DecodeResult got = on_host(c);
  DecodeResult unused;
  const DecodeNmsArgs args = c.bind(nullptr, unused);
  const bool pairs = selects_pairs(args);
  for (int64_t b = 0; b < args.batches; ++b) {
    const DecodeSample<float> sample{args, b, -INFINITY};
    int64_t row = b * args.rows(), over = 0;
    for (int s = 0; s < selections_of(args); ++s) {
      const NumberRange range = selection_range(args, s);
      std::vector<uint64_t> keys;
      for (int64_t i = range.begin; i < range.end; ++i) {
        const uint32_t score = sample.score(pairs, i);
        if (score > 0) keys.push_back(candidate_key(score, i));
      }
      std::sort(keys.begin(), keys.end(), std::greater<>());
      over += std::max<int64_t>(static_cast<int64_t>(keys.size()) - args.pre, 0);
      keys.resize(std::min<int64_t>(static_cast<int64_t>(keys.size()), args.pre));
      int64_t kept = 0;
      for (const uint64_t key : keys) {
        float box[kMostBoxValues] = {};
        if (!sample.decode(candidate_of(args, pairs, key_number(key)), box)) continue;
        if (kept++ == args.post) break;
        check(got.scores[row] == score_of(key_score(key)) &&
                  std::equal(box, box + args.box_values(),
                             got.boxes.begin() + row * args.box_values()),
              c.name + ": row " + std::to_string(row));
        ++row;
      }
    }
    check(row - b * args.rows() == got.count[b], c.name + ": count");
    check(over == got.overflow[b], c.name + ": overflow");
  }
}

void each_case(bool quick, const std::function<void(const DecodeCase&)>& body) {
  std::mt19937 random(5);
  int number = 0;
  const auto run = [&](DecodeCase c, const char* what) {
    c.name = std::string(what) + ", case " + std::to_string(number++);
    body(c);
  };
  const DType types[] = {DType::kFloat, DType::kHalf, DType::kBFloat16};
  for (const Logits kind :
       {Logits::kSpread, Logits::kTied, Logits::kEqual, Logits::kSaturated, Logits::kSpoilt}) {
    if (quick && kind != Logits::kTied) continue;
    const DType dtype = types[number % 3];
    const int32_t side = quick ? 12 : 40;
    DecodeCase c = kitti_case(dtype, 2, side, side + 3, number % 2, kind, random);
    for (const float threshold : {0.1f, 0.0f}) {
      for (const int64_t pre : {int64_t{1}, int64_t{300}, int64_t{4096}}) {
        c.args.score_threshold = threshold;
        c.args.pre = pre;
        if (!quick || pre == 300) run(c, "all");
      }
    }
    c.args.group = DecodeGroup::kClass;
    c.args.best_class = false;
    c.args.pre = 200;
    run(c, "by class");
    c.args.global_post = true;
    run(c, "by class, sorted");
    c.args.shared_pre = true;
    run(c, "shared");
    DecodeCase center = center_case(dtype, 2, side, number % 2, kind, random);
    run(center, "centers");
    center.args.best_class = true;
    center.args.circle = true;
    center.args.nms_threshold[0] = 4;
    run(center, "centers, best class");
    center.args.pre = 0;
    run(center, "none");
    center.args.pre = 20;
    center.args.post = 0;
    run(center, "none after");
  }
}

#ifdef TORCHVOX_CUDA
void check_on_device(const DecodeCase& c, const Target& target) {
  const DecodeResult expected = on_host(c);
  for (const int64_t kernels : {0, 1}) {
    set_plan_override("decode_kernels", kernels);
    DeviceBuffers device;
    DecodeResult got;
    const DecodeNmsArgs args = c.bind(&device, got);
    int failed = 0;
    for (int repeat = 0; repeat < 2; ++repeat) run_where(args, &device, &target, failed);
    device.read(args.boxes, got.boxes);
    device.read(args.scores, got.scores);
    device.read(args.labels, got.labels);
    device.read(args.count, got.count);
    device.read(args.overflow, got.overflow);
    const std::string what = c.name + (kernels ? ", fused" : "");
    check(failed == 0, what + ": launch");
    check_same(got.count, expected.count, what + ": count");
    check_same(got.overflow, expected.overflow, what + ": overflow");
    check_same(got.scores, expected.scores, what + ": scores");
    check_same(got.labels, expected.labels, what + ": labels");
    check_same(got.boxes, expected.boxes, what + ": boxes");
  }
  set_plan_override("decode_kernels", kAutomatic);
}
#endif

// Replays on the GPU with each plan, else one host thread.
void time_case(const DecodeCase& c, const char* what) {
  Target target;
  const bool gpu = find_device(target);
  for (const int64_t kernels : {0, 1}) {
    if (!gpu && kernels == 0) continue;
    set_plan_override("decode_kernels", kernels);
    DecodeResult result;
    DeviceBuffers device;
    const DecodeNmsArgs args = c.bind(gpu ? &device : nullptr, result);
    std::vector<char> workspace(gpu ? 0 : workspace_bytes(args, Target{}));
    const double microseconds = gpu
        ? replay_microseconds(args, device, target, 200)
        : host_microseconds([&] { run_cpu(args, workspace.data(), serial_for); });
    if (gpu) device.read(args.count, result.count);
    if (gpu) device.read(args.overflow, result.overflow);
    std::printf("%s B=%d %s threshold %.1f%s: %.1f us (%d kept, %d beyond)\n", what,
                static_cast<int>(args.batches), c.channels_last ? "channels last" : "contiguous",
                args.score_threshold, kernels ? " fused" : "", microseconds, result.count[0],
                result.overflow[0]);
  }
  set_plan_override("decode_kernels", kAutomatic);
}

void bench() {
  std::mt19937 random(7);
  for (const bool last : {true, false}) {
    for (const int64_t batches : {1, 4, 16}) {
      if (!last && batches > 1) continue;
      DecodeCase c = kitti_case(DType::kHalf, batches, 248, 216, last, Logits::kSpread, random);
      for (const float threshold : {0.9f, 0.7f, 0.0f}) {
        c.args.score_threshold = threshold;
        time_case(c, "kitti");
      }
    }
  }
  DecodeCase equal = kitti_case(DType::kHalf, 1, 248, 216, true, Logits::kEqual, random);
  equal.args.score_threshold = 0;
  time_case(equal, "kitti, all equal");
  DecodeCase shared = kitti_case(DType::kHalf, 1, 248, 216, true, Logits::kSpread, random);
  shared.args.group = DecodeGroup::kClass;
  shared.args.best_class = false;
  shared.args.shared_pre = shared.args.global_post = true;
  shared.args.pre = 100;
  shared.args.post = 50;
  time_case(shared, "kitti by class");
  for (const float threshold : {0.5f, 0.0f}) {
    DecodeCase c = center_case(DType::kHalf, 1, 128, true, Logits::kSpread, random);
    c.args.score_threshold = threshold;
    time_case(c, "nuscenes centers");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--bench") {
    bench();
    return 0;
  }
  // racecheck watches every shared access: --quick leaves out most cases.
  const bool quick = mode == "--quick";
  each_case(quick, [](const DecodeCase& c) {
    if (c.args.dtype == DType::kFloat && !c.args.shared_pre && !c.args.global_post) {
      check_selection(c);
    }
  });
#ifdef TORCHVOX_CUDA
  if (Target target; find_device(target)) {
    each_case(quick, [&](const DecodeCase& c) { check_on_device(c, target); });
  } else {
    std::printf("no GPU: host only\n");
  }
#endif
  return testing::finish("test_detection_kernels");
}
