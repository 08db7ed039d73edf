// Checks exercise 02.3. Not part of the task.
// Shipped: neither bias nor ReLU is there yet
#include <cmath>
#include <limits>

#include "test/exercises/checks.hpp"

using matmul::Task;
using tile::DType;

namespace {

constexpr std::int64_t kTileK = 32;

// As the task wants it.
double relu(double x) { return std::isnan(x) ? x : std::max(x, 0.0); }

struct Layer : Task {
  std::vector<double> bias = tile::normal(p.n, DType::fp32, 3);

  using Task::Task;
  double bias_at(std::int64_t col) const { return bias[static_cast<std::size_t>(col)]; }

  // Its values are those of `element`, which gets the product's element, its row and its column.
  template <class Element>
  tile::Expected if_it_were(Element element) const {
    tile::Expected expected = right();
    for (std::size_t i = 0; i < expected.value.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / p.n, col = static_cast<std::int64_t>(i) % p.n;
      const double sum = expected.value[i];
      expected.value[i] = element(sum, row, col);
      // Adding the bias rounds once more. What is not finite has no rounding errors.
      expected.bound[i] +=
          2 * tile::unit_roundoff(DType::fp32) * (std::abs(sum) + std::abs(bias_at(col)));
      if (!std::isfinite(expected.bound[i])) expected.bound[i] = 0;
    }
    return expected;
  }
  tile::Expected layer() const {
    return if_it_were([this](double sum, auto, auto col) { return relu(sum + bias_at(col)); });
  }
};

std::string explain(const Layer& t, const std::vector<double>& got) {
  const double tiles = static_cast<double>((t.p.k + kTileK - 1) / kTileK);
  std::vector<tile::Mistake> mistakes = {
      {"this is A * B: neither bias nor ReLU is there yet",
       t.if_it_were([](double sum, auto, auto) { return sum; })},
      {"this is A * B + bias: ReLU is missing",
       t.if_it_were([&](double sum, auto, auto col) { return sum + t.bias_at(col); })},
      {"this is max(0, A * B): bias is missing",
       t.if_it_were([&](double sum, auto, auto) { return relu(sum); })},
      {"this is max(0, A * B) + bias: bias comes before ReLU",
       t.if_it_were([&](double sum, auto, auto col) { return relu(sum) + t.bias_at(col); })},
      {"bias is added once for each tile along k: once for each element is enough",
       t.if_it_were(
           [&](double sum, auto, auto col) { return relu(sum + tiles * t.bias_at(col)); })},
      {"NaN has become 0. fmaxf returns the other argument if one of them is NaN, and no "
       "comparison "
       "with NaN is true",
       t.if_it_were([&](double sum, auto, auto col) {
         const double x = relu(sum + t.bias_at(col));
         return std::isnan(x) ? 0 : x;
       })}};
  if (t.p.m <= t.p.n) {
    mistakes.push_back(
        {"the element of bias is that of the row: bias has one for each column",
         t.if_it_were([&](double sum, auto row, auto) { return relu(sum + t.bias_at(row)); })});
  }
  return tile::explain_mistake(got, mistakes);
}

void check(const Layer& layer) {
  INFO(layer.text());
  const tile::DeviceBuffer bias =
      tile::DeviceBuffer::input("bias", tile::vector_layout(DType::fp32, layer.p.n), layer.bias);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const std::vector<double> got = run(
        layer,
        [&bias](const matmul::Problem& p, const matmul::Buffers& buffers) {
          return matmul::bias_relu(p, buffers, static_cast<const float*>(bias.raw()));
        },
        poison);
    tile::require_right("d", got, layer.layer(), [&] { return explain(layer, got); });
    const tile::Status intact = bias.check();
    REQUIRE_MESSAGE(intact.ok(), intact.message);
  }
}

// Reads of bias past its end, which the result need not show.
void check_edge() {
  const Layer layer(33, 35, 40);
  const matmul::AtTheEdge bias(layer.bias);
  run(
      layer,
      [&bias](const matmul::Problem& p, const matmul::Buffers& buffers) {
        return matmul::bias_relu(p, buffers, bias.data());
      },
      tile::Poison::unwritten_nan,
      "\nHint: bias ends where readable memory ends here. Is the column compared with n before its "
      "element of bias is read?");
}

}  // namespace

TEST_CASE("02.3 bias and ReLU") {
  const std::int64_t extents[][3] = {{32, 64, 64}, {32, 32, 32}, {1, 1, 1},      {31, 33, 65},
                                     {97, 35, 40}, {3, 113, 7},  {40, 100, 130}, {5, 7, 0}};
  for (const auto& extent : extents) check(Layer(extent[0], extent[1], extent[2]));

  Layer special(33, 40, 50);
  special.a[50 * 7 + 3] = std::numeric_limits<double>::quiet_NaN();  // row 7
  special.bias[9] = std::numeric_limits<double>::quiet_NaN();
  special.bias[10] = std::numeric_limits<double>::infinity();
  special.bias[11] = -std::numeric_limits<double>::infinity();
  check(special);

  if (tile::device_reads_host_memory()) check_edge();
}
