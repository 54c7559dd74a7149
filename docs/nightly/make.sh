#!/bin/sh
# Makes the night in this folder again, by real runs. usage: docs/nightly/make.sh [NAME]
# NAME: the night's; a second one compares itself with the first. Default: today's date.
set -eu
cd "$(dirname "$0")/../.."
night="${1:-$(date -u +%F)}"
code=0
uv run mmrepro matrix run docs/nightly/night.toml --night "$night" || code=$?
# 1 is a surprise, 3 inconclusive: that is what a night is for. All else is no night.
case "$code" in 0 | 1 | 3) ;; *) exit "$code" ;; esac
cp nights/ledger.jsonl docs/nightly/
# From the copy: its incidents are not here, so that no square links to one.
uv run mmrepro matrix report docs/nightly --night "$night" --write docs/nightly
rm docs/nightly/junit.xml
