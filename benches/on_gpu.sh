#!/bin/sh
# Runs every check that needs a real GPU, in less than nine minutes, on a machine with an NVIDIA GPU and PyTorch.
# Compiles only C programs. Requires the output of `cargo build --release --workspace --lib --bins --examples` from
# another machine:
#
#     target/release/{memlab,libmemlab.so,examples/libcupti_{truth,floor}.so}     python/memlab (with _native.abi3.so)     tests/     benches/
#     target/release/libsimgpu_*.so     for `plan`
#
#     benches/on_gpu.sh                                results in ./on_gpu_results, or in $OUT
#     benches/on_gpu.sh exact layers                   only the checks whose names start with these, or are these ("plan")
#     SIMGPU=simgpu/simgpu benches/on_gpu.sh     tries the script on the simulated GPU
#
# Writes log.txt for people and summary.json for programs. The exit status is 0 if every check passed. $PYTHON sets the
# Python. Default: python3 or .venv/bin/python, whichever has PyTorch.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
for python in ${PYTHON:-python3 "$here/../.venv/bin/python"}; do
    if "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' 2>/dev/null; then
        exec "$python" "$here/on_gpu" "$@"
    fi
done
echo "on_gpu: no Python with PyTorch here: say which in \$PYTHON" >&2
exit 2
