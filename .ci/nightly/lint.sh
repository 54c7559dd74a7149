#!/usr/bin/env bash
# Holds workflows, examples and scripts to their schemas, to zizmor and to shellcheck. Nothing is fetched.
# usage: .ci/nightly/lint.sh [CHECKOUT]
set -euo pipefail
tools=$(cd "$(dirname "$0")/../.." && pwd)
cd "${1:-$tools}"
scripts=$(mktemp -d)
trap 'rm -rf "$scripts"' EXIT

failed=0
zizmor --quiet --offline --pedantic --strict-collection .github/workflows || failed=1
actions=(action.yml .ci/issue/*/action.yml)
copied=(docs/ci/repro.yml docs/ci/repro-main.yml)
zizmor --quiet --offline --strict-collection "${actions[@]}" "${copied[@]}" || failed=1
check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml \
  "${copied[@]}" || failed=1
check-jsonschema --builtin-schema vendor.github-actions "${actions[@]}" || failed=1
check-jsonschema --builtin-schema custom.github-workflows-require-timeout \
  .github/workflows/*.yml || failed=1
check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml || failed=1
check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml || failed=1
check-jsonschema --builtin-schema vendor.gitlab-ci docs/ci/gitlab-ci.yml || failed=1
check-jsonschema --builtin-schema vendor.buildkite docs/ci/buildkite.yml || failed=1

# Every step's script, as a file of its own.
python3 "$tools/.ci/nightly/scripts.py" "$scripts" \
  .github/workflows/*.yml "${actions[@]}" "${copied[@]}" docs/ci/gitlab-ci.yml docs/ci/buildkite.yml
mapfile -t files < <(git ls-files -- .ci '*.sh' | xargs grep -lE '^#!.*\b(ba)?sh$')
shellcheck "${files[@]}" "$scripts"/* || failed=1
exit $failed
