#!/bin/sh
# The page is tested in a real browser. Where none is found and this is Debian or Ubuntu as root (a CI machine), install it.
set -eu
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
  apt-get update -qq >/dev/null
  # Ubuntu has only the second.
  for package in chromium-headless-shell chromium; do
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null && exit 0
  done
  exit 1
else
  echo "no chromium found: the page's browser test will be skipped; install chromium to run it" >&2
fi
