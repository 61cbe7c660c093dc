#!/usr/bin/env bash
# Tests the manylinux wheel of dist/ in Debian 11, the oldest with a mirror, in the folder $1. If the folder is empty,
# debootstrap installs Debian in it. Tests the command, a C program recorded on the simulated GPU, and, if $2 names a CPython
# in the folder, `import memlab`. Needs root, debootstrap and python3.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$1 python=${2:-}
[ -e "$root/etc/debian_version" ] || debootstrap --variant=minbase --include=gcc,libc6-dev bullseye "$root"
rm -rf "$root/wheel"
python3 -m zipfile -e dist/memlab-*-manylinux_*.whl "$root/wheel"
chmod +x "$root/wheel/memlab/bin/memlab"
cp tests/see/programs/allocations.c "$root/wheel/"
if ! mountpoint -q "$root/proc"; then
    mount -t proc proc "$root/proc"
    trap 'umount "$root/proc"' EXIT
fi
inside() { chroot "$root" env -i -C /wheel HOME=/root PATH=/wheel/memlab/bin:/usr/bin:/bin "$@"; }

inside ldd --version | sed 1q
inside memlab --version
inside gcc -o allocations allocations.c -L memlab/bin/simgpu -lsimgpu_cudart -ldl
inside memlab simulate -- memlab doctor
inside memlab simulate -- memlab run -o run.jsonl -- ./allocations runtime
inside memlab report run.jsonl | sed 12q
if [ -n "$python" ]; then
    inside "$python" -c 'import memlab, memlab._native as native; print(native.__file__, native.plan)'
fi
