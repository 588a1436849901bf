#!/usr/bin/env bash
# Installs the Debian packages whose tools Berth runs, if any is missing, and those
# given as tool:package. Quick, and needs no network, when none is missing.
set -euo pipefail

if [ "$(id -u)" -ne 0 ]; then
	echo "Berth makes loop devices and mounts, which needs root: run this with sudo" >&2
	exit 1
fi

# tool: package
tools="
mkfs.xfs:xfsprogs
mkfs.ext4:e2fsprogs
resize2fs:e2fsprogs
blkid:util-linux
"

missing=
for pair in $tools "$@"; do
	tool=${pair%%:*}
	package=${pair#*:}
	# Root's tools are not in everybody's PATH.
	if ! PATH="$PATH:/usr/sbin:/sbin" command -v "$tool" >/dev/null; then
		missing="$missing $package"
	fi
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "missing:$missing; install them with this machine's package manager" >&2
	exit 1
fi
echo "Installing$missing"
export DEBIAN_FRONTEND=noninteractive
# The lists may be old or absent; they are read anew only if the first try fails.
# shellcheck disable=SC2086 # one word per package
apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 ||
	{ apt-get update -qq && apt-get install -qq -y --no-install-recommends $missing >/dev/null; }
