// Copies by TMA, element for element, also those outside of the tensor.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "harness/test_main.hpp"
#include "memory.hpp"
#include "tile/ptx/swizzle.hpp"
#include "tma_kernels.hpp"

using namespace ptx_test;
using tile::BoxedTensor;
using tile::DType;

namespace {

using Words = std::vector<std::uint32_t>;
using Bytes = std::vector<std::uint8_t>;

bool lacks_tma() {
  if (tile::device().capability >= 90) return false;
  tile::skip("TMA needs compute capability 9.0");
  return true;
}

// Every two bytes differ from all others of a tensor of up to 128 KiB.
Words numbered_words(std::size_t bytes) {
  Words words((bytes + 3) / 4);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<std::uint32_t>((2 * i + 1) << 16 | 2 * i);
  }
  return words;
}

std::size_t bytes_of_tensor(const BoxedTensor& t) {
  const int last = t.rank - 1;
  const std::int64_t stride = last == 0 ? 1 : t.strides[last - 1];
  return static_cast<std::size_t>(stride * t.extents[last]) * size_bytes(t.type);
}

unsigned bytes_of_box(const BoxedTensor& t) {
  auto bytes = static_cast<unsigned>(size_bytes(t.type));
  for (int i = 0; i < t.rank; ++i) bytes *= static_cast<unsigned>(t.box[i]);
  return bytes;
}

/// Calls visit(offset in the tensor, or -1 outside, offset in shared memory) for each element of
/// the box, in bytes. A row of a swizzled box is as long as the pattern's.
template <class Visit>
void for_each_element(const BoxedTensor& t, const Corner& corner, Visit visit) {
  const auto size = static_cast<std::int64_t>(size_bytes(t.type));
  const std::int64_t row_bytes = t.box[0] * size;
  std::int64_t count = bytes_of_box(t) / size;
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t rest = n, from = 0;
    bool inside = true;
    for (int i = 0; i < t.rank; ++i) {
      const std::int64_t at = corner.at[i] + rest % t.box[i];
      rest /= t.box[i];
      inside = inside && at >= 0 && at < t.extents[i];
      from += at * (i == 0 ? 1 : t.strides[i - 1]);
    }
    const auto row = static_cast<int>(n * size / row_bytes);
    const std::int64_t in_row = n * size % row_bytes;
    auto chunk = static_cast<int>(in_row / 16);
    if (t.swizzle_bytes == 128) chunk = tile::swizzle_128B(row, chunk);
    if (t.swizzle_bytes == 64) chunk = tile::swizzle_64B(row, chunk);
    if (t.swizzle_bytes == 32) chunk = tile::swizzle_32B(row, chunk);
    visit(inside ? from * size : -1, row * row_bytes + chunk * 16 + in_row % 16);
  }
}

Words expected_box(const BoxedTensor& t, const Corner& corner, const Words& tensor) {
  Words words(kBoxWords, kNotLoaded);
  auto* to = reinterpret_cast<std::uint8_t*>(words.data());
  const auto* from = reinterpret_cast<const std::uint8_t*>(tensor.data());
  for_each_element(t, corner, [&](std::int64_t source, std::int64_t at) {
    const std::size_t size = size_bytes(t.type);
    if (source < 0) {
      std::memset(to + at, 0, size);
    } else {
      std::memcpy(to + at, from + source, size);
    }
  });
  return words;
}

tile::TensorMap map_of(const BoxedTensor& tensor) {
  tile::TensorMap map;
  require(make_tensor_map("tensor", tensor, &map));
  return map;
}

void check_load(BoxedTensor t, const Corner& corner) {
  CAPTURE(t.rank);
  CAPTURE(std::string(name(t.type)));
  CAPTURE(t.swizzle_bytes);
  CAPTURE(corner.at[0]);
  CAPTURE(corner.at[1]);
  const Words tensor = numbered_words(bytes_of_tensor(t));
  const DeviceWords in("in", tensor), out("out", Words(kBoxWords, 0));
  t.data = in.data();
  require(load_box(t.rank, map_of(t), corner, bytes_of_box(t), out.data()));
  CHECK(out.download() == expected_box(t, corner, tensor));
}

