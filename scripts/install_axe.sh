#!/bin/sh
# Puts axe, which looks for barriers on pages, into .axe for `make test-page`.
set -eu
cd "$(dirname "$0")/.."

package=axe-core@4.14.1

if ! command -v npm >/dev/null; then
    echo "install_axe: npm is not here; the tests for barriers will be skipped" >&2
    exit 0
fi
mkdir -p .axe
if [ -f .axe/.installed ] && [ "$(cat .axe/.installed)" = "$package" ]; then
    exit 0
fi
[ -f .axe/package.json ] || echo '{"private": true}' >.axe/package.json
if npm install --prefix .axe --no-audit --no-fund --loglevel=error "$package" >.axe/install.log 2>&1; then
    echo "$package" >.axe/.installed
else
    tail -5 .axe/install.log >&2
    echo "install_axe: it could not be installed; the tests for barriers will be skipped" >&2
fi
