#!/usr/bin/env bash
# What nvcc makes of a step's kernels: registers, spills, shared memory, the share of a multiprocessor's
# warps that they can fill, instructions. ./tour resources runs it:
#   cmake/resources.sh NVCC ARCHITECTURE FILE.cu LAUNCHES
# LAUNCHES is what the CPU device says with CPU_DEVICE_LAUNCHES=on: threads and dynamic shared memory
# of each launch, the kernel's name. Without cuobjdump there are no counts of instructions.
set -eo pipefail
nvcc=$1 architecture=$2 file=$3 launches=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
includes=()
for directory in "$(dirname "$file")" "$(dirname "$(dirname "$file")")" "${file%%/*}" .; do includes+=(-I "$directory"); done
"$nvcc" -std=c++20 -O3 -lineinfo -cubin -arch="sm_$architecture" -Xptxas=-v "${includes[@]}" "$file" \
  -o "$folder/step.cubin" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }

cuobjdump=$(dirname "$(readlink -f "$nvcc")")/cuobjdump
[[ -x $cuobjdump ]] || cuobjdump=$(command -v cuobjdump || true)
[[ ! $cuobjdump ]] || "$cuobjdump" -sass "$folder/step.cubin" >"$folder/sass"
touch "$folder/sass"

# Of a multiprocessor: KiB of shared memory, threads, blocks (CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability").
case ${architecture%a} in
  75) limits='64 1024 16' ;;
  80) limits='164 2048 32' ;;
  86) limits='100 1536 16' ;;
  89) limits='100 1536 24' ;;
  90 | 100) limits='228 2048 32' ;;
  120) limits='100 1536 24' ;;
  *) limits='' ;;
esac
# shellcheck disable=SC2086  # three words
awk -v limits="$limits" -v capability="${architecture%a}" '
  function up(value, unit) { return int((value + unit - 1) / unit) * unit }
  function least(a, b) { return a < b ? a : b }
  function base(name) { sub(/^void /, "", name); sub(/[<(].*/, "", name); sub(/.*::/, "", name); return name }
  FILENAME == ARGV[1] {  # threads bytes name
    name = $0; sub(/^[0-9]+ [0-9]+ /, "", name)
    threads[base(name)] = $1; dynamic[base(name)] = $2
    next
  }
  FILENAME == ARGV[2] {
    if (/Compiling entry function/) { match($0, /\047[^\047]*\047/); entry = substr($0, RSTART + 1, RLENGTH - 2); order[++count] = entry }
    if (/Function properties for/) current = $NF
    if (/bytes spill stores/ && current == entry) { stack[entry] = $1; stores[entry] = $5; loads[entry] = $9 }
    if (/Used [0-9]+ registers/) {
      match($0, /Used [0-9]+/); registers[entry] = substr($0, RSTART + 5, RLENGTH - 5)
      if (match($0, /[0-9]+ bytes smem/)) shared[entry] = substr($0, RSTART) + 0
    }
    next
  }
  /Function : / { entry = $NF }
  / +\/\*[0-9a-f]+\*\/ +[A-Z@!]/ {
    line = $0; sub(/^ +\/\*[0-9a-f]+\*\/ +/, "", line); sub(/^@!?U?P[0-9T]+ +/, "", line)
    split(line, words, /[ ;.]/)
    if (words[1] != "NOP" && words[1] != "") { ++all[entry]; ++of[entry, words[1]]; seen[words[1]] = 1 }
  }
  END {
    split(limits, limit, " ")
    for (i = 1; i <= count; ++i) {
      entry = order[i]
      command = "c++filt " entry; command | getline full; close(command)
      gsub(/\(anonymous namespace\)::/, "", full); gsub(/\([A-Za-z_:]+\)/, "", full)  # casts
      sub(/^void /, "", full); sub(/\(.*/, "", full); gsub(/([a-z0-9_]+::)+/, "", full)
      name = base(full)
      printf "%s\n  %d registers, %d bytes of static shared memory; spills: %d bytes stored, %d loaded\n", full, registers[entry], shared[entry], stores[entry], loads[entry]
      if (!(name in threads)) { printf "  not launched by this step on its small problem: no occupancy\n" }
      else if (limits != "") {
        t = threads[name]; warps = up(t, 32) / 32
        by_threads = int(limit[2] / up(t, 32)); by_registers = int(int(65536 / up(registers[entry] * 32, 256) / 4) * 4 / warps)
        bytes = shared[entry] + dynamic[name] + (capability >= 80 ? 1024 : 0)
        by_shared = bytes ? int(limit[1] * 1024 / up(bytes, capability >= 80 ? 128 : 256)) : limit[3]
        blocks = least(least(by_threads, by_registers), least(by_shared, limit[3]))
        why = ""
        if (blocks == by_registers) why = why ", registers"
        if (blocks == by_shared) why = why ", shared memory"
        if (blocks == by_threads) why = why ", threads"
        if (blocks == limit[3]) why = why ", blocks"
        printf "  blocks of %d threads, %d bytes of dynamic shared memory: %d on a multiprocessor, occupancy %.0f %%, limited by%s\n", t, dynamic[name], blocks, 100 * blocks * warps * 32 / limit[2], substr(why, 2)
      }
      if (all[entry]) {
        printf "  %d instructions:", all[entry]
        split("LDG LDGSTS STG RED ATOMG LDS LDSM STS STL LDL SHFL BAR FFMA FADD FMUL HFMA2 HMMA HGMMA UTMALDG UTMASTG MUFU", shown, " ")
        for (s = 1; s in shown; ++s) if (of[entry, shown[s]]) printf " %d %s", of[entry, shown[s]], shown[s]
        printf "\n"
      }
    }
    if (!count) { print "nvcc made no kernel of this file" > "/dev/stderr"; exit 1 }
  }' "$launches" "$folder/log" "$folder/sass"
[[ $cuobjdump ]] || echo "There is no cuobjdump, which comes with CUDA's toolkit: instructions are not counted."
