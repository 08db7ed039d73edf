// The main of all tests. Beyond doctest's own flags it takes --step=FILE, exits with 77 when the
// device lacks what a test needs, and fails when no test case was run or nothing was checked:
// doctest itself is content with a filter that matches nothing.
#define DOCTEST_CONFIG_IMPLEMENT
#include "harness/test_main.hpp"

#include <doctest/doctest.h>

#include <cstdio>

namespace tile {
namespace {

std::string step;
bool skipped = false;
unsigned cases_run = 0;
int checks_made = 0;

struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    cases_run = stats.numTestCasesPassingFilters;
    checks_made = stats.numAsserts;
  }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

std::string_view selected_step() { return step; }

void skip(std::string_view why) {
  std::printf("skipped: %.*s\n", static_cast<int>(why.size()), why.data());
  skipped = true;
}

std::size_t& own_runs() {
  static std::size_t runs = 0;
  return runs;
}

}  // namespace tile

int main(int count, char** arguments) {
  constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE
  std::vector<char*> others;
  for (int i = 0; i < count; ++i) {
    const std::string_view argument = arguments[i];
    constexpr std::string_view kStep = "--step=";
    if (argument.substr(0, kStep.size()) == kStep) {
      tile::step = argument.substr(kStep.size());
    } else {
      others.push_back(arguments[i]);
    }
  }
  doctest::Context context;
  context.setOption("abort-after",
                    3);  // a wrong kernel fails everywhere, and three examples will do
  context.applyCommandLine(static_cast<int>(others.size()), others.data());
  const int result = context.run();
  if (result != 0 || context.shouldExit()) return result;
  if (tile::skipped) return kSkipped;
  if (tile::cases_run == 0 || tile::checks_made == 0) {
    std::fprintf(stderr, "nothing was tested: %u test cases, %d checks\n", tile::cases_run,
                 tile::checks_made);
    if (!tile::step.empty()) std::fprintf(stderr, "is there a step %s?\n", tile::step.c_str());
    return 2;
  }
  return 0;
}
