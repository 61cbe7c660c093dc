#!/usr/bin/env bash
# Unpacks Prometheus and promtool from Debian's package into $1/prometheus, for the tests that scrape `memlab serve`. Nothing
# is installed, and no service starts. Where apt has no such package, both are searched for on PATH.
set -euo pipefail
target=$(cd "$1" && pwd)/prometheus

rm -rf "$target" "$target.part"
mkdir -p "$target.part"
cd "$target.part"
if command -v apt-get >/dev/null && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } >/dev/null 2>&1; then
    dpkg-deb --extract prometheus_*.deb unpacked
    mv unpacked/usr/bin/prometheus unpacked/usr/bin/promtool .
    rm -rf unpacked prometheus_*.deb
else
    for name in prometheus promtool; do
        ln -s "$(command -v $name)" .
    done
fi
cd - >/dev/null
mv "$target.part" "$target"
"$target/promtool" --version >/dev/null 2>&1
