#!/usr/bin/env bash
# Parity and speed on a CUDA device, in less than 8 minutes, one report on standard output:
#
#     benchmarks/gpu_check.sh                        # random 1.7B weights, bfloat16
#     SIZE=0.6b benchmarks/gpu_check.sh
#     CHECKPOINT=FOLDER benchmarks/gpu_check.sh      # a published checkpoint folder, beside faster-qwen3-tts if installed
#
# PYTHON: the interpreter (python). OUT: where the model and the numbers go (a temporary folder, removed at the end).
# Bar on an H200, 1.7B bfloat16, batch 1: at most 8 ms per frame (10 x real time), warm first audio at most 40 ms;
# 16 utterances in turns at least 100 x real time in total.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python} SIZE=${SIZE:-1.7b} CHECKPOINT=${CHECKPOINT:-}
if [ -z "${OUT:-}" ]; then
    OUT=$(mktemp -d)
    trap 'rm -rf "$OUT"' EXIT
fi
mkdir -p "$OUT"
status=0

step() {  # NAME SECONDS COMMAND...: run it, time it, go on after a failure
    local name=$1 limit=$2 started=$SECONDS
    shift 2
    echo "== $name"
    timeout "$limit" "$@" || { echo "== $name FAILED ($?)"; status=1; }
    echo "== $name took $((SECONDS - started)) s"
}

"$PYTHON" -c 'import torch; assert torch.cuda.is_available(), "no CUDA device here"
print(torch.cuda.get_device_name(), "torch", torch.__version__, "CUDA", torch.version.cuda)' || exit 1

step "parity" 120 "$PYTHON" -m pytest tests/test_graphs_cuda.py tests/test_parity.py -k cuda -n 0 -q -p no:cacheprovider
if [ -n "$CHECKPOINT" ]; then
    step "convert" 120 "$PYTHON" -m tts_cli convert "$CHECKPOINT" -o "$OUT" --type bf16
else
    step "random model" 120 "$PYTHON" benchmarks/random_model.py "$OUT" --size "$SIZE" --type bf16
fi
talker=$(ls "$OUT"/*.gguf | grep -v mmproj | head -1)
mmproj=$(ls "$OUT"/mmproj*.gguf | head -1)
model=(-m "$talker" -mm "$mmproj" --device cuda --dtype bfloat16)
step "graphed" 75 "$PYTHON" -m tts_cli bench "${model[@]}" --frames 240
step "eager" 75 "$PYTHON" -m tts_cli bench "${model[@]}" --frames 40 --no-cold --no-graphs
step "side by side" 90 "$PYTHON" benchmarks/gpu_peer.py "$talker" "$mmproj" ${CHECKPOINT:+--checkpoint "$CHECKPOINT"}
exit $status
