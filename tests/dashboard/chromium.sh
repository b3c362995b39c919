#!/bin/sh
# A Chromium for the tests of the page: the machine's own, or Debian's if it may be installed here.
set -u

for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done

as_root=
if [ "$(id -u)" -ne 0 ]; then
  as_root="sudo -n"
  sudo -n true 2>/dev/null || as_root=none
fi
if [ "$as_root" != none ] && command -v apt-get >/dev/null; then
  echo "installing chromium for the tests of the page"
  export DEBIAN_FRONTEND=noninteractive
  install="$as_root apt-get install --yes --quiet --no-install-recommends chromium fonts-dejavu-core"
  $install >/dev/null 2>&1 || { $as_root apt-get update --quiet >/dev/null && $install >/dev/null; }
  command -v chromium >/dev/null && exit 0
fi

echo "no Chromium here: the tests of the page are left out (Debian: apt-get install chromium)" >&2
[ "${CI:-}" != true ]
