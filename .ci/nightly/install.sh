#!/usr/bin/env bash
# Installs mmrepro of this checkout, with the dependencies of constraints.txt, where a job has no image
# of its own. usage: .ci/nightly/install.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1

python3 -m venv "$folder/uv"
"$folder/uv/bin/pip" install --quiet --require-hashes \
  --requirement <(awk '/^uv==/ { on = 1; print; next } on && /^[^ ]/ { exit } on' constraints.txt)
python3 -m venv --without-pip "$folder/mmrepro"
"$folder/uv/bin/uv" pip install --quiet --python "$folder/mmrepro/bin/python" \
  --constraint constraints.txt '.[run]'
if [ -n "${GITHUB_PATH:-}" ]; then echo "$folder/mmrepro/bin" >> "$GITHUB_PATH"; fi
"$folder/mmrepro/bin/mmrepro" --version
