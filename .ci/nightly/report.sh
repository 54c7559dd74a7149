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
    for line in "${missing[@]}"; do printf '> **%s**\n\n' "$line"; done | tee -a "$summary"
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
    mmrepro matrix annotate nights --night "$night" --format github \
      ${quarantine:+--quarantine "$quarantine"}
    ;;
  verdict)
    codes=$(cat delivered/shard-*/exit | sort -u | tr '\n' ' ')
    echo "The machines ended with ${codes:-nothing}; ${#missing[@]} delivered nothing."
    case " $codes" in *' 1 '*) exit 1 ;; esac
    if [ ${#missing[@]} -gt 0 ]; then exit 4; fi
    ;;
  *)
    sed -n '2,5s/^# //p' "$0" >&2
    exit 2
    ;;
esac
