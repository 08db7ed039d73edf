#!/usr/bin/env bash
# Builds targets, and says what is built, how many files of how many, and about how long it takes: in
# a line that moves on a terminal, in a line every ten seconds elsewhere. ./tour and
# docs/debugging/bug read this file; the exercises' program runs it:
#   cmake/build.sh FOLDER TEXT TARGET [CMAKE-OPTION…]
# Bash 3.2 is enough.

object='^[^:]*Building (CXX|CUDA|C) object ' # in Ninja's words

fail() { # EXIT-CODE MESSAGE [LOG]
  [[ ! ${3-} ]] || grep -av -e '^@' -e '^ninja: Entering' "$3" >&2 || true # without Ninja's progress
  printf '%s: %s\n' "$(basename "$0")" "$2" >&2
  exit "$1"
}

cores() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN; }

# ---- The line ----
moves() { [[ -t 1 && ${TERM-dumb} != dumb ]]; }
say() { printf '%s\n' "$1"; }

# A terminal's line is overwritten, so it must not wrap.
show_line() { # TEXT
  local columns=${columns_of_terminal:=$(tput cols 2>/dev/null || echo 80)}
  printf '\r%s\033[K' "${1:0:columns - 1}"
}
clear_line() { ! moves || printf '\r\033[K'; }

# "40 s", "3 minutes".
duration() { # SECONDS
  if (($1 > 90)); then
    echo "$((($1 + 30) / 60)) minutes"
  else
    echo "$(($1 < 1 ? 1 : $1)) s"
  fi
}

# Of work that was expected to take `estimate` seconds. The estimate counts at the beginning, what
# was seen so far at the end.
seconds_left() { # DONE ALL ESTIMATE SECONDS-SO-FAR
  local permille=$((1000 * $1 / $2))
  echo $(((1000 - permille) * ((1000 - permille) * $3 + 1000 * $4) / 1000000))
}

# Of what shows: it may be killed, and then the command holds neither what this script prints to nor
# a lock.
nap() { sleep "$1" >/dev/null 2>&1 3>&- 8>&- 9>&-; } # SECONDS

# Starts a job in the background, which writes a line to a log for each of `all` parts that is done.
# Ctrl-C alone would not end it for sure, since Ninja does not listen while it reads its files. So the
# job is a process group, which ends with this script.
begin_progress() { # TEXT NOUN LOG PATTERN ALL ESTIMATE COMMAND…
  p_text=$1 p_noun=$2 p_log=$3 p_pattern=$4 p_all=$5 p_estimate=$6
  p_start=$SECONDS p_shows=''
  shift 6
  : >"$p_log" # before the first look at it
  trap 'exit 130' INT
  # A subshell that is killed as it begins still has this trap.
  trap '[[ ${BASHPID-$$} != "$$" ]] || kill -- "-$p_job" $p_shows 2>/dev/null || true' EXIT
  set -m
  "$@" </dev/null >"$p_log" 2>&1 &
  p_job=$!
  set +m
}
count_lines() { grep -cE "$1" "$2" || true; } # PATTERN LOG

# Shows how far the job is until it ends, or until its log has a line that ends with UNTIL. Returns the
# job's status, if it has ended.
# In the background, because bash forgets a Ctrl-C that comes while it starts a command substitution.
# It does not while it is in `wait`.
# shellcheck disable=SC2120  # ./tour gives it
show_progress() { # [UNTIL]
  follow_progress "${1-}" <&0 & # `tput` asks stdin for the width
  p_shows=$!
  wait "$p_shows" || exit # what it writes to is closed, say
  p_shows=''
  kill -0 "$p_job" 2>/dev/null || wait "$p_job"
}
follow_progress() { # UNTIL
  local now line said=$SECONDS
  while kill -0 $$ 2>/dev/null && kill -0 "$p_job" 2>/dev/null; do
    [[ ! $1 ]] || ! grep -q -- "$1\$" "$p_log" || break
    now=$(count_lines "$p_pattern" "$p_log")
    ((now <= p_all)) || now=$p_all
    line="$p_text: $now of $p_all $p_noun, $((100 * now / p_all)) %, about $(duration \
      "$(seconds_left "$now" "$p_all" "$p_estimate" $((SECONDS - p_start)))") left"
    if moves; then
      show_line "$line ($((SECONDS - p_start)) s)"
    elif ((SECONDS - said >= ${TILE_SECONDS_BETWEEN_LINES:-10})); then
      say "$line"
      said=$SECONDS
    fi
    nap 0.4
  done
  clear_line
}

# Runs a command with its output in a file. If it takes longer than a second, says so and shows the
# seconds, in the background, so that Ctrl-C reaches the command.
with_clock() { # TEXT LOG COMMAND…
  local text=$1 log=$2 clock status=0
  shift 2
  show_clock "$text" <&0 &
  clock=$!
  trap 'exit 130' INT # since Ninja answers Ctrl-C with a status of its own
  "$@" </dev/null >"$log" 2>&1 || status=$?
  trap - INT
  kill "$clock" 2>/dev/null || true
  wait "$clock" 2>/dev/null || true
  clear_line
  return $status
}
show_clock() { # TEXT
  local start=$SECONDS
  nap 1
  moves || ! kill -0 $$ 2>/dev/null || say "$1 …"
  while moves && kill -0 $$ 2>/dev/null; do
    show_line "$1 … $((SECONDS - start)) s"
    nap 0.1
  done
}

