#!/usr/bin/env bash
# Runs a command in whose output GitHub's runner looks for no commands of its own: an engine's words
# may begin with :: or hold ##[. Elsewhere it just runs it. usage: .ci/nightly/mute.sh COMMAND…
set -euo pipefail
if [[ ${GITHUB_ACTIONS:-} != true ]]; then exec "$@"; fi
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
# Also where the command's last line has no end.
trap 'printf "\n::%s::\n" "$token"' EXIT
echo "::stop-commands::$token"
# One stream: of two, the runner could read the end of the other one too late.
"$@" 2>&1
