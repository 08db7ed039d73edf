// Measured numbers as rows of docs/results/<gpu>.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tile {

/// One number. The first six fields and `peer` together are its key: a new row replaces an old one
/// with the same key.
struct Result {
  std::string chapter;  ///< the folder's name
  std::string step;
  std::string direction;  ///< forward, backward or forward+backward
  std::string workload;   ///< "case" in the file: type and sizes, "fp32 n16777216"
  std::string metric;     ///< what was measured, and under which load: "bandwidth burst"
  double value = 0;
  std::string unit;               ///< ms, TB/s or TFLOP/s
  std::optional<double> ceiling;  ///< in the same unit
  std::string peer;               ///< copy, cuBLAS, …; empty for none
  std::optional<double> peer_value;
  std::optional<double> ratio;  ///< ours over the peer's; above 1 is better for us
  double low = 0, high = 0;     ///< a tenth of the repetitions lies below, a tenth above
  double sm_clock = 0;          ///< MHz
};

/// The fields that all rows of a run share.
struct Origin {
  std::string gpu, driver, cuda, commit, date;
};

/// A row as one line of JSON, its fields in the order of the struct.
std::string to_json(const Result& result, const Origin& origin);

/// Merges rows into a file: one row a line, in the order of their keys' first appearance. The file
/// need not exist. Throws std::runtime_error, and leaves the file alone, if it is not such a file
/// or cannot be written.
void merge_results(const std::string& path, const std::vector<Result>& results,
                   const Origin& origin);

}  // namespace tile
