// SPDX-License-Identifier: Apache-2.0
//
// Detection kernels without torch: the host against a few plain lines that follow the contract,
// every plan and side against the host.
#include <algorithm>
#include <functional>
#include <numeric>

#include "csrc/kernels/detection/decode_nms/decode_nms.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

// What the logits look like.
enum class Logits { kSpread, kTied, kEqual, kSaturated, kSpoilt };

// All heads of a size; the maps of a head are channels of one convolution's output.
struct DecodeCase {
  std::string name;
  DecodeNmsArgs args;
  bool channels_last = true;
  std::vector<Bytes> outputs;  // a head
  std::vector<std::vector<int32_t>> channels;  // of each map of a head, 0 for none
  std::vector<std::vector<float>> anchors;

  DecodeNmsArgs bind(Side& side) const {
    DecodeNmsArgs bound = args;
    const int64_t bytes = element_bytes(args.dtype);
    for (int h = 0; h < args.heads; ++h) {
      DecodeHead& head = bound.head[h];
      const int32_t all = std::accumulate(channels[h].begin(), channels[h].end(), 0);
      const int32_t cells = head.height * head.width;
      const int32_t channel_stride = channels_last ? 1 : cells, step = channels_last ? all : 1;
      const uint8_t* map = side.put(outputs[h]);
      for (int m = 0; m < kMapKinds; ++m) {
        head.map[m] = {map, int64_t{all} * cells, channel_stride, head.width * step, step};
        map += channels[h][m] * bytes * channel_stride;
      }
      if (!anchors.empty()) head.anchors = side.put(anchors[h]);
    }
    const int64_t rows = args.batches * args.rows();
    bound.boxes = side.room<float>("boxes", rows * args.box_values());
    bound.scores = side.room<float>("scores", rows);
    bound.labels = side.room<int32_t>("labels", rows);
    bound.count = side.room<int32_t>("count", args.batches);
    bound.overflow = side.room<int32_t>("overflow", args.batches);
    return bound;
  }
  void operator()(Side& side) const { side.run(bind(side)); }
};

// Of mean 0 and deviation 1.
double normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.uniform(0, 1);
  return sum;
}

double logit(Logits kind, Random& random) {
  const double x = -3.0 + 1.5 * normal(random);
  switch (kind) {
    case Logits::kTied: return std::round(x * 2) / 2;
    case Logits::kEqual: return -4.6;
    case Logits::kSaturated: return 20 + x;
    case Logits::kSpoilt: {
      const float bad[] = {kNan, kNan, kInfinity, -kInfinity};
      return random.below(5) == 0 ? bad[random.below(4)] : x;
    }
    case Logits::kSpread: break;
  }
  return x;
}

void add_head(DecodeCase& c, int32_t height, int32_t width, int32_t per_cell, int32_t classes,
              const std::vector<int32_t>& channels, Logits kind, Random& random) {
  DecodeNmsArgs& args = c.args;
  DecodeHead& head = args.head[args.heads];
  head.height = height;
  head.width = width;
  head.per_cell = per_cell;
  head.classes = classes;
  if (args.heads > 0) {
    const DecodeHead& before = args.head[args.heads - 1];
    head.first_class = before.first_class + before.classes;
    head.first_box = before.first_box + before.boxes();
    head.first_pair = before.first_pair + before.boxes() * before.classes;
  }
  ++args.heads;
  const int64_t all = std::accumulate(channels.begin(), channels.end(), 0);
  const int64_t cells = int64_t{height} * width;
  std::vector<double> values(args.batches * all * cells);
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t channel = c.channels_last ? i % all : i / cells % all;
    values[i] = channel < channels[0] ? logit(kind, random) : 0.3 * normal(random);
    if (kind == Logits::kSpoilt && channel >= channels[0] && random.below(97) == 0) values[i] = 1e4;
  }
  c.outputs.push_back(store(values, args.dtype));
  c.channels.push_back(channels);
}

void add_anchors(DecodeCase& c, double meters) {
  const DecodeHead& head = c.args.head[c.args.heads - 1];
  std::vector<float> anchors;
  for (int32_t y = 0; y < head.height; ++y) {
    for (int32_t x = 0; x < head.width; ++x) {
      for (int32_t a = 0; a < head.per_cell; ++a) {
        const float l = a < 2 ? 3.9f : 0.8f + 0.5f * a;
        for (const double v : {x * meters, y * meters - 20, -1.0, 1.0 * l, l * 0.4, 1.6}) {
          anchors.push_back(static_cast<float>(v));
        }
        anchors.push_back(a % 2 ? 1.57f : 0.0f);
      }
    }
  }
  c.anchors.push_back(anchors);
}

