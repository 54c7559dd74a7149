#!/usr/bin/env bash
# One night of what the machines delivered, told to people. usage: .ci/nightly/report.sh merge|tell|verdict
#   merge     delivered/shard-*  into nights/, and says which machine delivered nothing
#   tell      the night as Markdown, and its annotations
#   verdict   exits as the night: 1 a surprise, 4 a machine is missing
set -euo pipefail
step=$1
summary=${GITHUB_STEP_SUMMARY:-summary.md}
if ! [ -f plan/night ]; then
  echo "**There is no night: it was not planned.**" | tee -a "$summary" >&2
  exit 4
fi
night=$(< plan/night)
machines=$(< plan/machines)
quarantine=$(< plan/quarantine)

there=()
missing=()
for shard in $(seq "$machines"); do
  folder=delivered/shard-$shard
  if [ -f "$folder/ledger.jsonl" ]; then
    there+=("$folder")
  elif [ -f "$folder/failed.txt" ]; then
    missing+=("Machine $shard of $machines delivered nothing: $(< "$folder/failed.txt")")
  else
    missing+=("Machine $shard of $machines delivered nothing, not even why.")
  fi
done

case $step in
  merge)
    echo "delivered=${#there[@]}" >> "${GITHUB_OUTPUT:-/dev/null}"
    for line in "${missing[@]}"; do
      printf '> **%s**\n\n' "$line" >> "$summary"
      echo "$line"
    done
    # One annotation here, and nine with the night: GitHub shows ten.
    if [ ${#missing[@]} -gt 0 ]; then .ci/nightly/nightly.py note error "A machine is missing" "${missing[*]}"; fi
    if [ ${#there[@]} -eq 0 ]; then
      echo "Nothing was delivered, so that there is no night $night." >&2
      exit 4
    fi
    mmrepro matrix merge "${there[@]}" --out nights --no-incidents \
      ${quarantine:+--quarantine "$quarantine"}
    ;;
  tell)
    mmrepro matrix report nights --night "$night" --format md \
      ${quarantine:+--quarantine "$quarantine"} >> "$summary"
    .ci/nightly/nightly.py annotate nights --night "$night" --max 9 \
      ${quarantine:+--quarantine "$quarantine"}
    ;;
  verdict)
    surprises=0
    failed=${#missing[@]}
    for folder in "${there[@]}"; do
      case $(cat "$folder/exit" 2> /dev/null) in # of one that was killed there is none
        0 | 3) ;;
        1) surprises=$((surprises + 1)) ;;
        *) failed=$((failed + 1)) ;;
      esac
    done
    echo "Of $machines machines $surprises had a surprise, $failed did not get to their end."
    if [ "$surprises" -gt 0 ]; then exit 1; fi
    if [ "$failed" -gt 0 ]; then exit 4; fi
    ;;
  *)
    sed -n '2,5s/^# //p' "$0" >&2
    exit 2
    ;;
esac
