#!/usr/bin/env bash
# docs/measure/record_gpu.sh FOLDER COMMIT: runs the programs of this folder on the graphics card,
# and writes into FOLDER
#   memory.json, occupancy.json, fusion.json   what they measured
#   profile.txt                                what ncu says of three launches of occupancy.cu
#   sass.txt                                   the machine code of its two kernels' loops
#   product.txt                                what docs/hopper_program/product.cu says
# They belong into docs/results/measure. Exit status 1: something could not be run.
set -euo pipefail
(($# == 2)) || { echo "usage: docs/measure/record_gpu.sh FOLDER COMMIT" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH+=:/usr/local/cuda/bin
folder=build/measure
mkdir -p "$folder"
compile=(nvcc -std=c++20 -O3 -lineinfo -arch=native -I .)

for name in memory occupancy fusion; do
  "${compile[@]}" -o "$folder/$name" "docs/measure/$name.cu" &
done
wait
for name in memory occupancy fusion; do
  "$folder/$name" "$out/$name.json" "$2"
done

status=0
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
if [[ $capability == 9.0 ]]; then
  {
    echo '$ nvcc -std=c++20 -arch=sm_90a -I . docs/hopper_program/product.cu && ./a.out'
    nvcc -std=c++20 -arch=sm_90a -I . -o "$folder/product" docs/hopper_program/product.cu
    "$folder/product"
  } >"$out/product.txt" 2>&1 || status=1
fi

# ---- ncu ----
stalls=(long_scoreboard lg_throttle wait not_selected)
metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
metrics+=,sm__warps_active.avg.pct_of_peak_sustained_active,smsp__issue_active.avg.pct_of_peak_sustained_active
for stall in "${stalls[@]}"; do
  metrics+=,smsp__average_warps_issue_stalled_${stall}_per_issue_active.ratio
done
# The kernel, and which of its launches: the second is with 8 warps, the 17th with 64.
profile() { # TITLE KERNEL SKIP
  local options=(--clock-control none -k "regex:$2" --launch-skip "$3" --launch-count 1)
  echo "\$ ncu --metrics \$M ${options[*]} ./occupancy    # $1"
  ncu --metrics "$metrics" "${options[@]}" "$folder/occupancy" |
    sed -nE 's/^ +((gpu|dram|sm|smsp)__[^ ]+) +([^ ]+ +)?([0-9.,]+)$/    \1 \3\4/p'
}
{
  echo "\$ M=$metrics"
  profile 'one load, 8 warps' copy_one 1
  profile 'one load, 64 warps' copy_one 16
  profile 'four loads, 8 warps' copy_four 1
} >"$out/profile.txt" 2>&1 || { cat "$out/profile.txt"; status=1; }
# As docs/profiling.md shows it; what it prints is too long for a page.
(cd "$folder" && ncu --set full -k regex:copy_one --launch-skip 1 --launch-count 1 ./occupancy) \
  >"$folder/full.txt" || { cat "$folder/full.txt"; status=1; }

# ---- SASS ----
# Addresses and instructions of a kernel's loop, without their encoding: from the target of the
# first jump backwards to that jump.
loop_of() { # KERNEL
  cuobjdump -sass "$folder/occupancy" | sed -n "/Function : .*$1/,/Function : /p" |
    sed -nE 's|^ +/\*([0-9a-f]{4,})\*/ +([^;]*;).*|\1 \2|p' |
    awk '{ at[$1] = NR; line[NR] = $0 }
         / BRA 0x/ && !begin { sub(/.* BRA 0x/, ""); sub(/[^0-9a-f].*/, "")
           begin = at[substr("000" $0, length)]  # an address has four digits
           if (begin) for (i = begin; i <= NR; ++i) print line[i] }'
}
{
  for kernel in copy_one copy_four; do
    echo "\$ cuobjdump -sass occupancy    # $kernel"
    loop_of "$kernel"
  done
} >"$out/sass.txt" 2>&1 || { cat "$out/sass.txt"; status=1; }
exit "$status"
