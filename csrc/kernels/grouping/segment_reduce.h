// SPDX-License-Identifier: Apache-2.0
//
// Entry of segment_reduce and its gradient, and their rules for host and device: the rows of a
// segment, how rows are reduced, the gradient of an entry. segment_reduce.cu splits long segments,
// grouping_cpu.cpp reduces each in one go.
#pragma once

#include <type_traits>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/items.h"
#include "csrc/kernels/core/ordered_sum.h"
#include "csrc/kernels/core/portable_math.h"

namespace torchvox {

enum class Reduction { kMean, kSum, kMax, kMin };

inline bool is_extreme(Reduction reduce) {
  return reduce == Reduction::kMax || reduce == Reduction::kMin;
}

// Segment s reduces the rows of src that the entries [offsets[s], offsets[s + 1]) name. An entry
// names the row index[entry], or none if that is outside [0, rows); without index, entry e is row
// e. Without rows there are no entries.
struct SegmentReduceArgs {
  const void* src = nullptr;  // [rows, channels] contiguous
  DType dtype = DType::kFloat;
  Reduction reduce = Reduction::kSum;
  int64_t rows = 0, channels = 0, segments = 0, entries = 0;  // rows and entries below 2^31 - 1
  IndexArray offsets;  // [segments + 1]; any values are safe
  IndexArray index;  // [entries]; any values are safe; not given: entries are rows
  void* out = nullptr;  // [segments, channels]
  int32_t* arg = nullptr;  // [segments, channels] for kMax and kMin: the row, or -1
};
TORCHVOX_KERNEL(SegmentReduceArgs);

// The gradient of each entry, from that of its segment. Without `segment`, a binary search of the
// offsets finds it; if offsets do not ascend, the result is a segment that has the entry, or none.
struct SegmentSpreadArgs {
  const void* grad = nullptr;  // [segments, channels] contiguous
  DType dtype = DType::kFloat;
  Reduction reduce = Reduction::kSum;
  int64_t channels = 0, segments = 0, entries = 0;
  const int32_t* segment = nullptr;  // [entries]; outside [0, segments): none; null: from offsets
  IndexArray offsets;  // [segments + 1]
  const double* count = nullptr;  // [segments] for kMean; null: from offsets
  const int32_t* arg = nullptr;  // [segments, channels] for kMax and kMin: the entry
  void* out = nullptr;  // [entries, channels]
};
TORCHVOX_KERNEL_WITHOUT_WORKSPACE(SegmentSpreadArgs);

struct EntryRange {
  int64_t begin, end;
  TORCHVOX_HD int64_t size() const { return end - begin; }
};

// Clamped, and empty where offsets descend.
TORCHVOX_HD EntryRange entry_range(const IndexArray& offsets, int64_t segment, int64_t entries) {
  const int64_t begin = clamp_index(offsets[segment], 0, entries);
  return {begin, clamp_index(offsets[segment + 1], begin, entries)};
}

// The segment of entry e if offsets ascend; `segments` if there is none.
template <class Offset>
TORCHVOX_HD uint32_t find_segment(const Offset* offsets, uint32_t segments, int64_t e) {
  return first_where(0u, segments, [&](uint32_t s) { return offsets[s + 1] > e; });
}
TORCHVOX_HD int64_t find_segment(const IndexArray& offsets, int64_t segments, int64_t e) {
  const auto few = static_cast<uint32_t>(segments);
  return offsets.wide ? find_segment(static_cast<const int64_t*>(offsets.data), few, e)
                      : find_segment(static_cast<const int32_t*>(offsets.data), few, e);
}
// The segment of an entry, or -1.
TORCHVOX_HD int32_t segment_of(const SegmentSpreadArgs& args, int64_t entry) {
  if (args.segment) {
    const int64_t s = args.segment[entry];
    return static_cast<int32_t>(s >= 0 && s < args.segments ? s : -1);
  }
  const int64_t s = find_segment(args.offsets, args.segments, entry);
  return static_cast<int32_t>(s < args.segments && args.offsets[s] <= entry ? s : -1);
}

// The rows of the entries [at, at + kAhead); -1 from `end` on and for entries that name none.
template <int kAhead, class Index>
TORCHVOX_HD void load_rows(const Index* index, int64_t rows, int64_t at, int64_t end,
                           int64_t (&row)[kAhead]) {
  for (int k = 0; k < kAhead; ++k) row[k] = at + k < end ? index[at + k] : Index{-1};
  for (int k = 0; k < kAhead; ++k) {
    if (row[k] < 0 || row[k] >= rows) row[k] = -1;
  }
}
template <int kAhead>
TORCHVOX_HD void load_rows(const SegmentReduceArgs& args, int64_t at, int64_t end,
                           int64_t (&row)[kAhead]) {
  if (!args.index.given()) {
    for (int k = 0; k < kAhead; ++k) row[k] = at + k < end ? at + k : -1;
  } else if (args.index.wide) {
    load_rows(static_cast<const int64_t*>(args.index.data), args.rows, at, end, row);
  } else {
    load_rows(static_cast<const int32_t*>(args.index.data), args.rows, at, end, row);
  }
}

// Rows that a thread on the device has in flight at once: as many as fit its registers.
template <int kWidth>
inline constexpr int kSumRowsAhead = kWidth < 8 ? 8 : 4;
template <int kWidth>
inline constexpr int kExtremeRowsAhead = kSumRowsAhead<kWidth> / (kWidth == 1 ? 1 : 2);

// One item: kWidth channels, read and written together.
template <class T, int kWidth, int kRowsAhead>
struct SegmentItem {
  using Number = compute_t<T>;
  using Row = Items<T, kWidth>;
#ifdef __CUDA_ARCH__
  static constexpr int kAhead = kRowsAhead;
#else
  static constexpr int kAhead = 1;
#endif
  const SegmentReduceArgs& args;
  const int64_t channel;

