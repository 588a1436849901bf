#!/usr/bin/env bash
# The long tests, each again and again for its share of SOAK_MINUTES, each time
# with other seeds; see `make soak`. Writes docs/soak.md.
set -uo pipefail
cd "$(dirname "$0")/.."

minutes=${SOAK_MINUTES:-30}
bin=${BERTH_BIN_DIR:?folder of the built programs}
out=docs/soak.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
apart="unshare --mount --propagation slave"
seed=$(date +%s)
failed=0

rows="$work/rows"
row() { printf '| %s | %s | %s s | %s |\n' "$@" >>"$rows"; }

# part NAME SHARE COMMAND...: runs the command until its share, in hundredths of
# all the time, is over; at least once.
part() {
	local name=$1 seconds=$((minutes * 60 * $2 / 100)) began=$SECONDS runs=0 result=passed
	shift 2
	echo "== $name: ${seconds} s"
	while :; do
		seed=$((seed + 1000))
		if ! BERTH_SEED=$seed "$@" >"$work/log" 2>&1; then
			result="FAILED at BERTH_SEED=$seed"
			failed=1
			echo "-- $name failed with BERTH_SEED=$seed:"
			tail -n 60 "$work/log"
			break
		fi
		runs=$((runs + 1))
		echo "   $name: run $runs passed, $((SECONDS - began)) s"
		[ $((SECONDS - began)) -lt "$seconds" ] || break
	done
	row "$name" "$runs" "$((SECONDS - began))" "$result"
}

# tests NAME SHARE FACTOR PACKAGE PATTERN: a package's tests that match, with the
# race detector unless race is empty, with FACTOR times the usual number of random
# cases.
race=-race
tests() {
	local name=$1 share=$2 factor=$3 package=$4 pattern=$5 test=$work/test
	if ! CGO_ENABLED=1 go test $race -c -o "$test" "./$package" >"$work/log" 2>&1; then
		tail -n 20 "$work/log"
		row "$name" 0 0 "FAILED to build"
		failed=1
		return
	fi
	# shellcheck disable=SC2016,SC2086 # expanded by the inner shell; one word per flag
	part "$name" "$share" env BERTH_COUNT="$factor" $apart sh -c 'cd "$1" && exec "$2" -test.run "$3" -test.shuffle "$BERTH_SEED" -test.timeout 30m' - "$package" "$test" "$pattern"
}

# fuzz NAME SHARE PACKAGE TARGET
fuzz() {
	local name=$1 seconds=$((minutes * 60 * $2 / 100)) began=$SECONDS result=passed
	echo "== $name: ${seconds} s"
	if ! go test -run '^$' -fuzz "^$4\$" -fuzztime "${seconds}s" "./$3" >"$work/log" 2>&1; then
		result="FAILED; the input lies under $3/testdata/fuzz"
		failed=1
		tail -n 60 "$work/log"
	fi
	row "$name" "$(sed -n 's/.*execs: \([0-9]*\).*/\1/p' "$work/log" | tail -n 1)" "$((SECONDS - began))" "$result"
}

demo() { "$bin/berth-sandbox" demo --data-dir="$work/d" --scheduler="$1"; }

# Shares add up to 100.
part "demo, whole" 8 demo plugin
part "demo with the extender, whole" 4 demo extender
tests "extender: pods at once, killed at any moment" 9 10 test/e2e/extender TestBurst
tests "pool: killed at every call" 8 1 driver/pool/loopfile .
tests "driver: volumes on real mounts" 5 1 driver .
tests "node agent: a crowd of pods, a driver that fails" 10 1 nodeagent .
tests "node agent: killed at every step" 6 1 nodeagent/apply .
tests "node agent: records, torn and old" 2 1 nodeagent/record .
tests "provisioning: a fault at every call" 6 1 controller/provision .
tests "cluster work: never over-committed" 6 2 controller/cluster .
tests "scheduler: verdicts against every choice" 7 5 scheduler/binding .
tests "scheduler: ledger interleavings, index against scan" 8 5 scheduler/cache .
# One goroutine, and much to do.
race="" tests "scheduler: 20,000 clusters against upstream" 6 10 test/oracle TestOracle
for package in volume driver nodeagent/record scheduler/extender; do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' $package/*_test.go | cut -c6-); do
		fuzz "fuzz $package $target" 3 "$package" "$target"
	done
done

{
	echo "# The last soak"
	echo
	echo "\`make soak SOAK_MINUTES=$minutes\` on $(date -u +%Y-%m-%d), at commit $(git rev-parse --short HEAD): $(nproc) cores,"
	echo "$(awk '/^MemTotal/ {printf "%d GiB", $2 / 1048576 + 0.5}' /proc/meminfo) of memory, $(uname -s) $(uname -r | grep -o '^[0-9.]*[0-9]') on $(uname -m)."
	echo "Every line but the demo and fuzzing ran with the race detector; each run has the tests in another order, and those"
	echo "that look at random cases (test/seeds) at others. A failure says its seed."
	echo
	echo "| what | runs (fuzzing: inputs) | took | result |"
	echo "|---|---|---|---|"
	cat "$rows"
} >"$out"
cat "$out"
exit "$failed"
