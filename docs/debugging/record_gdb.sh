#!/usr/bin/env bash
# docs/debugging/record_gdb.sh: runs session.gdb and writes what gdb shows to
# docs/results/debugging/gdb.txt. It needs gdb; on Debian, apt-get install gdb.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
docs/debugging/bug missing_second_barrier --debug >/dev/null || (($? == 1)) # builds it
session=$(CPU_DEVICE_WORKERS=1 gdb -nx -batch -ex 'set trace-commands on' \
  -x docs/debugging/session.gdb --args build/cpu-debug/docs/debugging/bugs missing_second_barrier 2>&1)
# The commands with their prompt, and nothing of this machine.
sed -e "s|$PWD/||g" -e 's/^+/(gdb) /' -e 's/ (process [0-9]*)//' -e '/libthread_db/d' -e '/^$/d' \
  <<<"$session" \
  >docs/results/debugging/gdb.txt
