// Checks exercise 02.7. Not part of the task.
// Shipped: a block has ended before a load
#include "test/exercises/checks.hpp"

using matmul::Task;

namespace {

constexpr std::int64_t kTileK = 64;
constexpr std::int64_t kStages = 3;
constexpr std::int64_t kStageBytes = 2 * 64 * kTileK * 2;

std::int64_t turns(const Task& t) { return (t.p.k + kTileK - 1) / kTileK; }

// What has likely happened, as far as the result tells it.
std::string explain(const Task& t, const std::vector<double>& got) {
  // What a stage held a round before, or will hold a round later.
  const auto of_round = [&](std::int64_t rounds) {
    return t.if_terms_were([&t, rounds](auto row, auto col, auto l) {
      const std::int64_t from = l + rounds * kStages * kTileK;
      const bool is_there = from >= 0 && from < t.p.k;
      return is_there ? t.a_at(row, from) * t.b_at(from, col) : t.a_at(row, l) * t.b_at(l, col);
    });
  };
  const tile::Mistake mistakes[] = {
      {"some turns have multiplied what a later one was to get: a stage is filled again before it "
       "has been read. Who says that it has, and which phase of empty[stage] does the producer "
       "wait for?",
       of_round(1)},
      {"some turns have multiplied what their stage held a round before: which phase of "
       "full[stage] does the consumer wait for? Its parity changes with each round",
       of_round(-1)}};
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  if (turns(t) > kStages) {
    return "\nHint: a round of the ring was right, and what follows is not. Which parity has a "
           "stage's phase in its second round, and in its third? And does the producer wait until "
           "the stage has been read?";
  }
  return {};
}

// Why a kernel may fail while it runs.
std::string fault(const Task& t) {
  const std::string names = " (An mbarrier has 8 bytes: byte 16 of full is full[2].)";
  if (turns(t) > kStages) {
    return "\nHint: as many turns as there are stages went well. From then on a stage is used "
           "again. "
           "The consumer has read it only when a wgmma_wait() says so. Count the phases of both "
           "mbarriers, and compare their parities with those that are waited for." +
           names;
  }
  return "\nHint: each stage is used once here, and the producer has nothing to wait for yet. A "
         "phase of full[stage] is complete when the producer has arrived and as many bytes have "
         "come as it has announced: those of both copies, or the rest counts in the next phase. "
         "The consumer waits for it." +
         names;
}

void check(const Task& task) {
  INFO(task.text(), "; turns: ", turns(task), ", stages: ", kStages);
  tile::bulk_loads();  // forget what went before
  const std::vector<double> c =
      run(task, matmul::ring_of_mbarriers, tile::Poison::unwritten_nan, fault(task));
  const std::int64_t on_the_way = tile::bulk_loads().most_on_the_way;
  tile::require_right("c", c, task.exact(), [&] { return explain(task, c); });
  if (!tile::device_is_simulated()) return;  // a GPU does not tell
  const std::int64_t possible = std::min(turns(task), kStages);
  REQUIRE_MESSAGE(on_the_way >= possible * kStageBytes,
                  "the product is right, but the ring is not as busy as it can be: at most ",
                  on_the_way / kStageBytes, " of ", kStages,
                  " stages were on their way at one time, and ", possible,
                  " can be. Does the producer wait for something that it does not need?");
}

}  // namespace

TEST_CASE("02.7 a ring of mbarriers") {
  matmul::require_hopper();
  for (const std::int64_t k : {64, 128, 192,   // a round of the ring, and less
                               256, 448, 512,  // the second and the third round
                               40, 200}) {
    check(Task::integers(64, 64, k));
  }
  check(Task::integers(136, 72, 456));
  check(Task::integers(1, 3, 333));
}
