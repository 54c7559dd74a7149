#!/usr/bin/env bash
# One machine's part of a night, in three steps. What plan/ says is run, what came of it is put into
# delivered/shard-N. usage: .ci/nightly/machine.sh check|run|gather N
#   NEED   a part that mmrepro check has to find here, e.g. gpu
set -euo pipefail
step=$1
shard=$2
night=$(< plan/night)
machines=$(< plan/machines)
quarantine=$(< plan/quarantine)
out=delivered/shard-$shard
mkdir -p "$out" nights

case $step in
  check)
    code=0
    mmrepro check ${NEED:+--need "$NEED"} > "$out/check.txt" || code=$?
    cat "$out/check.txt"
    if [ "$code" -ne 0 ]; then
      why="mmrepro check ended with $code. $(tail -n 1 "$out/check.txt")"
      echo "$why" > "$out/failed.txt"
      .ci/nightly/nightly.py note error Infrastructure "machine $shard of $machines is not fit for a night: $why"
      exit "$code"
    fi
    ;;
  run)
    mapfile -t arguments < plan/arguments
    if [ -f plan/ledger.jsonl ]; then cp plan/ledger.jsonl nights/; fi
    code=0
    .ci/nightly/mute.sh mmrepro matrix run "${arguments[@]}" --night "$night" --shard "$shard/$machines" \
      --machine "ci-$shard" --out nights || code=$?
    echo "$code" > "$out/exit"
    case $code in
      0) ;;
      1) .ci/nightly/nightly.py note warning Surprise "machine $shard of $machines found what was not expected" ;;
      3) .ci/nightly/nightly.py note warning Unknown "machine $shard of $machines: of some cells nothing is known" ;;
      *)
        .ci/nightly/nightly.py note error Infrastructure "machine $shard of $machines ended with $code"
        exit "$code"
        ;;
    esac
    ;;
  gather)
    if [ -f "$out/failed.txt" ]; then exit 0; fi
    if ! mmrepro matrix report nights --night "$night" --write "$out" \
      ${quarantine:+--quarantine "$quarantine"}; then
      echo "it began no night" > "$out/failed.txt"
      exit 0
    fi
    cp nights/ledger.jsonl "$out/" # first: without it the machine counts as missing
    .ci/nightly/nightly.py surprises nights --night "$night" --out "$out/surprises" \
      ${quarantine:+--quarantine "$quarantine"}
    ;;
  *)
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
    ;;
esac
