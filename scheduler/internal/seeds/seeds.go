// Package seeds runs the randomised tests of the scheduler's rooms, so that all
// of them take their seed and their length from one place: BERTH_SEED, the first
// seed, and BERTH_COUNT, how many seeds. Without them a test is short and the
// same every time.
package seeds

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// defaultFirst is the first seed without BERTH_SEED.
const defaultFirst = 1

// Each runs one round a seed, count of them unless BERTH_COUNT says otherwise,
// and ends at the first that fails, with the seed to repeat it. It returns how
// many rounds there were.
func Each(t *testing.T, count int, round func(seed uint64, r *rand.Rand)) int {
	t.Helper()
	first := fromEnv(t, "BERTH_SEED", defaultFirst)
	count = int(fromEnv(t, "BERTH_COUNT", uint64(count))) //nolint:gosec // a count of rounds
	for i := range count {
		one(t, first+uint64(i), round) //nolint:gosec // i is not negative
	}
	return count
}

// one tells the seed also where the round ends the test at once.
func one(t *testing.T, seed uint64, round func(seed uint64, r *rand.Rand)) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("repeat with BERTH_SEED=%d BERTH_COUNT=1", seed)
		}
	}()
	round(seed, rand.New(rand.NewPCG(seed, 0)))
	if t.Failed() {
		t.FailNow()
	}
}

func fromEnv(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		t.Fatalf("%s=%q: want a number: %v", name, text, err)
	}
	return n
}
