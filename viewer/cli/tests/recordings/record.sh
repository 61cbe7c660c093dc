#!/bin/sh
# Records the trainings for `viewer/cli/tests/advise.rs` on the simulated card: run `make all` first. Paths are made the same
# on all machines. Then recreate the snapshots and review them: INSTA_UPDATE=always cargo test -p memlab --test advise
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$here/../../..
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

record() { # name, kind, steps, options of `memlab run`
    name=$1 kind=$2 steps=$3
    shift 3
    (cd "$root" && simgpu/simgpu target/release/memlab run "$@" -o "$scratch/$name.jsonl" -- \
        .venv/bin/python tests/know/programs/advised.py "$kind" --steps "$steps")
    root_path=$(cd "$root" && pwd)
    sed "s#$root_path/.venv#/home/ada/venv#g; s#$root_path#/home/ada/memlab#g; s#$HOME#/home/ada#g" "$scratch/$name.jsonl" |
        sed 's#"host":"[^"]*"#"host":"gpu1"#'  | zstd -q -19 -f -o "$here/$name.jsonl.zst"
}

for kind in gpt gpt-eager resnet unet llama-lora words gradients optimizer; do
    record $kind $kind 2 --time --timeline 0
done
record lengths lengths 4 --time --timeline 0
record leak leak 4 --time --timeline 0
record untimed gpt 2
record streams streams 2 --time --timeline 0
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True CUBLAS_WORKSPACE_CONFIG=:16:8
record inference inference 2 --time --timeline 0