/// 100 x 70 halves, rows of 104, of which a box is 64 x 16.
BoxedTensor halves(int swizzle_bytes, int columns) {
  return {DType::fp16, nullptr, 2, {100, 70}, {104}, {columns, 16}, swizzle_bytes};
}

// Inside, and beyond each edge; wholly outside at last. Rows begin at multiples of 16 bytes.
const Corner kCorners[] = {{{8, 4}},   {{0, 0}},     {{-8, 2}},  {{16, -5}}, {{72, 60}},
                           {{96, 69}}, {{-40, -15}}, {{104, 0}}, {{0, 70}},  {{-64, -16}}};

/// Those where a store may begin.
template <class Check>
void for_each_corner_of_stores(Check check) {
  for (const Corner& corner : kCorners) {
    if (corner.at[0] < 0 || corner.at[1] < 0) continue;
    CAPTURE(corner.at[0]);
    CAPTURE(corner.at[1]);
    check(corner);
  }
}

}  // namespace

TEST_SUITE("tma") {
  TEST_CASE("a load brings a box, and zeros for what is outside of the tensor") {
    if (lacks_tma()) return;
    for (const Corner& corner : kCorners) {
      check_load(halves(0, 64), corner);
      check_load(halves(0, 8), corner);
      check_load(halves(128, 64), corner);
      check_load(halves(64, 32), corner);
      check_load(halves(32, 16), corner);
    }
  }

  TEST_CASE("elements of 4 and 8 bytes are moved as they are") {
    if (lacks_tma()) return;
    for (const Corner& corner : kCorners) {
      check_load({DType::fp32, nullptr, 2, {100, 70}, {100}, {32, 16}, 128}, corner);
      check_load({DType::tf32, nullptr, 2, {100, 70}, {100}, {32, 16}, 0}, corner);
      check_load({DType::fp64, nullptr, 2, {100, 70}, {102}, {16, 16}, 128}, corner);
      check_load({DType::bf16, nullptr, 2, {100, 70}, {112}, {64, 16}, 128}, corner);
    }
  }

  TEST_CASE("boxes of three and four axes") {
    if (lacks_tma()) return;
    for (const int x : {0, 16, -8, 48}) {
      for (const int z : {0, 3, -1, 5}) {
        const BoxedTensor three{DType::fp16,   nullptr,    3,  {64, 20, 6},
                                {72, 72 * 21}, {64, 8, 4}, 128};
        check_load(three, {{x, 4, z}});
        check_load(three, {{x, 17, z}});
        const BoxedTensor four{DType::fp32,   nullptr,       4, {20, 3, 7, 5},
                               {20, 64, 512}, {16, 2, 4, 3}, 0};
        check_load(four, {{x, 1, 2, z}});
        check_load(four, {{x, -1, 5, z}});
      }
    }
  }

  TEST_CASE("each block of a cluster loads a half of the box for both") {
    if (lacks_tma()) return;
    BoxedTensor t{DType::fp16, nullptr, 2, {100, 70}, {104}, {64, 8}, 128};
    BoxedTensor both = t;
    both.box[1] = 16;
    const Words tensor = numbered_words(bytes_of_tensor(t));
    const DeviceWords in("in", tensor);
    t.data = in.data();
    for (const Corner& corner : kCorners) {
      CAPTURE(corner.at[0]);
      CAPTURE(corner.at[1]);
      const DeviceWords out("out", Words(2 * kBoxWords, 0));
      require(load_for_both(map_of(t), corner, bytes_of_box(t), out.data()));
      Words expected = expected_box(both, corner, tensor);
      const Words again = expected;
      expected.insert(expected.end(), again.begin(), again.end());
      CHECK(out.download() == expected);
    }
  }

  TEST_CASE("a store writes what of its box lies in the tensor, and 16 bytes at a time") {
    if (lacks_tma()) return;
    const auto check = [](BoxedTensor t, const Corner& corner) {
      CAPTURE(t.rank);
      CAPTURE(t.swizzle_bytes);
      const Words box = numbered_words(sizeof(std::uint32_t) * kBoxWords);
      Words tensor(bytes_of_tensor(t) / 4, 0xabababab);
      const DeviceWords in("in", box), out("out", tensor);
      t.data = out.data();
      require(store_box(t.rank, map_of(t), corner, in.data(), 0));
      auto* to = reinterpret_cast<std::uint8_t*>(tensor.data());
      BoxedTensor written = t;  // to the end of a row's last 16 bytes
      const auto chunk = static_cast<std::int64_t>(16 / size_bytes(t.type));
      written.extents[0] = (t.extents[0] + chunk - 1) / chunk * chunk;
      for_each_element(written, corner, [&](std::int64_t at, std::int64_t from) {
        if (at < 0) return;
        std::memcpy(to + at, reinterpret_cast<const std::uint8_t*>(box.data()) + from,
                    size_bytes(t.type));
      });
      CHECK(out.download() == tensor);
    };
    for_each_corner_of_stores([&](const Corner& corner) {
      check(halves(0, 64), corner);
      check(halves(128, 64), corner);
      check(halves(64, 32), corner);
      check(halves(32, 16), corner);
    });
    check({DType::fp16, nullptr, 3, {64, 20, 6}, {72, 72 * 21}, {64, 8, 4}, 128}, {{8, 15, 4}});
    check({DType::fp32, nullptr, 4, {20, 3, 7, 5}, {20, 64, 512}, {16, 2, 4, 3}, 0},
          {{8, 1, 5, 3}});
  }

  TEST_CASE("a reduction adds to the tensor, from several blocks at once") {
    if (lacks_tma()) return;
    constexpr unsigned kBlocks = 7;
    for_each_corner_of_stores([](const Corner& corner) {
      BoxedTensor t{DType::fp32, nullptr, 2, {100, 70}, {100}, {32, 16}, 128};
      std::vector<float> box(kBoxWords), tensor(bytes_of_tensor(t) / 4);
      for (std::size_t i = 0; i < box.size(); ++i) box[i] = static_cast<float>(i);
      for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<float>(i % 100);
      const DeviceVector<float> in("in", box), out("out", tensor);
      t.data = out.data();
      require(store_box(2, map_of(t), corner, reinterpret_cast<const std::uint32_t*>(in.data()),
                        kBlocks));
      for_each_element(t, corner, [&](std::int64_t at, std::int64_t from) {
        if (at < 0) return;
        tensor[static_cast<std::size_t>(at / 4)] +=
            kBlocks * box[static_cast<std::size_t>(from / 4)];
      });
      CHECK(out.download() == tensor);
    });
  }

  TEST_CASE("halves are added too, and rounded each time") {
    if (lacks_tma()) return;
    for (const DType type : {DType::fp16, DType::bf16}) {
      BoxedTensor t{type, nullptr, 2, {64, 16}, {64}, {64, 16}, 0};
      // 1 and the smallest number above it, whose sum is a tie, and goes to the even 2.
      const std::uint32_t one = type == DType::fp16 ? 0x3c00 : 0x3f80, more = one + 1;
      const std::uint32_t two = type == DType::fp16 ? 0x4000 : 0x4000;
      const DeviceWords in("in", Words(kBoxWords, more << 16 | one));
      const DeviceWords out("out", Words(64 * 16 / 2, one << 16 | one));
      t.data = out.data();
      require(store_box(2, map_of(t), {{0, 0}}, in.data(), 1));
      CHECK(out.download() == Words(64 * 16 / 2, two << 16 | two));
    }
  }

  TEST_CASE("runs of bytes are loaded, stored and added") {
    if (lacks_tma()) return;
    for (const int words : {4, 8, 100, kBoxWords}) {
      CAPTURE(words);
      const auto count = static_cast<std::size_t>(words);
      Words numbers = numbered_words(sizeof(std::uint32_t) * count);
      const DeviceWords in("in", numbers), out("out", Words(count + 4, 5));
      require(copy_bulk(in.data(), words, out.data()));
      numbers.insert(numbers.end(), 4, 5);
      CHECK(out.download() == numbers);

      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000);
      const DeviceVector<float> more("more", values), sums("sums", values);
      require(add_bulk(more.data(), words, 9, sums.data()));
      for (float& value : values) value *= 10;
      CHECK(sums.download() == values);
    }
  }

  TEST_CASE("buffers are stored in turn, and filled again once they have been read") {
    if (lacks_tma()) return;
    for (const int rounds : {0, 1, 3, 4, 20}) {
      Words expected(static_cast<std::size_t>(rounds) * 128 + 4, 0);
      const DeviceWords out("out", expected);
      require(store_in_turn(rounds, out.data()));
      for (std::size_t i = 0; i + 4 < expected.size(); ++i) {
        expected[i] = static_cast<std::uint32_t>(i);
      }
      CHECK(out.download() == expected);
    }
  }

  TEST_CASE("a ring of loads, for warps that store what they have made of them") {
    if (lacks_tma()) return;
    for (const int boxes : {1, 3, 4, 13}) {
      CAPTURE(boxes);
      BoxedTensor t{DType::fp32, nullptr, 2, {32, 8 * boxes - 3}, {32}, {32, 8}, 0};
      std::vector<float> values(bytes_of_tensor(t) / 4);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
      const DeviceVector<float> in("in", values), out("out", std::vector<float>(values.size(), -1));
      t.data = in.data();
      const tile::TensorMap map = map_of(t);
      t.data = out.data();
      require(double_in_ring(map, map_of(t), boxes));
      for (float& value : values) value *= 2;
      CHECK(out.download() == values);
    }
  }

  TEST_CASE("a map that TMA cannot use is refused, by the name of its tensor") {
    if (lacks_tma()) return;
    const auto message = [](BoxedTensor t, const void* data) {
      t.data = data;
      tile::TensorMap map;
      return make_tensor_map("c", t, &map).message;
    };
    const DeviceWords memory("memory", Words(8192, 0));
    const auto* data = reinterpret_cast<const char*>(memory.data());
    const BoxedTensor t = halves(128, 64);
    const auto with = [&](auto change) {
      BoxedTensor changed = t;
      change(changed);
      return message(changed, data);
    };
    CHECK(message(t, data) == "");
    CHECK(message(t, nullptr) == "c: is null");
    CHECK(message(t, data + 8) == "c: its address is no multiple of 16 bytes, which TMA needs");
    CHECK(with([](BoxedTensor& b) { b.rank = 6; }) == "c: rank 6 is not 1 to 5");
    CHECK(with([](BoxedTensor& b) { b.extents[1] = 0; }) == "c: extent 1, 0, is not 1 to 2^32");
    CHECK(with([](BoxedTensor& b) { b.box[1] = 257; }) == "c: box extent 1, 257, is not 1 to 256");
    CHECK(with([](BoxedTensor& b) { b.strides[0] = 100; }) ==
          "c: stride 1, 100, is no multiple of 16 bytes, which TMA needs");
    CHECK(with([](BoxedTensor& b) { b.strides[0] = 0; }) ==
          "c: stride 1, 0, was never asked of TMA");
    CHECK(with([](BoxedTensor& b) { b.strides[0] = std::int64_t{1} << 39; }) ==
          "c: stride 1, 549,755,813,888, is not 0 to 2^40 bytes");
    CHECK(with([](BoxedTensor& b) { b.box[0] = 12; }) ==
          "c: a row of the box, 24 bytes, is no multiple of 16 bytes");
    CHECK(with([](BoxedTensor& b) { b.box[0] = 72; }) ==
          "c: a row of the box, 144 bytes, is longer than the swizzle, 128 bytes");
    CHECK(with([](BoxedTensor& b) { b.swizzle_bytes = 16; }) ==
          "c: a swizzle of 16 bytes is not one of 0, 32, 64, 128");
  }
}
