#!/usr/bin/env bash
# `make demo`: runs examples/train_gpt.py under memlab, with the dashboard if it is in a terminal, then prints the report.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
trace=demo.jsonl
launch=()
arguments=(--steps 300 --pause 0.05)
if nvidia-smi --query-gpu=name --format=csv,noheader >/dev/null 2>&1; then
    echo "memlab demo: a small GPT on $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)"
else
    echo "memlab demo: no NVIDIA GPU here, so the card is a simulated one (simgpu):"
    echo "PyTorch and its memory are real, kernels do nothing, losses mean nothing."
    launch=(simgpu/simgpu --memory 8GiB)
fi

live=--no-live
if [ -t 0 ] && [ -t 1 ]; then
    live=--live
else
    arguments=(--steps 60)
fi

status=0
"${launch[@]}" target/release/memlab run --force -o "$trace" "$live" -- "$python" examples/train_gpt.py "${arguments[@]}" || status=$?
target/release/memlab report "$trace"
echo
echo "The trace is $trace: look around in it with 'target/release/memlab view $trace'."
exit "$status"