// KITTI's three classes: 6 anchors a cell.
DecodeCase kitti_case(DType dtype, int64_t batches, int32_t height, int32_t width,
                      bool channels_last, Logits kind, Random& random) {
  DecodeCase c;
  c.channels_last = channels_last;
  DecodeNmsArgs& args = c.args;
  args.dtype = dtype;
  args.batches = batches;
  args.coder.values = 7;
  args.coder.bins = 2;
  args.coder.dir_offset = 0.78539f;
  args.coder.period = 3.14159274f;
  args.score_threshold = 0.1f;
  args.pre = 4096;
  args.post = 500;
  args.nms_threshold[0] = args.nms_threshold[1] = args.nms_threshold[2] = 0.01f;
  for (int k = 0; k < kMostClasses; ++k) args.label[k] = k;
  add_head(c, height, width, 6, 3, {18, 42, 12, 0, 0, 0}, kind, random);
  add_anchors(c, 0.32);
  return c;
}

DecodeCase center_case(DType dtype, int64_t batches, int32_t size, bool channels_last, Logits kind,
                       Random& random) {
  DecodeCase c;
  c.channels_last = channels_last;
  DecodeNmsArgs& args = c.args;
  args.dtype = dtype;
  args.batches = batches;
  args.centers = true;
  args.center.velocity = true;
  args.center.stride = 4;
  args.center.voxel[0] = args.center.voxel[1] = 0.2f;
  args.center.low[0] = args.center.low[1] = -51.2f;
  args.has_range = true;
  for (int k = 0; k < 3; ++k) {
    args.range[k] = k < 2 ? -61.2f : -10;
    args.range[k + 3] = -args.range[k];
  }
  args.score_threshold = 0.1f;
  args.closed = false;
  args.group = DecodeGroup::kHead;
  args.best_class = false;
  args.pre = 500;
  args.post = 83;
  for (int k = 0; k < kMostClasses; ++k) {
    args.nms_threshold[k] = 0.2f;
    args.label[k] = k;
  }
  for (const int32_t classes : {1, 2, 2, 1, 2, 2}) {
    add_head(c, size, size, 1, classes, {classes, 2, 1, 3, 2, 2}, kind, random);
  }
  return c;
}

// Scores of all candidates that pass, best first: what the rows of a call without NMS hold.
void check_selection(DecodeCase c) {
  c.args.circle = true;  // thins out nothing: no distance is at most -1
  std::fill_n(c.args.nms_threshold, kMostClasses, -1.0f);
  c.args.has_range = false;
  const Outputs got = run_on(Where::kThreads, c);
  const auto boxes = got.get<float>("boxes"), scores = got.get<float>("scores");
  Side side(Where::kThread);
  const DecodeNmsArgs args = c.bind(side);
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
        CAPTURE(row);
        CHECK(scores[row] == score_of(key_score(key)));
        CHECK(std::equal(box, box + args.box_values(), &boxes[row * args.box_values()]));
        ++row;
      }
    }
    CHECK(row - b * args.rows() == got.get<int32_t>("count")[b]);
    CHECK(over == got.get<int32_t>("overflow")[b]);
  }
}

void each_case(const std::function<void(const DecodeCase&)>& body) {
  Random random(5);
  int number = 0;
  const auto run = [&](DecodeCase c, const char* what) {
    c.name = std::string(what) + ", case " + std::to_string(number++);
    INFO(c.name);
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

TEST_CASE("candidates without suppression are the best scores") {
  each_case([](const DecodeCase& c) {
    if (c.args.dtype == DType::kFloat && !c.args.shared_pre && !c.args.global_post) {
      check_selection(c);
    }
  });
}

TEST_CASE("every side and plan finds the same boxes") {
  each_case([](const DecodeCase& c) {
    const Outputs want = run_on(Where::kThread, c);
    check_side(Where::kThreads, c, want);
    const auto twice = [&](Side& side) {
      const DecodeNmsArgs args = c.bind(side);
      side.run(args);
      side.run(args);
    };
    for (const int kernels : {0, 1}) {
      CAPTURE(kernels);
      const Plan plan("decode_kernels", kernels);
      check_side(Where::kDevice, twice, want);
    }
  });
}

}  // namespace
