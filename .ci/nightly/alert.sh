#!/usr/bin/env bash
# Opens, updates and closes the issues that the history asks for: of tonight/, if that is there, else of
# its branch, which is fetched into nights/. usage: .ci/nightly/alert.sh, with GH_TOKEN and GH_REPO, and
#   DELIVERED    how many machines delivered something; 0 or empty: the night is missing, unless a person
#                started it, who sees that
#   QUARANTINE   a file, or nothing
set -euo pipefail
ledger=tonight
if ! [ -f tonight/ledger.jsonl ]; then
  ledger=nights
  .ci/nightly/history.sh fetch mmrepro-history nights
  touch nights/ledger.jsonl # where there was no night yet, none ran anything
fi
words=("$ledger")
if [ -n "${DELIVERED+set}" ] && [ "${DELIVERED:-0}" = 0 ] &&
  [ "${GITHUB_EVENT_NAME:-schedule}" = schedule ]; then
  words+=(--absent)
fi
if [ -n "${QUARANTINE:-}" ]; then words+=(--quarantine "$QUARANTINE"); fi
if [ -n "${GITHUB_RUN_ID:-}" ]; then
  words+=(--run-url "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID")
fi
.ci/nightly/nightly.py issues "${words[@]}"
