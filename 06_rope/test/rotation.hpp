// Frequencies and tables for tests and workloads, as the harness takes its inputs: in double.
#pragma once

#include <cstdint>
#include <vector>

#include "rotary/frequencies.hpp"

namespace rope {

/// f_i = 10000^(-2 i / rotary_dim).
inline std::vector<double> paper_frequencies(std::int64_t rotary_dim) {
  return frequencies({.rotary_dim = rotary_dim});
}

struct TestTables {
  std::vector<double> cos, sin;
};
inline TestTables tables_of(const std::vector<double>& frequencies, std::int64_t positions,
                            double factor = 1) {
  const Tables tables = make_tables(frequencies, positions, factor);
  return {{tables.cos.begin(), tables.cos.end()}, {tables.sin.begin(), tables.sin.end()}};
}

}  // namespace rope
