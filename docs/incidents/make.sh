#!/bin/sh
# Makes the reports in this folder again, each by a real run. usage: docs/incidents/make.sh
set -eu
cd "$(dirname "$0")/../.."
make() { # NAME SCENARIO RELEASE
    rm -rf "incidents/$1"
    uv run mmrepro run "$2" --release "$3" --out "incidents/$1"
    mkdir -p "docs/incidents/$1"
    cp "incidents/$1/report.md" "docs/incidents/$1/"
}
make ghost-key-eviction-0.23.0 ghost-key-eviction 0.23.0
make ghost-key-eviction-0.24.0 ghost-key-eviction 0.24.0
make mm-cache-desync-0.32.0 mm-cache-desync 0.32.0
make pad-value-collision-0.5.6 pad-value-collision 0.5.6
make shape-alias-0.5.23 shape-alias 0.5.23
cp incidents/pad-value-collision-0.5.6/report.html docs/incidents/pad-value-collision-0.5.6/
cp incidents/ghost-key-eviction-0.23.0/report.html docs/incidents/ghost-key-eviction-0.23.0/