  TORCHVOX_HD SegmentItem(const SegmentReduceArgs& args, int64_t item)
      : args(args), channel(item * kWidth) {}
  static TORCHVOX_HD int64_t items(const SegmentReduceArgs& args) { return args.channels / kWidth; }

  TORCHVOX_HD Row read(int64_t row) const {
    return read_items<T, kWidth>(static_cast<const T*>(args.src) + row * args.channels + channel);
  }
  TORCHVOX_HD void store_values(int64_t segment, const Channels<Number, kWidth>& values) const {
    store_items<T, kWidth>(static_cast<T*>(args.out) + segment * args.channels + channel, values);
  }
};

// A Reducer handles one item. read(row) loads what it needs of a row, add() adds that to a State;
// Tree adds States (ShortTree up to kMostSerial entries); store() writes a segment. An empty State
// changes no other: sums begin at +0. On the device kBlocks blocks fit a multiprocessor at once;
// kChunkBlocks per multiprocessor look for long segments.
inline constexpr int kMostSerial = 1024;

template <class T, int kWidth>
struct SumReducer : SegmentItem<T, kWidth, kSumRowsAhead<kWidth>> {
  static constexpr int kBlocks = kWidth == 1 ? 4 : 3, kChunkBlocks = 2;
  using Number = compute_t<T>;
  using Row = Items<T, kWidth>;
  struct State {
    Channels<Number, kWidth> sum;
    int32_t count = 0;
    TORCHVOX_HD State& operator+=(const State& other) {
      sum += other.sum;
      count += other.count;
      return *this;
    }
  };
  using Tree = CascadeSum<State>;
  using ShortTree = CascadeSum<State, 3>;
  using SumReducer::SegmentItem::SegmentItem;

  TORCHVOX_HD void add(State& state, const Row& items, int64_t) const {
    state.sum += items.widened();
    ++state.count;
  }
  TORCHVOX_HD void store(int64_t segment, State state) const {
    if (this->args.reduce == Reduction::kMean && state.count > 0) {
      for (Number& x : state.sum.at) x /= static_cast<Number>(state.count);
    }
    this->store_values(segment, state.sum);
  }
};

// Adds States whose order does not matter, with the interface of CascadeSum.
template <class State>
class AnyOrder {
 public:
  template <int>
  TORCHVOX_HD void add_block(const State& state) {
    total_ += state;
  }
  template <int>
  TORCHVOX_HD void add_rest(const State& state) {
    total_ += state;
  }
  TORCHVOX_HD void add_part(const State& state, bool) { total_ += state; }
  TORCHVOX_HD const State& total() const { return total_; }

 private:
  State total_;
};

// A NaN wins, else the extreme value; of equal values (-0 equals +0) the lowest row. The minimum is
// computed as the maximum of the negated values.
template <class T, int kWidth>
struct ExtremeReducer : SegmentItem<T, kWidth, kExtremeRowsAhead<kWidth>> {
  static constexpr int kBlocks = 4, kChunkBlocks = 4;
  using Number = compute_t<T>;
  using Row = Items<T, kWidth>;
  static constexpr int32_t kNone = 0x7fffffff;
  struct State {
    Channels<Number, kWidth> best;
    int32_t row[kWidth];
    TORCHVOX_HD State() {
      for (int i = 0; i < kWidth; ++i) {
        best.at[i] = -static_cast<Number>(portable::infinity());
        row[i] = kNone;
      }
    }
    TORCHVOX_HD void add(int i, Number a, int32_t a_row) {
      const Number b = best.at[i];
      const bool a_is_nan = a != a, b_is_nan = b != b;
      const bool better = (!(a <= b) & !b_is_nan) | (((a == b) | a_is_nan) & (a_row < row[i]));
      best.at[i] = better ? a : b;
      row[i] = better ? a_row : row[i];
    }
    TORCHVOX_HD State& operator+=(const State& other) {
      for (int i = 0; i < kWidth; ++i) add(i, other.best.at[i], other.row[i]);
      return *this;
    }
  };
  using Tree = AnyOrder<State>;
  using ShortTree = Tree;
  using ExtremeReducer::SegmentItem::SegmentItem;

