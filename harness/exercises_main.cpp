// The program that ./tour exercise runs. No chapter is part of it: it builds while a step does not.
#include <iostream>
#include <stdexcept>

#include "harness/exercises.hpp"

namespace {

/// Checks one exercise and says what to do next. Returns the exit code: 0 solved, 1 not yet.
int check(tile::Exercises& exercises, const tile::Exercise& exercise) {
  const tile::ExerciseState state = exercises.check(exercise, std::cout);
  std::cout << exercise.shown() << ": " << words(state) << ". ";
  if (state == tile::ExerciseState::solved) {
    if (exercises.has_solution(exercise)) {
      std::cout << "Compare with " << exercise.chapter << "/solutions/" << exercise.name << ".cu";
    }
    std::cout << "\n" << exercises.count_solved() << ".";
    const tile::Exercise* next = exercises.next_after(&exercise);
    if (next) std::cout << " Next: ./tour exercise " << next->id();
    std::cout << "\n";
    return 0;
  }
  std::cout << "Edit " << exercise.path() << ", then\n  ./tour exercise " << exercise.id()
            << "          or, for a hint,\n  ./tour exercise " << exercise.id() << " --hint\n";
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view command = count > 1 ? arguments[1] : "";
  std::string_view id, flag;
  try {
    for (int i = 2; i < count; ++i) {
      const std::string_view word = arguments[i];
      std::string_view& place = word.substr(0, 2) == "--" ? flag : id;
      if (!place.empty()) throw std::invalid_argument("'" + std::string(word) + "' is too much");
      place = word;
    }
    const bool grades = command == "grade";
    constexpr int kSeconds = 120;  // for the compiler and for the check of another's answer
    tile::Exercises exercises({TILE_PROJECT_FOLDER, TILE_BUILD_FOLDER, TILE_CHECK_FOLDER,
                               TILE_PROJECT_FOLDER "/.progress"},
                              grades ? kSeconds : 0);
    if (grades) {
      if (exercises.grade(id, std::cout) > 0) return 0;
      throw std::invalid_argument("There are no answers in " + std::string(id) +
                                  ": NAME/CHAPTER/exercises/EXERCISE.cu");
    }
    if (command == "exercises" && flag.empty()) return exercises.report(id, std::cout) ? 0 : 1;
    if (flag == "--watch") return watch_exercises(exercises, id);
    if (flag.empty() && id.empty()) {
      exercises.list(std::cout);
      return 0;
    }
    if (id.empty()) {
      throw std::invalid_argument(std::string(flag) + " needs the exercise's number, such as 01.1");
    }
    const tile::Exercise& exercise = exercises.find(id);
    if (flag == "--hint") {
      std::cout << exercises.hint(exercise);
      return 0;
    }
    if (flag == "--solution") {
      std::cout << exercises.solution(exercise);
      return 0;
    }
    return check(exercises, exercise);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
