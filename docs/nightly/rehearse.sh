#!/usr/bin/env bash
# The nightly's commands, one after another, on one machine without a GPU: what is committed here is
# cloned, its own bare repository stands for the remote, and issues are only named.
# usage: [MACHINES=2] docs/nightly/rehearse.sh FOLDER [NIGHT.toml], where FOLDER is new
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(realpath -- "${1:?a new folder}")
export NIGHT_FILE=${2:-docs/nightly/subset.toml} MACHINES=${MACHINES:-2} MAX_TIME=${MAX_TIME:-18m}
mkdir "$scratch"
git clone --quiet --bare "$top" "$scratch/origin.git"
: > "$scratch/times"

job() { # NAME: begins with a clone, and what the jobs before it handed on
  git clone --quiet --depth 1 "file://$scratch/origin.git" "$scratch/$1"
  cd "$scratch/$1"
  if [ -d "$scratch/artifacts" ]; then cp -r "$scratch/artifacts/." .; fi
}

step() { # WORDS…
  local began=$SECONDS
  echo "+ $*"
  "$@"
  printf '%5d s  %s\n' $((SECONDS - began)) "$*" >> "$scratch/times"
}

job plan
step .ci/nightly/history.sh fetch mmrepro-history nights
step .ci/nightly/plan.sh
mkdir "$scratch/artifacts"
cp -r plan "$scratch/artifacts/"

for shard in $(seq "$MACHINES"); do
  job "machine-$shard"
  step .ci/nightly/machine.sh check "$shard"
  step .ci/nightly/machine.sh run "$shard"
  step .ci/nightly/machine.sh gather "$shard"
  cp -r delivered "$scratch/artifacts/"
done

job report
step .ci/nightly/history.sh fetch mmrepro-history nights
step .ci/nightly/report.sh merge
step .ci/nightly/report.sh tell
step .ci/nightly/history.sh push mmrepro-history nights "Night $(< plan/night)"
echo '[]' > issues.json
step .ci/nightly/nightly.py issues nights --open issues.json
step .ci/nightly/nightly.py overdue nights
printf '%5d s  all of it\n' "$SECONDS" >> "$scratch/times"
cat summary.md "$scratch/times"
step .ci/nightly/report.sh verdict
