// The program behind ./tour exercise. No chapter is part of it: it builds while a step does not.
#include <iostream>
#include <stdexcept>

#include "harness/exercises.hpp"

int main(int count, char** arguments) {
  const tile::ExerciseFolders folders{TILE_PROJECT_FOLDER, TILE_BUILD_FOLDER, TILE_CHECK_FOLDER};
  const std::string_view command = count > 1 ? arguments[1] : "";
  try {
    if (command == "exercises" && count <= 3) {
      return tile::report_exercises(folders, count == 3 ? arguments[2] : "", std::cout);
    }
    if (command == "exercise" && count == 2) {
      tile::list_exercises(folders, std::cout);
      return 0;
    }
    if (command != "exercise" || count != 3) {
      throw std::invalid_argument("exercise takes one number, such as 01.1, and nothing else");
    }
    return tile::check_exercise(folders, arguments[2], std::cout);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
