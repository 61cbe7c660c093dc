#!/bin/sh
# Everything that only a real GPU can show: one command, below nine minutes, for a machine with an NVIDIA card and PyTorch.
# Nothing is built here but C: `cargo build --release --workspace --lib --bins --examples` elsewhere makes what it needs, which is
#
#     target/release/{memlab,libmemlab.so,examples/libcupti_truth.so}     python/memlab (with _native.abi3.so)     tests/     benches/
#
#     benches/on_gpu.sh                                results in ./on_gpu_results, or where $OUT says
#     benches/on_gpu.sh exact layers                   only the checks whose names begin so
#     SIMGPU=tests/simgpu/simgpu benches/on_gpu.sh     tries the script itself, on the simulated GPU
#
# log.txt says what was found, summary.json says it to programs. The exit status is 0 if every check passed. $PYTHON is the
# Python to use, if not python3 or .venv/bin/python, whichever has PyTorch.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
for python in ${PYTHON:-python3 "$here/../.venv/bin/python"}; do
    if "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' 2>/dev/null; then
        exec "$python" "$here/on_gpu" "$@"
    fi
done
echo "on_gpu: no Python with PyTorch here: say which in \$PYTHON" >&2
exit 2
