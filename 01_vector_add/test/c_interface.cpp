// Chapter 01 for callers of C.
#include "harness/c/c_interface.hpp"
#include "vector_add.hpp"

namespace {

const tile::c::RegisterLadder kRegistered{vector_add::kName, vector_add::kTitle,
                                          tile::infos_of(vector_add::kLadder)};

}  // namespace

tile_status tile_vector_add(const tile_vector_add_args* args) {
  return tile::c::operation([args]() -> tile::Status {
    tile_vector_add_args given;
    TILE_TRY(tile::c::read_arguments(args, &given));
    vector_add::Problem problem{};
    TILE_TRY(tile::c::read_type(given.type, &problem.type));
    problem.n = given.n;
    return tile::c::launch_step(vector_add::kLadder, given.step, given.stream, problem,
                                vector_add::Buffers{given.a, given.b, given.c});
  });
}
