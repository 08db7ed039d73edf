// A call of each operation, drawn: a valid one, with all that would make it wrong.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "harness/c/fuzz.hpp"

namespace fuzz {

constexpr std::int64_t kMost = std::int64_t{1} << 29, kAny = INT64_MAX;

using Made = std::unique_ptr<Call>;
template <class Args>
Made make(Draw* draw, const char* name, Call::Operation<Args> run, Call::Operation<Args> refer,
          Args** args) {
  auto c = std::make_unique<Call>(draw, name, Args{}, run, refer);
  *args = &c->template as<Args>();
  return c;
}

inline DType any_type(Draw& draw) { return draw.of({DType::fp32, DType::fp16, DType::bf16}); }

std::vector<double> frequencies_of(std::int64_t rotary_dim);
std::vector<double> table_of(std::int64_t rotary_dim, std::int64_t positions, double factor,
                             double (*function)(double));
/// Positions of tokens, some of them nowhere in the tables.
std::vector<int> any_positions(Draw& draw, std::int64_t tokens, std::int64_t table_positions);

struct Operator {
  const char* name;
  Made (*make)(Draw& draw);
};
std::vector<Operator> matrices(), positions(), attentions();  // of chapters 01 to 04, 06, 05 to 07

}  // namespace fuzz