# ---- How long ----
# How slow this machine is, in per cent of the one on which files and tests were timed: there, bash
# counts to 20,000 in 80 ms.
slowness() {
  local file=build/slowness TIMEFORMAT=%R LC_ALL=C i
  if [[ ! -s $file ]]; then
    mkdir -p build
    { time for ((i = 0; i < 20000; i++)); do :; done; } 2>&1 | awk '{ printf "%.0f\n", $1 * 1250 + 1 }' >"$file"
  fi
  cat "$file"
}

# Seconds that the objects of a plan take on all cores: each as long as last time, or as long as one
# of its kind does on the machine of 100 % slowness.
estimate_build() { # FOLDER PLAN
  local log=$1/.ninja_log each=2.3
  [[ ! -f $1/CMakeCache.txt ]] || ! grep -q '^TILE_DEVICE:STRING=gpu' "$1/CMakeCache.txt" || each=9
  [[ -f $log ]] || log=/dev/null
  awk -v each="$each" -v slow="$(slowness)" -v cores="$(cores)" -v object="$object" '
    FILENAME != ARGV[2] { took[$4] = ($2 - $1) / 1000; next }
    $0 ~ object { s += $NF in took ? took[$NF] / cores : each * slow / 100 / cores }
    END { printf "%.0f\n", s + 1 }' "$log" "$2"
}

# ---- Building ----
# Two builds in one folder spoil each other's files, of an exercise's watch in one terminal and of tests
# in another. So the second waits: from configure() on the folder is taken, until let_go().
configure() { # FOLDER CMAKE-OPTION…
  local folder=$1
  shift
  mkdir -p "$folder"
  exec 9>"$folder/lock"
  lock 9 "another build in $folder"
  [[ -f $folder/build.ninja ]] ||
    with_clock "Preparing $folder" "$folder/build.log" cmake -S . -B "$folder" -G Ninja "$@" ||
    fail 1 "could not configure" "$folder/build.log"
}

let_go() { exec 9>&-; }
lock() { # FILE-DESCRIPTOR FOR-WHAT
  flock -n "$1" || with_clock "Waiting for $2" /dev/null flock "$1" || fail 1 "could not wait for $2"
}

# Says what is to be built for these targets. Ninja alone would plan no more than to look for new
# files (the globs of CMake); so that is done first, and the plan is made by a file that does not ask
# for it again.
plan_build() { # FOLDER TARGET…; sets `files` and `estimate`
  local folder=$1 log=$1/build.log
  echo 'include build.ninja' >"$folder/plan.ninja"
  with_clock "Looking for new files" "$log" ninja -C "$folder" build.ninja ||
    fail 1 "could not configure" "$log"
  ninja -C "$folder" -f plan.ninja -n "${@:2}" >"$log" 2>&1 || fail 1 "could not plan the build" "$log"
  files=$(grep -cE "$object" "$log" || true)
  estimate=$(estimate_build "$folder" "$log")
}

# Adds a target `in_order` to the plan: these targets, each as early as the ones before allow. Since
# 1.12 Ninja begins with what the longest chain of commands waits for. By that all objects of all
# targets would come first, and the programs last. So commands that do nothing follow each target,
# more than there are from a source to its program, and those of the next target follow these.
in_order() { # FOLDER TARGET…
  local plan=$1/plan.ninja target i last=''
  shift
  {
    printf 'rule nothing\n  command = :\n'
    for target; do
      for i in 1 2 3 4 5 6 7 8; do
        echo "build after_$target.$i: nothing $target $last"
        last=after_$target.$i
      done
    done
    echo "build in_order: phony $last"
  } >>"$plan"
}

# Starts to build what plan_build() has planned, each set of targets after the one before, a set
# being words of one argument.
start_build() { # FOLDER TEXT TARGETS…
  local folder=$1 log=$1/build.log
  say "Building $2: $files file$( ((files == 1)) || echo s), about $(duration "$estimate") on $(cores) cores …"
  shift 2
  begin_progress Building files "$log" "$object" "$files" "$estimate" build_in_turn "$folder" "$@"
}

build_in_turn() { # FOLDER TARGETS…
  local folder=$1 targets
  shift
  for targets; do
    # shellcheck disable=SC2086  # words, as said
    NINJA_STATUS='@%f ' ninja -C "$folder" -f plan.ninja $targets || return
  done
}

build() { # FOLDER TEXT TARGET…
  local folder=$1 text=$2 log=$1/build.log files estimate start=$SECONDS
  shift 2
  plan_build "$folder" "$@"
  if ((files == 0)); then # at most a link
    with_clock "Linking $text" "$log" ninja -C "$folder" -f plan.ninja "$@" ||
      fail 1 "could not build" "$log"
    let_go
    return
  fi
  start_build "$folder" "$text" "$*"
  # shellcheck disable=SC2119
  show_progress || fail 1 "could not build" "$log"
  let_go
  ((SECONDS - start < 3)) || say "Built in $((SECONDS - start)) s."
}

# As a program; CMake's options are for a folder that is still to be made.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -eo pipefail
  cd "$(dirname "$0")/.."
  configure "$1" "${@:4}"
  build "$1" "$2" "$3"
fi
