#!/usr/bin/env bash
# Plans a night, on a machine that costs nothing: refuses what would be refused on all of them, and
# writes down what each of them is to run. nights/ has the history; plan/ is what this writes.
# usage: .ci/nightly/plan.sh, with what is wanted in these variables, each of which may be empty:
#   NIGHT_FILE   the night (docs/nightly/gpu.toml)     MACHINES    how many there are (1)
#   SCENARIO     only these of it, with spaces between  MAX_TIME   of each machine (7h)
#   RELEASES     instead of the file's                  QUARANTINE a file, instead of the file's
# and IMAGE, where the machines run in one: it has to name its digest.
set -euo pipefail
machines=${MACHINES:-1}
max_time=${MAX_TIME:-7h}
run=${GITHUB_RUN_NUMBER:-${CI_PIPELINE_IID:-${BUILDKITE_BUILD_NUMBER:-}}}
attempt=${GITHUB_RUN_ATTEMPT:-1}

if ! [[ $machines =~ ^[1-9][0-9]?$ ]]; then
  echo "MACHINES is $machines; it has to be a number from 1 to 99." >&2
  exit 2
fi
if [ -n "${IMAGE+set}" ] && ! [[ $IMAGE =~ @sha256:[0-9a-f]{64}$ ]]; then
  echo "The variable MMREPRO_IMAGE is '$IMAGE'; it has to end with @sha256: and a digest." >&2
  exit 2
fi
if ! python3 -c 'import mmrepro' 2> /dev/null; then
  echo "python3 has no mmrepro here: . .venv/bin/activate, or .ci/nightly/install.sh FOLDER." >&2
  exit 2
fi
night=$(date -u +%F)${run:+-$run}
if [ "$attempt" -gt 1 ]; then night+=.$attempt; fi
arguments=("${NIGHT_FILE:-docs/nightly/gpu.toml}" --max-time "$max_time")
read -r -a scenarios <<< "${SCENARIO:-}"
for scenario in "${scenarios[@]}"; do arguments+=(--scenario "$scenario"); done
if [ -n "${RELEASES:-}" ]; then arguments+=(--releases "$RELEASES"); fi
if [ -n "${QUARANTINE:-}" ]; then arguments+=(--quarantine "$QUARANTINE"); fi

mkdir -p plan nights
COLUMNS=140 mmrepro matrix run "${arguments[@]}" --night "$night" --out nights --dry-run \
  | tee plan/dry-run.txt
# Once that has taken it. A machine that stops in time still has its environment to build, and its
# reports to write.
minutes=$(python3 -c 'import math, sys; from mmrepro.base.units import parse_duration
print(math.ceil(parse_duration(sys.argv[1]) / 60) + 60)' "$max_time")
printf '%s\n' "${arguments[@]}" > plan/arguments
echo "$night" > plan/night
echo "$machines" > plan/machines
echo "${QUARANTINE:-}" > plan/quarantine
# What was known before tonight: whether a result is a surprise is asked of it, and how long a run takes.
if [ -f nights/ledger.jsonl ]; then cp nights/ledger.jsonl plan/; fi

{
  echo "night=$night"
  echo "minutes=$minutes"
  echo "shards=[$(seq --separator=, "$machines")]"
} | tee -a "${GITHUB_OUTPUT:-/dev/null}"
