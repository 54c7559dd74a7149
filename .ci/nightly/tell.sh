#!/usr/bin/env bash
# Says something as an annotation where GitHub reads it, and in words elsewhere.
# usage: .ci/nightly/tell.sh error|warning TITLE TEXT
set -euo pipefail
if [ "${GITHUB_ACTIONS:-}" = true ]; then
  text=${3//%/%25}
  echo "::$1 title=$2::${text//$'\n'/%0A}"
else
  echo "$2: $3" >&2
fi
