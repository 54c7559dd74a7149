#!/usr/bin/env bash
# Tests ISSUE.md in the container; all that comes out of it is FOLDER/product.json, of a bounded size.
# usage: IMAGE=… CACHE=… .ci/issue/box.sh ISSUE.md FOLDER [OPTION…]   (OPTION: of `mmrepro repro`)
# SOURCE=FOLDER: a clone of the engine, as /source; PATCH=FILE: as /in/patch.diff; MINUTES=N: 50 unless given.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
issue=$1
folder=$2
shift 2
most=262144
name=mmrepro-box
[[ $IMAGE =~ ^[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}$ ]] || {
  echo "::error::The input image needs its digest: REGISTRY/NAME@sha256:…"
  exit 2
}

# bubblewrap needs these three inside the container, where it runs without any right of root: calls
# that make namespaces and mounts, an unmasked /proc to mount another one, and Ubuntu's leave.
permitted=(--security-opt "seccomp=$here/seccomp.json" --security-opt systempaths=unconfined)
if [[ -r /sys/module/apparmor/parameters/enabled && $(< /sys/module/apparmor/parameters/enabled) == Y ]]; then
  sudo apparmor_parser --replace "$here/apparmor"
  permitted+=(--security-opt apparmor=mmrepro-box)
fi

minutes=${MINUTES:-50}
environments="type=bind,source=$CACHE,target=/cache,readonly"
given=()
if [[ -n ${SOURCE:-} ]]; then
  # A commit's environment is made inside, beside the release's, and linked to it: links ask for the
  # owner. Nobody reads this folder afterwards: it was verified before, and no step keeps it.
  sudo chown -R 10001:10001 "$CACHE" "$SOURCE"
  environments=${environments%,readonly}
  given+=(--mount "type=bind,source=$SOURCE,target=/source,readonly")
fi
if [[ -n ${PATCH:-} ]]; then
  given+=(--mount "type=bind,source=$PATCH,target=/in/patch.diff,readonly")
fi

box() {
  timeout --kill-after 30s "${minutes}m" docker run --rm --name "$name" --log-driver none \
    --network none --ipc private --user 10001:10001 \
    --cap-drop ALL --security-opt no-new-privileges "${permitted[@]}" \
    --read-only --tmpfs /tmp:rw,exec,nosuid,nodev,size=4g,mode=1777 \
    --tmpfs /out:rw,noexec,nosuid,nodev,size=2g,mode=1777 --shm-size 2g \
    --pids-limit 4096 --memory 12g --memory-swap 12g --ulimit core=0 \
    --mount "type=bind,source=$issue,target=/in/issue.md,readonly" \
    --mount "type=bind,source=$here,target=/action,readonly" \
    --mount "$environments" "${given[@]}" \
    --tmpfs /cache/mmrepro/models:rw,noexec,nosuid,nodev,size=4g,mode=1777 \
    --env HOME=/tmp --env MMREPRO_START_MODE=cold \
    --entrypoint python3 "$IMAGE" /action/box.py $((minutes * 60 - 120)) /in/issue.md /out "$@"
}

trap 'docker rm --force "$name" > "$folder/removed" 2>&1 || true' EXIT
code=0
# One byte more than is allowed shows that there was more. What is printed besides goes on being read.
{ box "$@" 2>&3 | head -c $((most + 1)) > "$folder/product.json"; } 3>&1 \
  | { head -c 65536 > "$folder/box.log"; cat > /dev/null; } || code=$?

# The log is a stranger's too: no commands for the runner, no escapes for a terminal.
"$here/../nightly/mute.sh" env LC_ALL=C tr -cd '\n\040-\176' < "$folder/box.log"
if (( $(stat --format %s "$folder/product.json") > most )); then
  rm "$folder/product.json"
  echo "::error::The box wrote more than $most bytes."
  exit 1
fi
if (( code != 0 )); then
  rm "$folder/product.json"
  echo "::error::The box ended with exit code $code, without a product."
  exit 1
fi
