// The main of all tests. It tells the first failed check in words, and stops there;
// --reporters=console is doctest's own report, of all of them. Beyond doctest's flags it takes
// --step=FILE, exits with 77 when the device lacks what a test needs, and fails when no test case
// was run or nothing was checked: doctest itself is content with a filter that matches nothing.
// --host-seconds=N ends it when its own thread has used as much processor time: the CPU device ends
// a kernel that loops for ever, and an exercise may do so outside of one.
#define DOCTEST_CONFIG_IMPLEMENT
#include "harness/test_main.hpp"

#include <doctest/doctest.h>
#include <malloc.h>
#include <pthread.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <sstream>
#include <string_view>
#include <thread>

#include "harness/buffer.hpp"
#include "harness/failure.hpp"

namespace tile {
namespace {

std::string step;
bool skipped = false;
unsigned cases_run = 0;
int checks_made = 0;

// The parts of doctest's reports that are left out.
struct Silent : doctest::IReporter {
  explicit Silent(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
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

struct Counter : Silent {
  using Silent::Silent;
  void test_run_end(const doctest::TestRunStats& stats) override {
    cases_run = stats.numTestCasesPassingFilters;
    checks_made = stats.numAsserts;
  }
};
REGISTER_LISTENER("counter", 1, Counter);

struct Words : Silent {
  using Silent::Silent;
  void report_query(const doctest::QueryData& query) override {
    for (unsigned i = 0; i < query.num_data; ++i) std::puts(query.data[i]->m_name);
  }
  void log_assert(const doctest::AssertData& check) override {
    if (!check.m_failed || (check.m_at & doctest::assertType::is_warn) != 0) return;
    Failure failure{small_inputs(), {}, {}};
    for (int i = 0; i < get_num_active_contexts(); ++i) {
      std::ostringstream text;
      get_active_contexts()[i]->stringify(&text);
      failure.add(text.str());
    }
    // For maintainers. An exercise's check is no place for its reader to go.
    if (std::string_view(check.m_test_case->m_file.c_str()).find("/test/exercises/") ==
        std::string_view::npos) {
      failure.where.push_back("the check is at " + std::string(check.m_file) + ":" +
                              std::to_string(check.m_line));
    }
    if (failure.said.empty()) {
      failure.said = std::string("this does not hold: ") + check.m_expr;
      const std::string values = check.m_decomp.c_str();
      if (values != "false" && values != "true" && values != check.m_expr)
        failure.said += "\n  with " + values;
      if (check.m_threw) failure.said.append("\n  threw ").append(check.m_exception.c_str());
    }
    tell(failure);
  }
  void test_case_exception(const doctest::TestCaseException& ended) override {
    if (told_) return;  // a failed REQUIRE, and the end of all after the first failure
    Failure failure{{}, {}, std::string("ended by ") + ended.error_string.c_str()};
    for (int i = 0; i < get_num_stringified_contexts(); ++i) {
      failure.add(get_stringified_contexts()[i].c_str());
    }
    tell(failure);
  }

 private:
  void tell(const Failure& failure) {
    if (told_) return;
    told_ = true;
    std::printf("%s\n", in_words(failure).c_str());
    std::fflush(stdout);  // a crash may follow
  }
  bool told_ = false;
};
REGISTER_REPORTER("words", 1, Words);

// Of processor time of the calling thread.
void end_after(int seconds) {
  clockid_t clock{};
  if (pthread_getcpuclockid(pthread_self(), &clock) != 0) return;
  std::thread([clock, seconds] {
    for (timespec used{}; used.tv_sec < seconds; clock_gettime(clock, &used)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    std::printf(
        "%sthe check ran for %d s without end: look at the host's loops, and the kernel's\n",
        kMistake.substr(1).data(), seconds);
    std::fflush(stdout);
    std::_Exit(1);
  }).detach();
}

}  // namespace

bool waits_for_its_turn(EnumSet<DType> types, std::size_t number, DType type) {
  const std::string_view test = doctest::getContextOptions()->currentTest->m_name;
  const bool has_both = types.contains(DType::fp16) && types.contains(DType::bf16);
  DType next = types.contains(DType::fp16) ? DType::fp16 : DType::bf16;
  if (has_both && number % 2 == 0) next = DType::bf16;
  const bool to_fp32 = (std::hash<std::string_view>()(test) + number) % 2 == 0;
  if (!types.contains(next) || (types.contains(DType::fp32) && to_fp32)) next = DType::fp32;
  const bool takes_turns = type == DType::fp32 || type == DType::fp16 || type == DType::bf16;
  return takes_turns && type != next;
}

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
  // A test makes and drops vectors of megabytes all the time. By default the C library gives each
  // back to the system, which maps and clears its pages anew for the next.
  constexpr int kKept = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kKept);
  mallopt(M_TRIM_THRESHOLD, kKept);
  constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE
  bool has_reporter = false;    // doctest would have both
  std::vector<char*> others;
  for (int i = 0; i < count; ++i) {
    const std::string_view argument = arguments[i];
    constexpr std::string_view kStep = "--step=", kHostSeconds = "--host-seconds=";
    if (argument.substr(0, kStep.size()) == kStep) {
      tile::step = argument.substr(kStep.size());
    } else if (argument.substr(0, kHostSeconds.size()) == kHostSeconds) {
      const std::string_view text = argument.substr(kHostSeconds.size());
      int seconds = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
      if (error != std::errc() || end != text.data() + text.size() || seconds < 1) {
        std::fprintf(stderr, "--host-seconds needs a whole number above 0, not '%.*s'\n",
                     static_cast<int>(text.size()), text.data());
        return 2;
      }
      tile::end_after(seconds);
    } else {
      has_reporter |= argument.find("reporters=") != argument.npos;
      others.push_back(arguments[i]);
    }
  }
  doctest::Context context;
  if (!has_reporter) context.setOption("reporters", "words");
  context.setOption("abort-after", 1);  // a wrong kernel fails everywhere
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
