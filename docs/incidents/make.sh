#!/bin/sh
# Makes the reports in this folder again, from recorded runs. usage: docs/incidents/make.sh
set -eu
cd "$(dirname "$0")/../.."
make() { # NAME RECORDING FORMAT
    mkdir -p "docs/incidents/$1"
    uv run mmrepro report "tests/evidence/$2.zip" --format "$3" > "docs/incidents/$1/report.$3"
}
make ghost-key-eviction-0.23.0 ghost-key-eviction-0.23.0 md
make ghost-key-eviction-0.23.0 ghost-key-eviction-0.23.0 html
make ghost-key-eviction-0.24.0 ghost-key-eviction-0.24.0 md
make mm-cache-desync-0.32.0 mm-cache-desync-0.32.0 md
make pad-value-collision-0.5.6 pad-value-collision-0.5.6 md
make pad-value-collision-0.5.6 pad-value-collision-0.5.6 html
make shape-alias-0.5.23 shape-alias-kv-cache-0.5.23 md
