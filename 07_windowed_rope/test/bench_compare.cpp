// ./tour run 07 --compare: the encodings side by side.
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <stdexcept>

#include "curves.hpp"
#include "harness/attention_reference.hpp"
#include "harness/bench.hpp"
#include "ladders.hpp"
#include "tile/host/device.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {
namespace {

/// Runs a pass: the worst error as a share of its bound, and on a GPU the time.
std::string outcome(const tile::LadderInfo& ladder, const std::vector<std::int64_t>& size,
                    tile::DType type, bool* right) {
  const auto workload = ladder.make(size, type);
  tile::Choice choice;
  tile::Status status = workload->choose(0, &choice);
  if (status.ok()) status = workload->launch(choice.step, nullptr);
  if (!status.ok()) {
    *right = *right && status.code == tile::Code::unsupported;
    return status.message;
  }
  const tile::Comparison found = workload->check();
  if (!found.ok()) {
    *right = false;
    return "WRONG: " + found.message;
  }
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << found.worst_ratio * 100 << " %";
  if (!tile::device().simulated) text << "  " << tile::time_beside(*workload, 0, 0);
  return text.str();
}

std::string mebibytes(std::int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

/// What attention needs that has all scores in memory.
template <class Call>
std::int64_t unfused(const Hidden& p) {
  return scores_bytes(tile::attention_call<Call>(
      p.type, {p.batch, p.heads, p.heads, p.length, p.length, p.head_dim}));
}

bool show(const std::vector<std::int64_t>& given, tile::DType type, const std::string& folder) {
  const tile::LadderInfo forward = hidden_info(), backward = hidden_backward_info();
  std::vector<std::int64_t> size = given;
  if (size.empty() && tile::device().simulated) size = {1, 192, 2, 32, 64, 0, 48};
  // Half as long as what the benchmark times: the references in double take most of the time.
  if (size.empty()) size = {1, 1024, 8, 64, 512, 0, 256};
  Hidden p{.type = type,
           .batch = size[0],
           .length = size[1],
           .heads = size[2],
           .head_dim = size[3],
           .model_dim = size[4]};
  p.window = size[6];
  for (const tile::Status& s :
       {validate_sizes(p), tile::check_requirements(kHidden[0].types, kHidden[0].needs, type)}) {
    if (!s.ok()) throw std::invalid_argument(s.message);
  }
  std::printf("  %s, batch %lld, length %lld, heads %lld of %lld, model %lld, W %lld\n",
              std::string(tile::name(type)).c_str(), static_cast<long long>(p.batch),
              static_cast<long long>(p.length), static_cast<long long>(p.heads),
              static_cast<long long>(p.head_dim), static_cast<long long>(p.model_dim),
              static_cast<long long>(p.window));
  std::printf(
      "  Errors are shares of what a correct kernel may be off by; memory is the workspace.\n\n");
  const int width = tile::device().simulated ? 10 : 40;
  std::printf("  %-20s  %*s  %*s  %12s  %12s\n", "", width, "forward", width, "backward", "forward",
              "backward");
  bool right = true;
  for (const Encoding encoding : kEncodings) {
    p.encoding = encoding;
    size[5] = static_cast<std::int64_t>(encoding);
    std::printf("  %-20s  %*s", title(encoding), width,
                outcome(forward, size, type, &right).c_str());
    std::printf("  %*s  %12s  %12s\n", width, outcome(backward, size, type, &right).c_str(),
                mebibytes(composed_bytes(HiddenForward{p})).c_str(),
                mebibytes(composed_bytes(HiddenBackward{p})).c_str());
    std::fflush(stdout);  // the next one may take seconds
  }
  std::printf("  %-20s  %*s  %*s  %12s  %12s\n", "scores in memory", width, "", width, "",
              ("+ " + mebibytes(unfused<AttentionForward>(p))).c_str(),
              ("+ " + mebibytes(unfused<AttentionBackward>(p))).c_str());

  const std::string file = (folder.empty() ? "" : folder + "/") + "07_compare.svg";
  std::ofstream out(file);
  out << curves(p);
  out.close();
  if (!out) throw std::runtime_error(file + " could not be written");
  std::printf("\n  Scores by distance: %s\n", file.c_str());
  return right;
}

}  // namespace

tile::SideBySide side_by_side() { return {"hidden", show}; }

}  // namespace windowed_rope
