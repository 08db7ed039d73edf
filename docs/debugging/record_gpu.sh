#!/usr/bin/env bash
# docs/debugging/record_gpu.sh FOLDER: runs the broken kernels on the graphics card, alone and under
# each tool of compute-sanitizer, and writes into FOLDER
#   NAME.txt    what docs/debugging.md shows of a kernel: alone, and under the tool meant for it
#   tools.txt   what each tool found in each kernel
#   card.txt    with what it was recorded
#   logs/       all of what was written
# They belong into docs/results/debugging. Exit status 1: something could not be run.
set -euo pipefail
(($# == 1)) || { echo "usage: docs/debugging/record_gpu.sh FOLDER" >&2; exit 2; }
mkdir -p "$1/logs"
out=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH+=:/usr/local/cuda/bin
command -v compute-sanitizer >/dev/null || { echo "there is no compute-sanitizer" >&2; exit 1; }

declare -A tool_for=(
  [missing_barrier]=racecheck [missing_second_barrier]=racecheck [missing_syncwarp]=racecheck
  [past_the_end]=memcheck [shared_overrun]=memcheck [misaligned]=memcheck [host_memory]=memcheck
  [unwritten]=initcheck [divergent_barrier]=synccheck [missing_atomic]=racecheck
  [endless_wait]='' [local_overrun]=memcheck)
names=(missing_barrier missing_second_barrier missing_syncwarp past_the_end shared_overrun misaligned
  host_memory unwritten divergent_barrier missing_atomic local_overrun endless_wait)
tools=(memcheck racecheck initcheck synccheck)
at_once=8

docs/debugging/bug unwritten --gpu >"$out/logs/build.log" 2>&1 || (($? == 1)) ||
  { cat "$out/logs/build.log" >&2; exit 1; }

# Runs one kernel, alone or under a tool, and keeps the command and what it wrote.
run() { # NAME TOOL SECONDS
  local command=(build/gpu/docs/debugging/bugs "$1") status=0
  [[ $2 == alone ]] || command=(compute-sanitizer --tool "$2" --show-backtrace no "${command[@]}")
  {
    echo "\$ ${command[*]}"
    timeout -k 5 "$3" "${command[@]}" 2>&1 || status=$?
    ((status < 124)) || echo "(stopped after $3 seconds)"
  } >"$out/logs/$1.$2.log"
}

for name in "${names[@]}"; do
  seconds=40
  # Nothing ends it; it waits until the others are done, and its runs spin together.
  [[ $name != endless_wait ]] || { wait; seconds=15; }
  for tool in alone "${tools[@]}"; do
    while (($(jobs -rp | wc -l) >= at_once)); do wait -n || true; done
    run "$name" "$tool" "$seconds" &
  done
done
wait

# ---- What to show ----
# The first lines of a log and its summary, without the host's side and this machine's paths.
shortened() { # LOG
  sed -e "s|$PWD/||g" "$1" | grep -vE 'Host Frame|host backtrace' | awk '
    NR <= 14 { print; next }
    /SUMMARY/ { if (skipped) print "…"; print; skipped = 0; next }
    { skipped = 1 }'
}

# What a tool says that it found: a number, or why there is none.
found() { # NAME TOOL
  local log=$out/logs/$1.$2.log number
  number=$(sed -nE 's/.*(ERROR SUMMARY: |RACECHECK SUMMARY: )([0-9]+) .*/\2/p' "$log" | tail -n 1)
  if [[ $number ]]; then
    [[ $number != 0 ]] && echo "$number" || echo -
  elif grep -q '^(stopped after' "$log"; then
    echo 'no end'
  else
    echo '?'
  fi
}

status=0
{
  printf '%-24s' 'errors or hazards'
  printf '%-11s' "${tools[@]}"
  echo
  for name in "${names[@]}"; do
    printf '%-24s' "$name"
    for tool in "${tools[@]}"; do printf '%-11s' "$(found "$name" "$tool")"; done
    echo
  done
} | sed 's/ *$//' >"$out/tools.txt"
for name in "${names[@]}"; do
  {
    shortened "$out/logs/$name.alone.log"
    if [[ ${tool_for[$name]} ]]; then
      echo
      shortened "$out/logs/$name.${tool_for[$name]}.log"
    fi
  } >"$out/$name.txt"
done
if grep -F '?' "$out/tools.txt"; then
  echo "no summary where there is a '?' above; see $out/logs" >&2
  status=1
fi
{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1 |
    sed 's/, /; driver /'
  nvcc --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p'
  compute-sanitizer --version | sed -n 's/.*[Vv]ersion \([0-9.]*\).*/compute-sanitizer \1/p'
} | paste -sd ';' | sed 's/;\([^ ]\)/; \1/g' >"$out/card.txt"
cat "$out/card.txt" "$out/tools.txt"
exit "$status"