  TORCHVOX_HD Number turned(Number x) const {
    return this->args.reduce == Reduction::kMin ? -x : x;
  }
  TORCHVOX_HD void add(State& state, const Row& items, int64_t row) const {
    const Channels<Number, kWidth> values = items.widened();
    for (int i = 0; i < kWidth; ++i) {
      state.add(i, turned(values.at[i]), static_cast<int32_t>(row));
    }
  }
  TORCHVOX_HD void store(int64_t segment, State state) const {
    for (int i = 0; i < kWidth; ++i) {
      const bool none = state.row[i] == kNone;
      this->args.arg[segment * this->args.channels + this->channel + i] = none ? -1 : state.row[i];
      state.best.at[i] = none ? Number(0) : turned(state.best.at[i]);
    }
    this->store_values(segment, state.best);
  }
};

// Reduces the entries [begin, end), at most kEntryBlock, one after another.
template <class Reducer>
TORCHVOX_HD typename Reducer::State reduce_block(const Reducer& reducer, int64_t begin,
                                                 int64_t end) {
  constexpr int kAhead = Reducer::kAhead;
  typename Reducer::State total;
  for (int64_t at = begin; at < end; at += kAhead) {
    int64_t row[kAhead];
    typename Reducer::Row read[kAhead];
    load_rows(reducer.args, at, end, row);
    // Unconditional, so that all loads are in flight at once.
    for (int k = 0; k < kAhead; ++k) read[k] = reducer.read(row[k] < 0 ? 0 : row[k]);
    for (int k = 0; k < kAhead; ++k) {
      if (row[k] >= 0) reducer.add(total, read[k], row[k]);
    }
  }
  return total;
}

inline constexpr int kEntryBlock = 32;  // of CascadeSum

// Reduces the entries [begin, end) of a segment.
template <class Tree, class Reducer>
TORCHVOX_HD typename Reducer::State reduce_entries(const Reducer& reducer, int64_t begin,
                                                   int64_t end) {
  Tree tree;
  for (int64_t at = begin; at < end; at += kEntryBlock) {
    const bool whole = end - at >= kEntryBlock;
    tree.add_part(reduce_block(reducer, at, whole ? at + kEntryBlock : end), whole);
  }
  return tree.total();
}

// Writes one item of the gradient of an entry.
template <class T, int kWidth>
TORCHVOX_HD void spread_item(const SegmentSpreadArgs& args, int64_t entry, int64_t segment,
                             int64_t item) {
  using Number = compute_t<T>;
  Channels<Number, kWidth> value;
  if (segment >= 0) {
    const int64_t at = segment * args.channels + item * kWidth;
    value = load_items<T, kWidth>(static_cast<const T*>(args.grad) + at);
    if (args.reduce == Reduction::kMean) {
      const Number count = args.count
          ? static_cast<Number>(args.count[segment])
          : static_cast<Number>(entry_range(args.offsets, segment, args.entries).size());
      for (Number& x : value.at) x = count > 0 ? x / count : x;
    } else if (args.arg) {
      for (int i = 0; i < kWidth; ++i) {
        if (args.arg[at + i] != entry) value.at[i] = 0;
      }
    }
  }
  store_items<T, kWidth>(static_cast<T*>(args.out) + entry * args.channels + item * kWidth, value);
}

template <class Type>
struct TypeOf {
  using type = Type;
};

// Calls body(T{}, width) with a width that divides the channels: kWide (if 0, the items of a
// 16-byte word), or else 1.
template <int kWide, class Args, class Body>
auto with_width_of(const Args& args, bool aligned, Body&& body) {
  return with_point_type(args.dtype, [&](auto type) {
    constexpr int kWidth = kWide > 0 ? kWide : kItemsPerWord<decltype(type)>;
    return aligned && args.channels % kWidth == 0
        ? body(type, std::integral_constant<int, kWidth>{})
        : body(type, std::integral_constant<int, 1>{});
  });
}

// Calls body(TypeOf<Reducer>{}) with the reducer of a call.
template <int kWide, class Body>
auto with_reducer(const SegmentReduceArgs& args, bool aligned, Body&& body) {
  return with_width_of<kWide>(args, aligned, [&](auto type, auto width) {
    using T = decltype(type);
    return is_extreme(args.reduce) ? body(TypeOf<ExtremeReducer<T, width()>>{})
                                   : body(TypeOf<SumReducer<T, width()>>{});
  });
}

}  // namespace torchvox
