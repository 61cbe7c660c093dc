#!/usr/bin/env bash
# Puts Prometheus and promtool into $1/prometheus, for the tests that scrape `memlab serve`. Unpacks Debian's package: nothing
# is installed, and no service starts. If apt has no such package, searches PATH for both.
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
